"""A run by llmperf, with a stand-in for its program: order, records, resumption, and every way in which it may end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmark.__main__ import main
from benchmark.errors import EndpointError, HarnessError, PlanError, ResultsError
from benchmark.llmperf import process
from benchmark.llmperf.asking import Lengths, Text
from benchmark.llmperf.harness import Harness
from benchmark.measure import journal
from benchmark.measure.records import RequestRecord
from benchmark.plan_file import load
from benchmark.verbs.report import summarised, write_files
from tests.benchmark.conftest import WritePlan

STANDIN = Path(__file__).with_name("standin.py")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "llmperf"
    folder.mkdir()
    (folder / "token_benchmark_ray.py").touch()
    return folder


def _harness(home: Path, text: Text = "sonnets", mean: int = 64) -> Harness:
    return Harness(
        home=home,
        text=text,
        lengths=Lengths(mean_input_tokens=mean),
        program=(sys.executable, str(STANDIN)),
    )


def _requests(out: Path) -> tuple[RequestRecord, ...]:
    return journal.read(out).requests


def test_one_arm_after_the_other_each_cell_once(home: Path, write_plan: WritePlan, tmp_path: Path) -> None:
    said: list[str] = []
    _harness(home, "classes").run(load(write_plan(concurrency=[1, 2])), tmp_path / "out", said.append)
    assert said == [
        "[1/8] steady, chat, 1 at a time: 6 requests",
        "[2/8] steady, raw, 1 at a time: 6 requests",
        "[3/8] steady, chat, 2 at a time: 6 requests",
        "[4/8] steady, raw, 2 at a time: 6 requests",
        "[5/8] spec, chat, 1 at a time: 6 requests",
        "[6/8] spec, raw, 1 at a time: 6 requests",
        "[7/8] spec, chat, 2 at a time: 6 requests",
        "[8/8] spec, raw, 2 at a time: 6 requests",
    ]
    found = _requests(tmp_path / "out")
    assert len(found) == 48
    texts = {record.class_: record.text or "" for record in found if record.arm == "spec"}
    assert "Question 0?" in texts["chat"]
    assert "Beginning 0" in texts["raw"]
    assert all("/spec/v1" in text for text in texts.values())


def test_what_is_derived_is_complete_and_says_by_whom(
    home: Path, write_plan: WritePlan, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _harness(home).run(load(write_plan()), out, print)
    summary = summarised(out)
    assert summary["run"]["complete"]
    assert summary["run"]["client"].startswith("llmperf --text sonnets --mean-input-tokens 64")
    assert any(text.startswith("measured by llmperf: ") for text in summary["run"]["warnings"])
    (cell,) = (cell for cell in summary["cells"] if cell["arm"] == "spec")
    assert (cell["class"], cell["concurrency"], cell["n"]) == ("sonnets", 2, 6)
    assert cell["tpot_s"]["mean"] == pytest.approx(0.1)
    assert cell["acceptance"]["per_position"] is None


def test_its_own_files_stay_its_own(home: Path, write_plan: WritePlan, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _harness(home).run(load(write_plan()), out, print)
    before = sorted(path.relative_to(out) for path in (out / "llmperf").rglob("*.json"))
    assert before == [
        Path(f"llmperf/{arm}/sonnets-c2/M_64_13_individual_responses.json") for arm in ("spec", "steady")
    ]
    write_files(journal.read(out), summarised(out), out)
    assert sorted(path.relative_to(out) for path in (out / "llmperf").rglob("*.json")) == before
    assert "benchmark llmperf --text sonnets" in (out / "report.html").read_text()


def test_a_finished_run_asks_nothing(home: Path, write_plan: WritePlan, tmp_path: Path) -> None:
    plan, out = load(write_plan()), tmp_path / "out"
    _harness(home).run(plan, out, print)
    before = (out / "requests.jsonl").read_bytes()
    said: list[str] = []
    _harness(home).run(plan, out, said.append)
    assert said == []
    assert (out / "requests.jsonl").read_bytes() == before


def test_what_was_interrupted_goes_on_with_what_is_left(
    home: Path, write_plan: WritePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = load(write_plan()), tmp_path / "out"
    monkeypatch.setenv("STANDIN", "die")
    with pytest.raises(HarnessError) as caught:
        _harness(home).run(plan, out, print)
    assert str(caught.value) == (
        "steady, sonnets, 2 at a time: llmperf ended with code 1 after 1 of 6 requests: ray died; "
        f"its log is {out / 'llmperf.log'}; the same command goes on"
    )
    monkeypatch.delenv("STANDIN")
    said: list[str] = []
    _harness(home).run(plan, out, said.append)
    assert said == [
        "[1/2] steady, sonnets, 2 at a time: 5 requests",
        "[2/2] spec, sonnets, 2 at a time: 6 requests",
    ]
    raw = journal.read(out)
    assert len(raw.requests) == 12
    assert len({sitting.run for sitting in raw.sittings}) == 1
    assert len({(record.arm, record.pair_id) for record in raw.requests}) == 12
    assert (out / "llmperf/steady/sonnets-c2/sitting-2/M_64_13_individual_responses.json").exists()


def test_llmperf_that_does_not_end_is_ended(
    home: Path, write_plan: WritePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", "hang")
    monkeypatch.setattr(process, "_LET_GO_S", 0.2)
    _harness(home).run(load(write_plan()), tmp_path / "out", print)
    assert len(_requests(tmp_path / "out")) == 12


def test_another_asking_needs_another_folder(home: Path, write_plan: WritePlan, tmp_path: Path) -> None:
    plan, out = load(write_plan()), tmp_path / "out"
    _harness(home).run(plan, out, print)
    with pytest.raises(
        ResultsError, match=r"--mean-input-tokens 64 .*, not of .* 65 .*; choose another --out"
    ):
        _harness(home, mean=65).run(plan, out, print)


def test_nobody_there_is_one_line_and_nothing_is_written(
    home: Path, write_plan: WritePlan, tmp_path: Path
) -> None:
    path = write_plan()
    content = json.loads(path.read_text())
    content["arms"][0]["url"] = "http://127.0.0.1:9/v1"
    path.write_text(json.dumps(content))
    with pytest.raises(EndpointError, match=r"steady: http://127.0.0.1:9/v1/models"):
        _harness(home).run(load(path), tmp_path / "out", print)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_llmperf_and_a_prompt_too_short_are_refused(
    home: Path, write_plan: WritePlan, tmp_path: Path
) -> None:
    plan = load(write_plan())
    with pytest.raises(PlanError, match=r"holds no token_benchmark_ray\.py"):
        _harness(tmp_path).run(plan, tmp_path / "out", print)
    with pytest.raises(PlanError, match="--mean-input-tokens 40: llmperf's instruction alone is longer"):
        _harness(home, mean=40).run(plan, tmp_path / "out", print)


def test_the_command_line_says_what_is_missing(
    write_plan: WritePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LLMPERF_HOME", raising=False)
    arguments = ["llmperf", "--plan", str(write_plan()), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "or set LLMPERF_HOME" in capsys.readouterr().err
    assert main([*arguments, "--llmperf", str(tmp_path)]) == 2
    assert "give the folder of llmperf's sources" in capsys.readouterr().err


def test_the_gate_does_not_judge_by_llmperf(
    home: Path, write_plan: WritePlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    _harness(home).run(load(write_plan()), out, print)
    assert main(["gate", str(out), "--baseline", str(out)]) == 2
    assert "measured by llmperf, one arm after the other" in capsys.readouterr().err
