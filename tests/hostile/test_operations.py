"""Answers that AWS did not give, at every call of every verb: one clean line and exit code 3, and no node is paid for."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from moto.moto_api._internal.models import moto_api_backend

from experiment import Experiment
from experiment.finding import Outside, Refusal
from operations.cloud.aws import Aws
from operations.preflight.reach import Web
from tests.hostile.foreign import BODIES, Foreign, in_place_of
from tests.operations.api_server import ApiServer
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
    "cost": ("cost", "--refresh"),
    "kubectl": ("kubectl", "get", "pods"),
    "verify": ("verify",),
    "run, tried only": ("run", "experiments/qwen3-32b.yaml", "--dry-run"),
    "promote": ("promote", "qwen-sd-vllm", "--now", "--dry-run"),
}


def clean(line: str) -> bool:
    return line.isprintable() and len(line) < 1000


def body_for(number: int) -> bytes:
    """Another one for each call."""
    return list(BODIES.values())[number % len(BODIES)]


@pytest.mark.parametrize("first", [0, 3, 7])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_in_one_line_that_it_was_not_aws(
    verb: str, first: int, world: World, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Web, "ask", _silence)
    more = ("--prices", str(tmp_path / "prices.json")) if verb == "cost" else ()
    for nth in count(1):
        body = body_for(first + nth)
        with in_place_of(Foreign(body, nth=nth)) as foreign:
            code, _, err = say(*VERBS[verb], *more)
        if len(foreign.calls) < nth:
            break
        call = foreign.calls[nth - 1]
        assert all(clean(line) for line in err.splitlines()), call
        beside = "were not looked for" in err  # other regions, which many may not even list
        assert code == 3 or beside or (verb == "preflight" and code == 1), (call, err)
        assert "is not one of AWS" in err or verb == "preflight", (call, err)
    assert nth > 1


def _silence(*_: object, **__: object) -> None:
    raise Outside("the registry does not answer; check network and proxy")


@pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "lost"])
@pytest.mark.parametrize("first", [0, 5])
def test_a_run_pays_for_no_node_and_lets_go_whatever_answers(
    first: int, delivered: bool, experiment: Experiment, aws: Aws, tmp_path: Path, account: None
) -> None:
    for nth in _first_of_each_kind(experiment, aws, tmp_path):
        driver = fresh(experiment, aws, tmp_path / str(nth))
        with in_place_of(Foreign(body_for(first + nth), nth=nth, delivered=delivered)) as foreign:
            line = _line_of(driver)
        call = foreign.calls[nth - 1]
        assert all(map(clean, [line, *driver.said])), call
        assert driver.world.nodes == 0, (call, driver.said)
        held = driver.store.current()
        assert held is None or not held.state.owner, (call, driver.said)


def _line_of(driver: Driver) -> str:
    """With which a run ends; nothing where it has its answer."""
    try:
        driver.run()
    except Refusal as error:
        return str(error)
    return ""


def fresh(experiment: Experiment, aws: Aws, out: Path) -> Driver:
    moto_api_backend.reset()
    api = ApiServer()
    return Driver(World(experiment, api), aws, DirectKubernetes(api, experiment.name), out)


def _first_of_each_kind(experiment: Experiment, aws: Aws, tmp_path: Path) -> list[int]:
    """Numbers of the calls of a whole run: of each operation on each thing the first."""
    driver = fresh(experiment, aws, tmp_path / "whole")
    with in_place_of(Foreign(b"", nth=0)) as foreign:
        driver.run()
    return [
        number
        for number, call in enumerate(foreign.calls, start=1)
        if call not in foreign.calls[: number - 1]
    ]
