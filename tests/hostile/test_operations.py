"""What AWS, a cluster or a bucket did not answer, or answered on purpose: one clean line, and no node is paid for."""

from __future__ import annotations

import json
import os
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from moto.moto_api._internal.models import moto_api_backend

from tests.hostile.foreign import BODIES, Foreign, in_place_of
from tests.operations.api_server import ApiServer, DirectKubernetes
from tests.operations.driver import Driver
from tests.operations.world import World
from tests.store.conftest import folder, s3
from trnspec.core.findings import Outside, Refusal
from trnspec.experiment import Experiment
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.kubernetes import Kubernetes
from trnspec.operations.running.results import fetch
from trnspec.operations.running.state import parse
from trnspec.store.__main__ import restore
from trnspec.store.artifact import pull
from trnspec.store.bucket import Incomplete, from_json, inside

__all__ = ["folder", "s3"]

READING = re.compile(r"\.(Describe|Get|Head|List|Simulate)")
STATE: dict[str, Any] = {
    "schema": 1,
    "id": "20260401t120000z",
    "begun": "2026-04-01T12:00:00Z",
    "digest": "0a",
    "owner": "",
    "renewed": "2026-04-01T12:00:00Z",
}
DAMAGED: dict[str, Any] = {
    "an id that leads out of the folder": {"id": "../../elsewhere"},
    "an id with a line's end": {"id": "20260401t120000z\n"},
    "an owner with an escape sequence": {"owner": "\x1b[2Jvm:1"},
    "a time without a zone": {"renewed": "2026-04-01T12:00:00"},
    "steps within steps": {"done": [["weights"]]},
    "fewer than no nodes": {"nodes": -1},
    "hours that are no number": {"node_hours": float("nan")},
    "results elsewhere": {"results": {"1": "runs/../state/"}},
    "results of everybody": {"results": {"1": "runs/"}},
    "another release": {"schema": 2},
}
STATES = {
    "a list": b"[]",
    "half of it": json.dumps(STATE).encode()[:40],
    "not text": b"\xff\xfe",
    "very deep": b'{"done": ' + b"[" * 200_000,
    **{case: json.dumps(STATE | change).encode() for case, change in DAMAGED.items()},
}
ANSWERS = {
    "nothing": "",
    "a page": "<html>Sign in</html>",
    "half of an object": '{"metadata": {"na',
    "very deep": "[" * 100_000,
}


def clean(line: str) -> bool:
    return line.isprintable() and len(line) < 1000


def fresh(experiment: Experiment, aws: Aws, out: Path) -> Driver:
    moto_api_backend.reset()
    api = ApiServer()
    return Driver(World(experiment, api), aws, DirectKubernetes(api, experiment), out)


@pytest.mark.slow
def test_a_run_pays_for_no_node(experiment: Experiment, aws: Aws, tmp_path: Path, account: None) -> None:
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


@pytest.mark.parametrize("case", STATES)
def test_a_damaged_state_of_a_run_is_one_line(case: str, reference: Experiment) -> None:
    with pytest.raises(Refusal, match=r"s3://results/active\.json: cannot be read by this release") as caught:
        parse(STATES[case], "s3://results/active.json", reference)
    assert clean(str(caught.value))


def test_results_come_home_into_their_folder_only(experiment: Experiment, aws: Aws, tmp_path: Path) -> None:
    driver = fresh(experiment, aws, tmp_path / "a" / "b")
    names = "../escaped", "/escaped", "a/../../escaped", ".git/hooks/escaped", "a/.escaped", "a\x1bb"
    for number, name in enumerate(names):
        driver.world.store("results", f"runs/{number}/{name}", {})
        with pytest.raises(Refusal, match="is not the name of a file"):
            fetch(driver.aws, driver.take_run().bucket("results"), f"runs/{number}/", driver.out)
    assert not list(tmp_path.rglob("*escaped"))


def test_what_no_cluster_answers_is_one_line(tmp_path: Path, reference: Experiment) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\ncat {tmp_path / 'answer'}\n")
    os.chmod(program, 0o755)
    cluster = Kubernetes(kubectl=program, kubeconfig=tmp_path / "config", experiment=reference)
    for case, answer in ANSWERS.items():
        (tmp_path / "answer").write_text(answer)
        with pytest.raises(Outside, match="unexpected answer, not from a Kubernetes cluster") as caught:
            cluster.get("job", "x")
        assert clean(str(caught.value)), case
    program.write_text("#!/bin/sh\nprintf '\\033[2Jerror\\377' >&2\nexit 1\n")
    with pytest.raises(Refusal) as refused:
        cluster.get("job", "x")
    assert clean(str(refused.value))


NAMES = ("../x", "a/../../x", "/etc/x", "a//x", "./x", "", "a\x00b", "a\nb", "\x1b[2J", "..", "link/passwd")


def test_no_name_of_a_file_leads_out_of_a_folder(folder: Any, s3: Any, tmp_path: Path) -> None:
    os.symlink("/etc", tmp_path / "link")
    for name in NAMES:
        with pytest.raises(Incomplete) as caught:
            inside(tmp_path, name, "s3://b/x")
        assert clean(str(caught.value)), name
        if name != "link/passwd":
            with pytest.raises(Incomplete):
                from_json(json.dumps([{"path": name, "size": 1, "sha256": "0"}]), "s3://b/x")
    assert inside(tmp_path, "a/b", "x") == tmp_path / "a" / "b"
    kept, target = folder(), tmp_path / "a" / "target"
    listed = {"files": [{"path": "../escaped", "size": 2, "sha256": "0"}]}
    prefix = kept.address.removeprefix("s3://store/")
    s3.put_object(Bucket="store", Key=f"{prefix}/../escaped", Body=b"{}")
    with pytest.raises(Incomplete, match="is not the name of a file"):
        restore(kept, target)
    s3.put_object(Bucket="store", Key=f"{prefix}/COMPLETE", Body=json.dumps(listed).encode())
    with pytest.raises(Incomplete, match="is not the name of a file"):
        pull(kept, target, key=None)
    assert not list(tmp_path.rglob("escaped"))
