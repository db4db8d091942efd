"""A node that goes away while a cell is measured: the real client against emulated servers, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.conftest import plan_content
from tests.benchmark.endpoint import wait_until
from tests.benchmark.measure.test_run import lines
from tests.benchmark.records import WALL, answered, block, cautions, failed, raw_run, summary_of
from tests.conftest import ROOT
from tests.lab.emulator.arms import BASELINE, MODEL, SPECULATIVE
from trnspec.benchmark import NODES_VARIABLE
from trnspec.benchmark.analyse import conditions
from trnspec.benchmark.analyse.answers import losslessness
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.request_table import CellKey
from trnspec.benchmark.analyse.stability import stability
from trnspec.benchmark.measure import journal
from trnspec.benchmark.measure.raw_run import RawRun, extent
from trnspec.benchmark.measure.records import REPEATED
from trnspec.benchmark.plan import Load

FIRST, SECOND = "ip-10-0-1-17.ec2.internal", "ip-10-0-1-203.ec2.internal"
ARMS = {"steady": BASELINE, "spec": SPECULATIVE}


@contextmanager
def servers(plan: Path, ports: dict[str, int]) -> Iterator[None]:
    """Both arms, as long as their node is there; then their addresses refuse."""
    own = ["--plan", str(plan), "--time-scale", "0.02"]
    fleet = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "trnspec.lab.emulator",
                "--listen",
                f"127.0.0.1:{ports[arm]}",
                *own,
                "--",
                *argv,
            ],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        for arm, argv in ARMS.items()
    ]
    try:
        wait_until(lambda: all(_answers(port) for port in ports.values()))
        yield
    finally:
        for server in fleet:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports() -> dict[str, int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in ARMS]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return dict(zip(ARMS, ports, strict=True))


def client(plan: Path, out: Path, ports: dict[str, int], node: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trnspec.benchmark", "run", "--plan", str(plan), "--out", str(out)]
    command += ["--questions", "none", "--exit-zero"]
    for arm, port in ports.items():
        command += ["--arm", f"{arm}=http://127.0.0.1:{port}/v1"]
    env = os.environ | {NODES_VARIABLE: " ".join(f"{arm}={node}" for arm in ports)}
    return subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _blocks(out: Path, class_: str) -> int:
    found = lines(out) if (out / journal.FILE_NAME).exists() else []
    return sum(line["kind"] == "block" and line["class"] == class_ for line in found)


@pytest.mark.slow  # in real time
def test_a_cell_that_was_cut_is_measured_again_as_a_whole_and_no_pair_is_of_two_nodes(tmp_path: Path) -> None:
    prompts = [
        {"id": f"{name}-{n}", "class": name, "prompt": f"{name} {n}"} for name in ("a", "b") for n in range(6)
    ]
    content = plan_content(prompts=prompts, model=MODEL, concurrency=[2], requests=6, max_tokens=24)
    plan, out, ports = tmp_path / "plan.json", tmp_path / "out", _free_ports()
    plan.write_text(json.dumps(content), encoding="utf-8")

    with servers(plan, ports):
        first = client(plan, out, ports, FIRST)
        wait_until(lambda: _blocks(out, "b") >= 3)  # a is whole, b has a set and a half

    def refused() -> int:
        return sum(line.get("error") == "connect_refused" for line in lines(out))

    wait_until(lambda: refused() >= 4)  # the node is gone, and nobody has told the client
    first.send_signal(signal.SIGTERM)  # what the run does once it sees that
    first.communicate(timeout=60)
    assert first.returncode == 128 + signal.SIGTERM
    kept = lines(out)

    with servers(plan, ports):
        said, _ = (second := client(plan, out, ports, SECOND)).communicate(timeout=300)
    assert second.returncode == 0, said
    assert f"steady: node {SECOND} instead of {FIRST}; an interrupted cell is measured again" in said
    assert lines(out)[: len(kept)] == kept, "what was recorded stays"

    again = [line for line in lines(out)[len(kept) :] if line["kind"] == "block"]
    of_cut = [(line["block"], line["arm"]) for line in again if line["class"] == "b"]
    assert {number for number, _ in of_cut} == {1, 2, 3, 4}, "all sets of the cut cell"
    assert len(of_cut) == 8
    assert {line["round"] for line in again if line["class"] == "a"} == {REPEATED}, "a whole cell is kept"

    raw = journal.read(out)
    assert extent(raw)[1]
    cells = cells_of(raw)
    nodes = {
        place.class_: {record.start for record in own.answers} for (_, place), own in cells.requests.items()
    }
    assert nodes == {"a": {1}, "b": {2}}
    assert not [record for own in cells.requests.values() for record in own.answers if record.error]
    arms = (raw.plan.arms[0], raw.plan.arms[1])
    assert len(cells.pairs(arms, CellKey("b", Load(concurrency=2)))[0]) >= 4 * 6
    summary = summary_of(raw)
    (warning,) = (line for line in cautions(summary) if "the node of steady was replaced" in line)
    assert f"({FIRST} to {SECOND})" in warning
    assert [change["arm"] for change in summary["course"]["nodes"]] == ["steady", "spec"]
    assert summary["course"]["restarts"] == [], "servers on another node are not servers that restarted"
    assert summary["course"]["drift"] == [], "the first cell and its repetition are of two nodes"


def _on(raw: RawRun, *nodes: str) -> RawRun:
    """A sitting each on these nodes, 100 s apart."""
    sessions = (
        replace(
            raw.sessions[0],
            session=number,
            started_unix_s=WALL + 100 * (number - 1),
            nodes=dict.fromkeys(ARMS, node),
        )
        for number, node in enumerate(nodes, start=1)
    )
    return replace(raw, sessions=tuple(sessions))


def test_pairs_that_a_replaced_node_parts_are_left_out() -> None:
    """An arm may have answered before the change, and the other after it."""
    asked: list[Any] = [answered(arm, pair) for pair in range(4) for arm in ARMS]
    late = [replace(one, session=2) for one in asked[3:4]]
    raw = _on(raw_run(*asked[:3], *late, *asked[4:]), "n1", "n2")
    cells = cells_of(raw)
    pairs = cells.pairs((raw.plan.arms[0], raw.plan.arms[1]), CellKey("chat", Load(concurrency=2)))
    assert [base.pair_id[-1] for base in pairs[0].answers] == ["0", "2", "3"]
    assert cells_of(_on(raw, "n1", "n1")).conditions(Load(concurrency=2)).starts == 1

    other = replace(raw, requests=(replace(raw.requests[2], text="b"), *raw.requests[:2], *raw.requests[3:]))
    for nodes, n_pairs, differing in (("n1", "n1"), 4, 1), (("n1", "n2"), 3, 0):
        run = _on(other, *nodes)
        found = losslessness(run.by_nodes)
        assert found is not None
        (row,) = found.treatments
        assert (row.n_pairs, row.differing) == (n_pairs, differing), (
            "answers of two nodes are not one pair either"
        )


@pytest.mark.parametrize(
    ("error", "after", "cut"),
    [("connect_refused", "n2", True), ("http_500", "n2", False), ("connect_refused", "n1", False)],
)
def test_a_block_is_cut_where_its_last_requests_met_no_server_until_the_node_was_replaced(
    error: str, after: str, cut: bool
) -> None:
    requests = [answered("spec", 0, block=1), failed("spec", 1, error, block=1)]
    raw = replace(_on(raw_run(*requests), "n1", after), blocks=(block(arm="spec", block=1),))
    assert (not raw.ended, not raw.counts(requests[0])) == (cut, cut)
    assert bool(stability(cells_of(raw)).nodes) == (after == "n2")
    rows = conditions.servers(raw, stability(cells_of(raw)))
    assert any("was replaced" in row.says for row in rows) == (after == "n2")
