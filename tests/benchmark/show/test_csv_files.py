"""The CSV files: which columns, which rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmark.analyse.summary import summarise
from benchmark.measure.journal import RawRun
from benchmark.show import csv_files
from tests.benchmark.records import answered, failed, raw_run

HEADERS = {  # others may stand between them
    "requests.csv": "run,arm,class,concurrency,rate_per_s,round,phase,pair_id,prompt_id,started_unix_s,ttft_s,tpot_s,"
    "e2e_s,output_tokens_per_s,tokens_per_chunk,tokens_per_step,llmperf_inter_token_latency_s,prompt_tokens,"
    "cached_tokens,completion_tokens,token_source,finish_reason,error",
    "cells.csv": "arm,class,concurrency,rate_per_s,n,errors,error_rate,ttft_s_mean,ttft_s_p50,ttft_s_p90,ttft_s_p95,ttft_s_p99",
    "comparisons.csv": "class,concurrency,rate_per_s,baseline,treatment,metric,ratio,ci_low,ci_high,n_pairs,n_prompts,"
    "verdict,p_value,p_holm,detectable_ratio,error_rate_baseline,error_rate_treatment,warning",
}


def written(raw: RawRun, folder: Path) -> list[dict[str, str]]:
    """The rows of the requests."""
    csv_files.write(raw, summarise(raw), folder)
    with (folder / "requests.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_for_each_request_and_empty_fields_for_what_is_not_known(tmp_path: Path) -> None:
    warmup = answered(pair=1, phase="warmup", finish_reason="=1+1")
    found = written(raw_run(answered(pair=0), warmup, failed(pair=2)), tmp_path)
    for name, header in HEADERS.items():
        columns = (tmp_path / name).read_text().splitlines()[0].split(",")
        assert [column for column in columns if column in header.split(",")] == header.split(",")
    assert [row["phase"] for row in found] == ["measured", "warmup", "measured"]
    assert float(found[0]["tpot_s"]) == pytest.approx(0.1)
    assert (found[2]["ttft_s"], found[2]["e2e_s"], found[2]["error"]) == ("", "", "timeout")
    assert found[1]["finish_reason"] == "'=1+1", "which a spreadsheet would calculate"
