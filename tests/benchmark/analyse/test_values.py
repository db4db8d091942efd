from __future__ import annotations

import pytest

from benchmark.analyse.values import gaps, request_values, tokens_per_chunk
from benchmark.metrics import PUBLISHED
from tests.benchmark.records import answered, failed


def test_time_per_token_is_per_token_and_not_per_chunk() -> None:
    spec = answered(chunk_s=(0.1, 0.145, 0.19, 0.235), chunk_tokens=(1, 4, 5, 3), stream_chunks=5)
    values = request_values(spec, 7)
    assert values["tpot_s"] == pytest.approx(0.135 / 12)
    assert values["tokens_per_step"] == pytest.approx(4)
    assert gaps(spec) == pytest.approx([0.045] * 3)
    assert values["output_tokens_per_s"] == pytest.approx(13 / 0.235)
    assert values["llmperf_inter_token_latency_s"] == pytest.approx(0.235 / 5)


def test_tokens_of_the_first_chunk_are_no_decode_tokens() -> None:
    bundled = answered(chunk_s=(0.1, 0.2), chunk_tokens=(5, 5))
    assert request_values(bundled, 7)["tpot_s"] == pytest.approx(0.1 / 5)


def test_a_total_gives_means_with_one_token_taken_for_the_first_chunk() -> None:
    record = answered(chunk_s=(0.1, 0.2, 0.3), chunk_tokens=None, completion_tokens=9)
    values = request_values(record, 7)
    assert values["tpot_s"] == pytest.approx(0.2 / 8)
    assert values["tokens_per_step"] == pytest.approx(4)


def test_chunks_stand_for_tokens_only_where_a_step_yields_one() -> None:
    untold = answered(chunk_s=(0.1, 0.2, 0.3), chunk_tokens=None, completion_tokens=None)
    assert request_values(untold, 1)["tpot_s"] == pytest.approx(0.1)
    assert set(request_values(untold, 7)) == {"ttft_s", "e2e_s", "llmperf_inter_token_latency_s"}


def test_what_is_not_known_is_absent_and_never_zero() -> None:
    assert request_values(failed(), 1) == {}
    assert "tpot_s" not in request_values(answered(chunk_s=(0.1,)), 1)
    assert "tpot_s" not in request_values(answered(chunk_s=(0.1, 0.1)), 1)


def test_every_value_of_a_request_is_a_published_metric() -> None:
    names = {metric.name for metric in PUBLISHED}
    assert set(request_values(answered(), 1)) <= names


def test_the_servers_count_of_steps_goes_before_chunks() -> None:
    said = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10}
    record = answered(chunk_tokens=(1, 2, 2), spec_stats=said)
    assert request_values(record, 7)["tokens_per_step"] == 3.5
    assert tokens_per_chunk(record, record.completion_tokens) == 2.0
