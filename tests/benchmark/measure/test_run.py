from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.measure import journal
from benchmark.measure.journal import Journal
from tests.benchmark.conftest import SPEC, WritePlan
from tests.benchmark.endpoint import Endpoint, Timing

ROOT = Path(__file__).parents[3]


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]


def lose(out: Path, requests: int) -> None:
    """Take the journal back to before its last `requests` measured requests, half a line of the first kept."""
    raw = out / "requests.jsonl"
    whole = raw.read_bytes().splitlines(keepends=True)
    at = [i for i, line in enumerate(whole) if json.loads(line).get("phase") == "measured"][-requests]
    raw.write_bytes(b"".join(whole[:at]) + whole[at][:40])


def measured(out: Path) -> list[dict[str, Any]]:
    return [line for line in lines(out) if line.get("phase") == "measured"]


def test_a_run_ends_in_raw_records_a_summary_and_a_table(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    for arm, timing in endpoint.arms.items():
        # On a busy machine quick chunks come all at once, and have no TPOT.
        endpoint.arms[arm] = replace(timing, step_s=0.04)
    out = tmp_path / "out"
    assert main(["run", "--plan", str(write_plan()), "--out", str(out)]) == 0
    assert len(measured(out)) == 24
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["run"]["complete"], summary["run"]["provenance"]) == (True, "measured")
    assert summary["run"]["token_source"] == "usage-per-chunk"
    tpot = [c for c in summary["comparisons"] if c["metric"] == "tpot_s"]
    assert [(c["class"], c["verdict"]) for c in tpot] == [("chat", "faster"), ("raw", "faster")]
    spec = next(c for c in summary["cells"] if c["arm"] == "spec")
    assert spec["acceptance"]["distribution"] == {"2": 12, "4": 12}
    assert spec["output_equality"]["rate"] == 1.0
    printed = capsys.readouterr()
    assert "faster" in printed.out
    assert "[2/" in printed.err


def test_arms_get_the_same_requests_and_never_at_the_same_time(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    main(["run", "--plan", str(write_plan()), "--out", str(tmp_path / "out"), "--warmup", "0"])
    asked = {arm: [seen for seen in endpoint.seen if seen.arm == arm] for arm in ("steady", "spec")}
    bodies = [sorted(json.dumps(seen.body) for seen in of_arm) for of_arm in asked.values()]
    assert bodies[0] == bodies[1]
    assert len(set(bodies[0])) == 12
    overlap = [
        (one, other)
        for one in asked["steady"]
        for other in asked["spec"]
        if one.began < other.ended and other.began < one.ended
    ]
    assert overlap == []
    together = [sum(b.began <= a.began < b.ended for b in asked["steady"]) for a in asked["steady"]]
    assert max(together) == 2


def test_the_same_command_goes_on_without_asking_twice(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    out = tmp_path / "out"
    command = ["run", "--plan", str(write_plan()), "--out", str(out)]
    main(command)
    lose(out, 5)
    endpoint.seen.clear()
    assert main(command) == 0
    asked = [(line["arm"], line["pair_id"]) for line in measured(out)]
    assert len(asked) == len(set(asked)) == 24
    assert len(endpoint.seen) == 5 + 2, "five that were lost and a warm-up for each arm"
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["run"]["sittings"], summary["run"]["complete"]) == (2, True)
    endpoint.seen.clear()
    assert main(command) == 0
    assert endpoint.seen == [], "a finished run asks nothing again"


def test_a_folder_of_another_plan_is_refused(
    write_plan: WritePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--plan", str(write_plan()), "--out", str(tmp_path / "out"), "--classes", "raw"]
    main(command)
    before = (tmp_path / "out" / "requests.jsonl").read_bytes()
    capsys.readouterr()
    assert main([*command, "--requests", "2"]) == 2
    assert "another plan" in capsys.readouterr().err
    assert (tmp_path / "out" / "requests.jsonl").read_bytes() == before


@pytest.mark.parametrize("wrong", ["address", "model"])
def test_an_arm_that_cannot_answer_ends_the_run_before_it_begins(
    write_plan: WritePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        plan = write_plan(**{"model": "other/model"} if wrong == "model" else {})
        arms = ["--arm", f"spec={url}"] if wrong == "address" else []
        assert main(["run", "--plan", str(plan), "--out", str(tmp_path / "out"), *arms]) == 3
    (error,) = capsys.readouterr().err.splitlines()
    told = {"address": f"spec: {url}", "model": "serves Qwen/Qwen3-32B, not 'other/model'"}
    assert told[wrong] in error
    assert not (tmp_path / "out").exists()


def test_one_emulated_arm_makes_the_run_emulated(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.arms["spec"] = Timing(step_s=SPEC.step_s, sizes=SPEC.sizes, owned_by="emulator")
    out = tmp_path / "out"
    main(["run", "--plan", str(write_plan()), "--out", str(out), "--classes", "raw", "--requests", "2"])
    assert json.loads((out / "summary.json").read_text())["run"]["provenance"] == "emulated"
    assert "EMULATED" in capsys.readouterr().out
    endpoint.arms["spec"] = SPEC
    lose(out, 1)
    again = ["run", "--plan", str(write_plan()), "--out", str(out), "--classes", "raw", "--requests", "2"]
    assert main(again) == 2, "measured requests do not mix with emulated ones"


def test_a_failing_arm_is_recorded_request_by_request_and_the_run_goes_on(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    fault = f"spec={endpoint.url('500')}"
    command = ["run", "--plan", str(write_plan()), "--out", str(out), "--arm", fault, "--classes", "raw"]
    assert main(command) == 1, "a cell without any answer is a finding"
    failures = [line for line in measured(out) if line["arm"] == "spec"]
    assert {line["error"] for line in failures} == {"http_500"}
    assert {(line["ttft_s"], line["e2e_s"]) for line in failures} == {(None, None)}
    printed = capsys.readouterr().out
    assert "http_500 6" in printed
    assert "error rates differ" in printed


def test_the_summary_comes_from_the_raw_file_alone(
    write_plan: WritePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    main(["run", "--plan", str(write_plan()), "--out", str(out), "--classes", "raw"])
    before, table = (out / "summary.json").read_text(), capsys.readouterr().out
    (out / "summary.json").unlink()
    assert main(["report", str(out)]) == 0
    assert (out / "summary.json").read_text() == before
    assert capsys.readouterr().out == table
    assert main(["report", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(before)


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    (tmp_path / "requests.jsonl").write_text('{"kind": "cow"}\n')
    assert main(["report", str(tmp_path)]) == 2
    assert "requests.jsonl: holds no run (line 1 (kind 'cow' is none of" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_one_line(
    write_plan: WritePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["run", "--plan", str(write_plan()), "--out", str(tmp_path / "file" / "out")]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_two_runs_do_not_write_one_folder(
    write_plan: WritePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Journal(tmp_path / "out"):
        assert main(["run", "--plan", str(write_plan()), "--out", str(tmp_path / "out")]) == 2
    assert "another run writes it" in capsys.readouterr().err


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_keeps_its_records_and_says_incomplete(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint, sent: signal.Signals, code: int
) -> None:
    endpoint.arms["spec"] = Timing(first_s=0.2, step_s=0.05)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmark", "run", "--plan", str(write_plan()), "--out", str(out)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        until = time.monotonic() + 120
        while len([s for s in endpoint.seen if s.arm == "spec"]) < 3:
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(run.pid, sent)
        printed, told = run.communicate(timeout=120)
    assert run.returncode == code, told
    assert "INCOMPLETE" in printed
    assert "Traceback" not in told
    raw = journal.read(out)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["run"]["complete"] is False
    assert summary["run"]["requests_recorded"] == sum(r.phase == "measured" for r in raw.requests) > 0
