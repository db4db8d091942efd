"""The Prometheus page has the runtime's names and nothing else."""

from __future__ import annotations

import re

import pytest

from experiment.catalogue.runtimes import NXDI_VLLM_0_9_1
from lab.emulator.meters import Load, Meters

LOAD = Load(running=3, waiting=2, cache_usage=0.25)


def _samples(page: str) -> dict[str, float]:
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_the_page_exposes_exactly_the_runtimes_names() -> None:
    page = Meters("m").page(LOAD)
    assert tuple(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)) == NXDI_VLLM_0_9_1.metrics
    sampled = {re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0]) for name in _samples(page)}
    assert sampled == set(NXDI_VLLM_0_9_1.metrics)
    assert "spec_decode" not in page


def test_a_step_advances_the_counter_by_one_as_in_the_runtimes_engine_whatever_it_yields() -> None:
    meters = Meters("m")
    meters.first_token(prompt_tokens=10, ttft_s=0.05)
    meters.step(step_s=0.0944)
    meters.finished("length", e2e_s=1.5)
    samples = _samples(meters.page(LOAD))
    expected = {
        'vllm:prompt_tokens_total{model_name="m"}': 10,
        'vllm:generation_tokens_total{model_name="m"}': 2,
        'vllm:num_requests_waiting{model_name="m"}': 2,
        'vllm:gpu_cache_usage_perc{model_name="m"}': 0.25,
        'vllm:num_preemptions_total{model_name="m"}': 0,
        'vllm:request_success_total{model_name="m",finished_reason="length"}': 1,
        'vllm:request_success_total{model_name="m",finished_reason="stop"}': 0,
        'vllm:time_per_output_token_seconds_count{model_name="m"}': 1,
        'vllm:time_per_output_token_seconds_bucket{model_name="m",le="0.1"}': 1,
        'vllm:time_per_output_token_seconds_bucket{model_name="m",le="0.075"}': 0,
        'vllm:e2e_request_latency_seconds_bucket{model_name="m",le="+Inf"}': 1,
    }
    assert {name: samples[name] for name in expected} == expected


@pytest.mark.parametrize(("name", "escaped"), [('a"b', 'a\\"b'), ("a\\b", "a\\\\b")])
def test_model_names_are_escaped(name: str, escaped: str) -> None:
    assert f'model_name="{escaped}"' in Meters(name).page(LOAD)
