"""aiperf's records as a run. data/aiperf-*: aiperf 0.13.0 on the known-schedule server, cut to the keys that are read;
the last two lines of aiperf-bursts are from runs against a path and a port where nothing is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmark.__main__ import main
from benchmark.measure import journal
from benchmark.measure.aiperf import read

DATA = Path(__file__).parent / "data"
STEADY, BURSTS = DATA / "aiperf-steady", DATA / "aiperf-bursts"
Captured = pytest.CaptureFixture[str]


def test_two_exports_become_a_comparison_and_are_not_mixed_with_another_run(
    tmp_path: Path, capsys: Captured
) -> None:
    arms = ("--arm", f"plain={STEADY}", "--arm", f"spec={BURSTS / 'profile_export.jsonl'}")
    command = ["import", *arms, "--out", str(tmp_path / "out")]
    assert main([*command, "--speculative-tokens", "spec=7", "--emulated"]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["run"]["client"].startswith("aiperf 0.13.0, imported by ")
    tpot = next(c for c in summary["comparisons"] if c["metric"] == "tpot_s")
    assert tpot["ratio"] == pytest.approx(3.9, rel=0.05), "45 ms a token against 40 tokens in 11 chunks"
    assert tpot["n_prompts"] == 4, "the same prompts, though each run of aiperf gives them new names"
    assert "EMULATED" in capsys.readouterr().out
    assert main(command) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_record_has_aiperfs_times_in_seconds_and_only_what_aiperf_tells() -> None:
    export = read(BURSTS, run="r", arm="spec", class_="imported")
    assert (export.version, export.model, export.concurrency) == ("0.13.0", "known-schedule", 2)
    assert [record.phase for record in export.requests][:2] == ["warmup", "measured"]
    first = next(record for record in export.requests if record.phase == "measured")
    assert first.ttft_s == pytest.approx(0.1, abs=0.02)
    assert first.e2e_s == pytest.approx(0.55, abs=0.03)
    assert (len(first.chunk_s), first.completion_tokens) == (11, 40)
    assert (first.chunk_tokens, first.text, first.token_source) == (None, None, "final-usage")
    failed = [(one.error, one.ttft_s, tuple(one.chunk_s)) for one in export.requests if one.error]
    assert failed == [("http_404", None, ()), ("connect_refused", None, ())]


def test_the_servers_histogram_of_acceptance_gets_its_empty_steps_back(tmp_path: Path) -> None:
    line = json.loads((STEADY / "profile_export.jsonl").read_text().splitlines()[1])
    line["spec_decode_acceptance"] = {
        "engine": "vllm",
        "acceptance_histogram": {"0": 3, "2": 5},
        "num_spec_steps": 8,
        "num_accepted_draft_tokens": 10,
        "num_spec_tokens": 3,
    }
    (tmp_path / "profile_export.jsonl").write_text(json.dumps(line) + "\n")
    (record,) = read(tmp_path, run="r", arm="a", class_="x", concurrency=2).requests
    assert record.spec_stats is not None
    assert record.spec_stats["acceptance_histogram"] == [3, 0, 5, 0]


def test_an_export_alone_needs_its_load_and_model_named(tmp_path: Path, capsys: Captured) -> None:
    shutil.copy(STEADY / "profile_export.jsonl", tmp_path)
    command = ["import", "--arm", f"a={tmp_path}", "--out", str(tmp_path / "out")]
    for told in (["--concurrency", "2"], ["--model", "m"]):
        assert main(command) == 2
        assert told[0] in capsys.readouterr().err
        command += told
    assert main(command) == 0
    measured = [r.pair_id for r in journal.read(tmp_path / "out").requests if r.phase == "measured"]
    assert sorted(measured) == [f"number-{i}/0001" for i in range(8)]


def test_a_file_that_is_no_export_is_refused_and_nothing_written(tmp_path: Path, capsys: Captured) -> None:
    path, out = tmp_path / "export.jsonl", tmp_path / "out"
    contents: dict[str | None, str] = {
        None: "cannot be read",
        "{": "1: not JSON",
        "": "holds no record",
        '{"a": 1}': "not a record of aiperf 0.13",
    }
    for content, told in contents.items():
        if content is not None:
            path.write_text(content)
        assert main(["import", "--arm", f"a={path}", "--out", str(out), "--concurrency", "1"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line
    assert not out.exists()
