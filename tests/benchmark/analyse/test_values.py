from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmark.analyse.values import (
    counter_deltas,
    gaps,
    of_steps,
    request_values,
    server_counts,
    tokens_per_chunk,
)
from tests.benchmark.analyse.acceptance.process import Process
from tests.benchmark.records import answered, counted_drafts, failed


def test_time_per_token_is_per_token_and_not_per_chunk() -> None:
    spec = answered(chunk_s=(0.1, 0.145, 0.19, 0.235), chunk_tokens=(1, 4, 5, 3), stream_chunks=5)
    values = request_values(spec, 7)
    assert values["tpot_s"] == pytest.approx(0.135 / 12)
    assert values["tokens_per_step"] == pytest.approx(4)
    assert gaps(spec) == pytest.approx([0.045] * 3)
    assert values["output_tokens_per_s"] == pytest.approx(13 / 0.235)
    assert values["llmperf_inter_token_latency_s"] == pytest.approx(0.235 / 5)


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


def test_the_servers_count_of_steps_goes_before_chunks() -> None:
    said = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10}
    record = answered(chunk_tokens=(1, 2, 2), spec_stats=said)
    assert request_values(record, 7)["tokens_per_step"] == 3.5
    assert tokens_per_chunk(record, record.completion_tokens) == 2.0


def test_survival_is_the_share_of_steps_that_yielded_more() -> None:
    found = of_steps([[1, 2, 3, 3, 1]], ceiling=3)
    assert found.tokens_per_step == 2.0
    # The last step of an answer may have been cut: it was never seen to fail.
    assert found.tried == (4, 3)
    assert found.passed == (3, 2)
    assert found.survival() == pytest.approx((3 / 4, 3 / 4 * 2 / 3))


def test_a_last_step_counts_as_far_as_it_was_seen_and_a_merged_one_not_at_all() -> None:
    found = of_steps([[1, 1, 2]], ceiling=4)
    assert (found.tried, found.passed) == ((3, 0, 0), (1, 0, 0))
    assert found.survival() == pytest.approx((1 / 3,))
    assert of_steps([[2, 9, 1, 1]], ceiling=2).tried == (2,)


def test_cut_answers_do_not_shorten_the_survival() -> None:
    engine = Process(conditional=(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9), k=7, tokens=20)
    dice = random.Random(3)
    answers = [engine.steps(dice) for _ in range(4000)]
    assert of_steps(answers, 8).survival() == pytest.approx(engine.survival(7), rel=0.03)
    naive = sum(step > 7 for answer in answers for step in answer) / sum(map(len, answers))
    assert naive < 0.9 * engine.survival(7)[-1]


@pytest.mark.parametrize(
    ("histogram", "survival"),
    [([3, 3, 3, 1], (0.7, 0.4, 0.1)), ([3, 3], None)],
    ids=["positions", "contradicts its sum"],
)
def test_the_servers_histogram_gives_positions(
    histogram: list[int], survival: tuple[float, ...] | None
) -> None:
    said = {"num_spec_steps": 10, "num_accepted_draft_tokens": 12, "acceptance_histogram": histogram}
    found = server_counts(answered(spec_stats=said))
    assert found is not None
    assert found.tokens_per_step == pytest.approx(2.2)
    assert found.survival() == (survival and pytest.approx(survival))


def test_counters_are_differences_summed_over_blocks_and_not_those_of_a_restarted_server() -> None:
    first = counted_drafts(steps=10, accepted=15, survivors=(8,), begun=100)
    second = counted_drafts(steps=10, accepted=5, survivors=(4, 1), begun=90)
    found = counter_deltas([first, second])
    assert found is not None
    assert (found.steps, found.tokens_per_step) == (20, 2.0)
    assert found.survival() == pytest.approx((12 / 20, 1 / 20))
    restarted = replace(first, counters_before=first.counters_after, counters_after=first.counters_before)
    for blocks in ([restarted], [first, replace(first, counters_after=None)], []):
        assert counter_deltas(blocks) is None
