"""Answers that AWS did not give, at every call of every verb: one clean line and exit code 3, and no node is paid for."""

from __future__ import annotations

import re
from itertools import cycle
from pathlib import Path

import pytest
from moto.moto_api._internal.models import moto_api_backend

from core.findings import Outside, Refusal
from experiment import Experiment
from operations.cloud import access
from operations.cloud.aws import Aws, AwsError
from operations.preflight.reach import Web
from tests.hostile.foreign import BODIES, Foreign, in_place_of
from tests.operations.api_server import ApiServer
from tests.operations.clients import REGION, shared_client
from tests.operations.conftest import Say
from tests.operations.direct import DirectKubernetes
from tests.operations.driver import Driver
from tests.operations.world import World

VERBS = {
    "status": ("status",),
    "scale up": ("scale", "1"),
    "scale down": ("scale", "0"),
    "teardown": ("teardown", "--confirm", "qwen3-32b"),
    "preflight": ("preflight",),
    "kubectl": ("kubectl", "get", "pods"),
    "verify": ("verify",),
    "run, tried only": ("run", "experiments/qwen3-32b.yaml", "--dry-run"),
    "promote": ("promote", "qwen-sd-vllm", "--now", "--dry-run"),
}


CALLS = {
    "cloudformation": "describe_stacks",
    "cloudwatch": "describe_alarms",
    "ec2": "describe_regions",
    "eks": "list_clusters",
    "iam": "list_roles",
    "resourcegroupstaggingapi": "get_resources",
    "s3": "list_buckets",
    "scheduler": "list_schedules",
    "ssm": "describe_instance_information",
    "sts": "get_caller_identity",
}
"""One of each service, since their protocols differ."""
READING = re.compile(r"\.(Describe|Get|Head|List|Simulate)")


def clean(line: str) -> bool:
    return line.isprintable() and len(line) < 1000


@pytest.mark.parametrize("service", CALLS)
def test_no_answer_of_whatever_kind_is_taken_for_one_of_aws(service: str, account: None) -> None:
    calls = Aws(REGION, make_client=shared_client).client(service)
    for kind, body in BODIES.items():
        with in_place_of(Foreign(body)), pytest.raises(AwsError) as caught:
            getattr(calls, CALLS[service])()
        assert clean(str(caught.value)), kind


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_in_one_line_that_it_was_not_aws(
    verb: str, world: World, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call it is; each gets another kind of answer."""
    monkeypatch.setattr(Web, "ask", _silence)
    if verb not in ("kubectl", "preflight"):
        direct = DirectKubernetes(world.api, world.experiment.name)
        monkeypatch.setattr(access, "Kubernetes", lambda **_: direct)
    for nth, body in enumerate(cycle(BODIES.values()), start=1):
        with in_place_of(Foreign(body, nth=nth)) as foreign:
            code, _, err = say(*VERBS[verb])
        if len(foreign.calls) < nth:
            break
        call = foreign.calls[nth - 1]
        assert all(clean(line) for line in err.splitlines()), call
        beside = "were not looked for" in err  # other regions, which many may not even list
        assert code == 3 or beside or (verb == "preflight" and code == 1), (call, err)
        assert "unexpected answer, not from AWS" in err or verb == "preflight", (call, err)
    assert nth > 1


def _silence(*_: object, **__: object) -> None:
    raise Outside("the registry does not answer; check network and proxy")


def test_a_run_pays_for_no_node_and_lets_go_whatever_answers(
    experiment: Experiment, aws: Aws, tmp_path: Path, account: None
) -> None:
    """In the place of each kind of call; of one that changes something, whether AWS has got it or not."""
    driver = fresh(experiment, aws, tmp_path / "whole")
    with in_place_of(Foreign(nth=0)) as whole:
        driver.run()
    of_each_kind = [number for number, call in enumerate(whole.calls) if call not in whole.calls[:number]]
    changing = [number for number in of_each_kind if not READING.search(whole.calls[number])]
    cases = [(number, True) for number in of_each_kind] + [(number, False) for number in changing]
    for (number, delivered), body in zip(cases, cycle(BODIES.values()), strict=False):
        driver, line = fresh(experiment, aws, tmp_path / str(number)), ""
        with in_place_of(Foreign(body, nth=number + 1, delivered=delivered)) as foreign:
            try:
                driver.run()
            except Refusal as error:
                line = str(error)
        call = foreign.calls[number]
        assert all(map(clean, [line, *driver.said])), call
        assert driver.world.nodes == 0, (call, driver.said)
        held = driver.store.current()
        assert held is None or not held.state.owner, (call, driver.said)


def fresh(experiment: Experiment, aws: Aws, out: Path) -> Driver:
    moto_api_backend.reset()
    api = ApiServer()
    return Driver(World(experiment, api), aws, DirectKubernetes(api, experiment.name), out)
