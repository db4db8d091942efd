from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.measure.journal import Journal
from tests.benchmark.conftest import SPEC, Run
from tests.benchmark.endpoint import Endpoint, Seen

Captured = pytest.CaptureFixture[str]


def lose(out: Path, requests: int) -> None:
    """Take the journal back to before its last `requests` measured requests, half a line of the first kept."""
    raw = out / "requests.jsonl"
    whole = raw.read_bytes().splitlines(keepends=True)
    at = [i for i, line in enumerate(whole) if json.loads(line).get("phase") == "measured"][-requests]
    raw.write_bytes(b"".join(whole[:at]) + whole[at][:40])


def measured(out: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (out / "requests.jsonl").read_text().splitlines())
    return [line for line in lines if line.get("phase") == "measured"]


def summary(out: Path) -> Any:
    return json.loads((out / "summary.json").read_text())


def together(one: Seen, other: Seen) -> bool:
    return one.began < other.ended and other.began < one.ended


def test_a_run_ends_in_raw_records_and_what_comes_from_them_alone(
    run: Run, out: Path, endpoint: Endpoint, capsys: Captured
) -> None:
    for arm, timing in endpoint.arms.items():
        # On a busy machine quick chunks come all at once, and have no TPOT.
        endpoint.arms[arm] = replace(timing, step_s=0.02)
    assert run() == 0
    assert len(measured(out)) == 24
    found = summary(out)
    assert (found["run"]["complete"], found["run"]["provenance"]) == (True, "measured")
    assert found["run"]["token_source"] == "usage-per-chunk"
    tpot = [c for c in found["comparisons"] if c["metric"] == "tpot_s"]
    assert [(c["class"], c["verdict"]) for c in tpot] == [("chat", "faster"), ("raw", "faster")]
    spec = next(c for c in found["cells"] if c["arm"] == "spec")
    assert spec["acceptance"]["distribution"] == {"2": 12, "4": 12}
    assert spec["output_equality"]["rate"] == 1.0
    printed = capsys.readouterr()
    assert "faster" in printed.out
    assert "[2/" in printed.err
    assert printed.err.endswith(f"{out}: `benchmark report {out}` writes its page\n")
    (out / "summary.json").unlink()
    assert main(["report", str(out)]) == 0
    assert (summary(out), capsys.readouterr().out) == (found, printed.out)
    assert main(["report", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_arms_get_the_same_requests_and_never_at_the_same_time(run: Run, endpoint: Endpoint) -> None:
    run("--warmup 0")
    asked = {arm: [seen for seen in endpoint.seen if seen.arm == arm] for arm in ("steady", "spec")}
    bodies = [sorted(json.dumps(seen.body) for seen in of_arm) for of_arm in asked.values()]
    assert bodies[0] == bodies[1]
    assert len(set(bodies[0])) == 12
    assert not any(together(one, other) for one in asked["steady"] for other in asked["spec"])
    in_flight = [sum(b.began <= a.began < b.ended for b in asked["steady"]) for a in asked["steady"]]
    assert max(in_flight) == 2


def test_the_same_command_goes_on_without_asking_twice(run: Run, out: Path, endpoint: Endpoint) -> None:
    run()
    lose(out, 5)
    endpoint.seen.clear()
    assert run() == 0
    asked = [(line["arm"], line["pair_id"]) for line in measured(out)]
    assert len(asked) == len(set(asked)) == 24
    assert len(endpoint.seen) == 5 + 2, "five that were lost and a warm-up for each arm"
    assert (summary(out)["run"]["sittings"], summary(out)["run"]["complete"]) == (2, True)
    endpoint.seen.clear()
    assert run() == 0
    assert endpoint.seen == [], "a finished run asks nothing again"


def test_a_folder_takes_one_plan_of_one_provenance_from_one_writer_at_a_time(
    run: Run, out: Path, endpoint: Endpoint, capsys: Captured
) -> None:
    out.write_text("")
    assert run() == 3, "it is a file"
    assert "File exists" in capsys.readouterr().err.splitlines()[-1]
    out.unlink()
    with Journal(out):
        assert run() == 2
    assert "another run writes it" in capsys.readouterr().err

    endpoint.arms["spec"] = replace(SPEC, owned_by="emulator")
    run("--classes raw --requests 2")
    assert summary(out)["run"]["provenance"] == "emulated", "because one arm is"
    assert "EMULATED" in capsys.readouterr().out
    before = (out / "requests.jsonl").read_bytes()
    assert run("--classes raw --requests 4") == 2
    assert "another plan" in capsys.readouterr().err
    assert (out / "requests.jsonl").read_bytes() == before
    endpoint.arms["spec"] = SPEC
    lose(out, 1)
    assert run("--classes raw --requests 2") == 2
    assert "are emulated, the arms are now measured" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["address", "model"])
def test_an_arm_that_cannot_answer_ends_the_run_before_it_begins(
    run: Run, out: Path, capsys: Captured, wrong: str
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        ended = run(f"--arm spec={url}") if wrong == "address" else run(model="other/model")
    assert ended == 3
    (error,) = capsys.readouterr().err.splitlines()
    told = {"address": f"spec: {url}", "model": "serves Qwen/Qwen3-32B, not 'other/model'"}
    assert told[wrong] in error
    assert not out.exists()
