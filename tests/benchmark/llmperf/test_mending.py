"""llmperf's figures before and after."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmark.llmperf.mending import OBSERVED, Requests, mended, per_token_s, summarised

SPECULATED = (0.1, 0.2, 0.3, 0.4)
"""Four chunks of 1, 3, 3 and 3 tokens: 0.3 s for nine tokens."""


def _metrics(**changes: Any) -> dict[str, Any]:
    """As llmperf leaves them: the figure for a token is E2E over the five chunks, the role's among them."""
    observed = {"started_unix_s": 5.0, "chunk_s": list(SPECULATED), "usage": {"completion_tokens": 10}}
    return {
        "error_code": None,
        "error_msg": "",
        "inter_token_latency_s": 0.4 / 5,
        "ttft_s": 0.1,
        "end_to_end_latency_s": 0.41,
        "request_output_throughput_token_per_s": 12 / 0.41,
        "number_total_tokens": 76,
        "number_output_tokens": 12,
        "number_input_tokens": 64,
        OBSERVED: observed,
    } | changes


def test_the_time_of_a_step_becomes_the_time_of_a_token_and_stands_beside() -> None:
    found = mended(_metrics())
    assert found["inter_token_latency_s"] == pytest.approx(0.3 / 9)
    assert found["llmperf_inter_token_latency_s"] == pytest.approx(0.08)
    assert found["server_output_tokens"] == 10
    assert found["number_output_tokens"] == 12
    assert OBSERVED not in found


def test_without_the_servers_count_llmperfs_own_stands_in() -> None:
    metrics = _metrics()
    metrics[OBSERVED]["usage"] = {}
    found = mended(metrics)
    assert found["inter_token_latency_s"] == pytest.approx(0.3 / 11)
    assert found["server_output_tokens"] is None


def test_one_chunk_has_no_time_per_token() -> None:
    assert per_token_s((0.1,), 3) is None
    assert per_token_s((0.1, 0.2), 1) is None


def test_a_failed_request_has_no_figures() -> None:
    found = mended(_metrics(error_code=-1, error_msg="ConnectionError: refused", ttft_s=0))
    figures = {name: value for name, value in found.items() if name.endswith(("_s", "_tokens"))}
    assert {name for name, value in figures.items() if value is not None} == {
        "started_unix_s",
        "number_input_tokens",
    }
    assert found["error_msg"] == "ConnectionError: refused"


def _llmperfs(metrics: list[dict[str, Any]], started_s: float, ended_s: float) -> dict[str, Any]:
    """The shape of llmperf's own summary."""
    known = [m["inter_token_latency_s"] for m in metrics if m["error_code"] is None]
    return {"inter_token_latency_s": {"mean": statistics.fmean(known)}, "num_requests_started": len(metrics)}


def test_the_summary_has_both_figures_and_what_is_stored_is_mended() -> None:
    stored = [_metrics(), _metrics()]
    found = summarised(_llmperfs)(stored, 0.0, 1.0)
    assert found["inter_token_latency_s"]["mean"] == pytest.approx(0.3 / 9)
    assert found["llmperf_inter_token_latency_s"]["mean"] == pytest.approx(0.08)
    assert all("server_output_tokens" in one for one in stored)


def test_nothing_but_failures_is_summed_up_without_llmperf_which_would_stop() -> None:
    stored = [_metrics(error_code=503)]
    found = summarised(_llmperfs)(stored, 0.0, 1.0)
    assert found == {"num_requests_started": 1, "number_errors": 1, "num_completed_requests": 0}


def test_as_many_are_sent_as_are_wanted(tmp_path: Path) -> None:
    requests = Requests(2, tmp_path / "records.jsonl")
    assert [requests.take() for _ in range(4)] == [True, True, False, False]
    requests.give_back()
    assert [requests.take() for _ in range(2)] == [True, False]


def test_each_is_a_line_as_soon_as_it_has_ended(tmp_path: Path) -> None:
    requests = Requests(2, tmp_path / "records.jsonl")
    requests.note(_metrics())
    (line,) = (tmp_path / "records.jsonl").read_text().splitlines()
    assert json.loads(line)["chunk_s"] == list(SPECULATED)
    assert json.loads(line)["error_code"] is None
