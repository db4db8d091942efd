"""The verb `report`: what it leaves in the folder, and what stops it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.benchmark.conftest import Captured
from tests.benchmark.records import answered, failed, raw_run, store
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.measure import journal
from trnspec.benchmark.plan import load

FILES = {
    *("requests.jsonl", "summary.json", "report.html", "plan-as-run.json", "llmperf"),
    *("requests.csv", "cells.csv", "comparisons.csv", "answer.svg", "speculation_profile-spec.json"),
}
HEADERS = {  # others may stand between them
    "requests.csv": "run,arm,class,concurrency,rate_per_s,round,phase,pair_id,prompt_id,started_unix_s,ttft_s,tpot_s,"
    "e2e_s,output_tokens_per_s,tokens_per_chunk,tokens_per_step,llmperf_inter_token_latency_s,prompt_tokens,"
    "cached_tokens,completion_tokens,token_source,finish_reason,error",
    "comparisons.csv": "class,concurrency,rate_per_s,baseline,treatment,metric,ratio,ci_low,ci_high,n_pairs,n_prompts,"
    "verdict,p_value,p_holm,detectable_ratio",
    "cells.csv": "arm,class,concurrency,rate_per_s,n,errors,error_rate,ttft_s_mean,ttft_s_p50,ttft_s_p90,ttft_s_p95,ttft_s_p99",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    warmup = answered(pair=6, phase="warmup", finish_reason="=1+1")
    pairs = [answered(arm, i) for i in range(6) for arm in ("steady", "spec")]
    return store(raw_run(*pairs, warmup, failed(pair=7)), tmp_path)


def test_everything_is_made_from_the_raw_file_each_time_the_same(folder: Path, capsys: Captured) -> None:
    made = []
    for _ in range(2):
        assert main(["report", str(folder)]) == 0
        made.append({path: path.read_bytes() for path in folder.rglob("*") if path.is_file()})
        printed = capsys.readouterr()
        assert "chat" in printed.out
        assert printed.err.startswith(f"Page: {folder}/report.html\nAlso written: ")
        assert printed.err.count("\n") == 2
    assert {path.name for path in folder.iterdir()} == FILES
    assert made[0] == made[1]
    assert load(folder / "plan-as-run.json").sha256() == journal.read(folder).sessions[0].plan_sha256
    for name, header in HEADERS.items():
        columns, known = (folder / name).read_text().splitlines()[0].split(","), header.split(",")
        assert [column for column in columns if column in known] == known
    first, *_, warmup, lost = csv.DictReader((folder / "requests.csv").read_text().splitlines())
    assert float(first["tpot_s"]) == pytest.approx(0.1)
    assert (warmup["phase"], warmup["finish_reason"]) == ("warmup", "'=1+1"), "a spreadsheet would calculate"
    assert (lost["ttft_s"], lost["e2e_s"], lost["error"]) == ("", "", "timeout")


@pytest.mark.parametrize("name", ["summary.json", "cells.csv", "report.html"])
def test_a_full_disk_is_one_line_and_keeps_the_data(folder: Path, capsys: Captured, name: str) -> None:
    before = (folder / "requests.jsonl").read_bytes()
    (folder / f"{name}.part").symlink_to("/dev/full")
    assert main(["report", str(folder)]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "No space left on device" in error
    assert (folder / "requests.jsonl").read_bytes() == before
    assert not (folder / name).exists()
    assert list(folder.rglob("*.part")) == []
