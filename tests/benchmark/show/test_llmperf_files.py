"""llmperf's files: its names and keys, our values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.measure.journal import RawRun
from benchmark.show import llmperf_files
from tests.benchmark.records import WALL, answered, failed, raw_run

SPREAD = (
    *("inter_token_latency_s", "ttft_s", "end_to_end_latency_s", "request_output_throughput_token_per_s"),
    *("number_input_tokens", "number_output_tokens"),
)
RESPONSE = ["error_code", "error_msg", *SPREAD[:4], "number_total_tokens", *SPREAD[:3:-1]]
"""As llmperf's `_individual_responses.json` has them."""
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


def written(raw: RawRun, folder: Path, ending: str, arm: str = "spec") -> Any:
    llmperf_files.write(raw, folder)
    (path,) = (folder / "llmperf" / arm).rglob(f"*_{ending}.json")
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def chunky(pair: int = 0) -> Any:
    """Eight tokens in three chunks of 45 ms after the first at 100 ms."""
    return answered("spec", pair, chunk_s=(0.1, 0.145, 0.19), chunk_tokens=(1, 4, 3))


def test_responses_have_llmperfs_keys_in_its_order_then_ours_and_time_per_token(tmp_path: Path) -> None:
    (response,) = written(raw_run(chunky()), tmp_path, "individual_responses")
    ours = ["llmperf_inter_token_latency_s", "tokens_per_chunk", "inter_chunk_latency_s"]
    assert list(response) == [*RESPONSE, *ours]
    assert response["inter_token_latency_s"] == pytest.approx(0.09 / 7)
    assert response["llmperf_inter_token_latency_s"] == pytest.approx(0.19 / 4)
    assert response["inter_chunk_latency_s"] == pytest.approx(0.045)
    assert (response["error_code"], response["error_msg"]) == (None, "")
    tokens = [response[f"number_{which}_tokens"] for which in ("total", "output", "input")]
    assert tokens == [17, 8, 9]


def test_a_failed_request_has_nulls_and_no_zeros(tmp_path: Path) -> None:
    raw = raw_run(failed("spec", 0, "http_503"), failed("spec", 1, "timeout"), chunky(2))
    responses = written(raw, tmp_path, "individual_responses")
    assert [response["error_code"] for response in responses] == [503, -1, None]
    assert responses[1]["error_msg"] == "timeout: because"
    assert all(responses[0][key] is None for key in RESPONSE[2:])


def test_the_summary_has_all_of_llmperfs_keys_in_its_order(tmp_path: Path) -> None:
    summary = written(raw_run(chunky(), chunky(1)), tmp_path, "summary")
    assert [key for key in summary if key in SUMMARY] == SUMMARY
    assert (summary["version"], summary["timestamp"]) == ("2023-08-31", int(WALL + 1.19))
    assert summary["num_concurrent_requests"] == 2
    assert summary["additional_sampling_params_chat_template_kwargs_enable_thinking"] is False
    assert "time per output token" in summary["schema_note"]


def test_the_summary_leaves_failures_out_of_its_statistics(tmp_path: Path) -> None:
    raw = raw_run(chunky(), failed("spec", 1), failed("spec", 2, "http_500"))
    summary = written(raw, tmp_path, "summary")
    assert summary["results_inter_token_latency_s_mean"] == pytest.approx(0.09 / 7)
    assert summary["results_number_output_tokens_max"] == 8
    assert summary["results_inter_token_latency_s_stddev"] is None
    names = ("num_requests_started", "number_errors", "num_completed_requests")
    counts = [summary[f"results_{name}"] for name in names]
    assert counts == [3, 2, 1]
    assert summary["results_error_code_frequency"] == "{-1: 1, 500: 1}"
    assert summary["results_mean_output_throughput_token_per_s"] == pytest.approx(8 / 0.19)


def test_file_names_are_llmperfs_and_warm_up_is_in_no_file(tmp_path: Path) -> None:
    assert llmperf_files.write(raw_run(answered(phase="warmup")), tmp_path) == []
    paths = llmperf_files.write(raw_run(chunky(), model="Qwen/Qwen3-32B", max_tokens=600), tmp_path)
    names = ["Qwen-Qwen3-32B_9_600_individual_responses.json", "Qwen-Qwen3-32B_9_600_summary.json"]
    assert [path.name for path in paths] == names
    assert {path.parent for path in paths} == {tmp_path / "llmperf" / "spec" / "chat-c2"}


def test_names_that_no_folder_can_have_stay_apart_and_inside(tmp_path: Path) -> None:
    classes = ("a/b", "a b", "..")
    records = [answered("spec", i, class_=class_) for i, class_ in enumerate(classes)]
    prompts = [{"id": class_, "class": class_, "prompt": "p"} for class_ in classes]
    paths = llmperf_files.write(raw_run(*records, prompts=prompts), tmp_path)
    assert len({path.parent for path in paths}) == 3
    assert {path.parent.parent.resolve() for path in paths} == {(tmp_path / "llmperf" / "spec").resolve()}
