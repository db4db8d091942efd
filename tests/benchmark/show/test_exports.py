"""llmperf's files: its names and keys, our values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.records import WALL, answered, failed, raw_run
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.show.exports import write_llmperf

SPREAD = (
    *("inter_token_latency_s", "ttft_s", "end_to_end_latency_s", "request_output_throughput_token_per_s"),
    *("number_input_tokens", "number_output_tokens"),
)
RESPONSE = ["error_code", "error_msg", *SPREAD[:4], "number_total_tokens", *SPREAD[:3:-1]]
"""As llmperf's `_individual_responses.json` has them."""
OURS = ["llmperf_inter_token_latency_s", "tokens_per_chunk", "inter_chunk_latency_s"]
STATISTICS = [*(f"quantiles_p{q}" for q in (25, 50, 75, 90, 95, 99)), "mean", "min", "max", "stddev"]
SUMMARY = [
    *("version", "name", "model", "mean_input_tokens", "stddev_input_tokens", "mean_output_tokens"),
    *("stddev_output_tokens", "num_concurrent_requests", "additional_sampling_params_temperature"),
    *(f"results_{metric}_{statistic}" for metric in SPREAD for statistic in STATISTICS),
    *("results_num_requests_started", "results_error_rate", "results_number_errors"),
    *("results_error_code_frequency", "results_mean_output_throughput_token_per_s"),
    *("results_num_completed_requests", "results_num_completed_requests_per_min", "timestamp"),
]
"""As llmperf's `_summary.json` has them."""


def written(raw: RawRun, folder: Path) -> Any:
    """The responses and the summary of `spec`."""
    paths = write_llmperf(cells_of(raw), folder)
    assert {path.parent for path in paths} == {folder / "llmperf" / "spec" / "chat-c2"}
    names = ["Qwen-Qwen3-32B_9_600_individual_responses.json", "Qwen-Qwen3-32B_9_600_summary.json"]
    assert [path.name for path in paths] == names
    return [
        json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        for path in paths
    ]


def test_one_answer_and_two_failures_have_llmperfs_keys_in_its_order_then_ours(tmp_path: Path) -> None:
    """Eight tokens in three chunks of 45 ms after the first at 100 ms; failures have nulls, no zeros, and are in no statistic."""
    chunky = answered("spec", 0, chunk_s=(0.1, 0.145, 0.19), chunk_tokens=(1, 4, 3))
    failures = (failed("spec", 1, "http_503"), failed("spec", 2))
    raw = raw_run(chunky, *failures, model="Qwen/Qwen3-32B", max_tokens=600)
    (response, *others), summary = written(raw, tmp_path)
    assert list(response) == [*RESPONSE, *OURS]
    expected = {
        "inter_token_latency_s": 0.09 / 7,
        "llmperf_inter_token_latency_s": 0.19 / 4,
        "inter_chunk_latency_s": 0.045,
        **{"number_total_tokens": 17, "number_output_tokens": 8, "number_input_tokens": 9},
    }
    assert {key: response[key] for key in expected} == pytest.approx(expected)
    assert [one["error_code"] for one in (response, *others)] == [None, 503, -1]
    assert [one["error_msg"] for one in (response, *others)] == ["", "http_503: because", "timeout: because"]
    assert all(others[0][key] is None for key in RESPONSE[2:])

    assert [key for key in summary if key in SUMMARY] == SUMMARY
    assert (summary["version"], summary["timestamp"]) == ("2023-08-31", int(WALL + 2))
    assert summary["num_concurrent_requests"] == 2
    assert summary["additional_sampling_params_chat_template_kwargs_enable_thinking"] is False
    assert "time per output token" in summary["schema_note"]
    results = {
        "inter_token_latency_s_mean": pytest.approx(0.09 / 7),
        "inter_token_latency_s_stddev": None,
        "number_output_tokens_max": 8,
        **{"num_requests_started": 3, "number_errors": 2, "num_completed_requests": 1},
        "error_code_frequency": "{503: 1, -1: 1}",
        "mean_output_throughput_token_per_s": pytest.approx(8 / 0.19),
    }
    assert {name: summary[f"results_{name}"] for name in results} == results


def test_warm_up_is_in_no_file_and_odd_names_stay_apart_and_inside(tmp_path: Path) -> None:
    assert write_llmperf(cells_of(raw_run(answered(phase="warmup"))), tmp_path) == []
    classes = ("a/b", "a b", "..")
    records = [answered("spec", i, class_=class_) for i, class_ in enumerate(classes)]
    prompts = [{"id": class_, "class": class_, "prompt": "p"} for class_ in classes]
    paths = write_llmperf(cells_of(raw_run(*records, prompts=prompts)), tmp_path)
    assert len({path.parent for path in paths}) == 3
    assert {path.parent.parent.resolve() for path in paths} == {(tmp_path / "llmperf" / "spec").resolve()}
