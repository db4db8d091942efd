from __future__ import annotations

from dataclasses import replace

import pytest

from benchmark.analyse.explanation import crossovers
from benchmark.analyse.summary import summarise
from benchmark.plan import from_dict
from tests.benchmark.analyse.acceptance.process import DRAFT_S, PLAIN_S, VERIFY_S, Process
from tests.benchmark.conftest import plan_content
from tests.benchmark.records import answered, raw_run

FAST = Process(conditional=(0.95,) * 7, k=7)
SLOW = Process(conditional=(0.4,) * 7, k=7)


@pytest.mark.parametrize(("engine", "outcome"), [(FAST, "should be faster"), (SLOW, "should be slower")])
def test_a_speed_up_is_explained_by_what_steps_yield_and_cost(engine: Process, outcome: str) -> None:
    run = engine.run()
    summary = summarise(run)
    (said,) = summary["explanations"]
    assert said["step_time_ratio"] == pytest.approx((VERIFY_S + 7 * DRAFT_S) / PLAIN_S, rel=0.01)
    assert said["break_even_tokens_per_step"] == said["step_time_ratio"]
    assert said["predicted_speed_up"] == pytest.approx(said["measured_speed_up"], rel=0.03)
    assert said["measured_speed_up"] == summary["comparisons"][0]["ratio"]
    assert outcome in said["text"]
    assert "what the steps alone explain" not in said["text"]

    ends = [r.chunk_s[-1] + 2 * (r.arm == "spec") for r in run.requests]
    held_up = tuple(
        replace(r, chunk_s=(*r.chunk_s[:-1], end_s), e2e_s=end_s)
        for r, end_s in zip(run.requests, ends, strict=True)
    )
    (said,) = summarise(replace(run, requests=held_up))["explanations"]
    assert "below what the steps alone explain (prefills or a queue between the steps)" in said["text"]


def test_without_token_counts_or_time_between_chunks_there_is_no_explanation_but_no_gap_either() -> None:
    plain = [answered("steady", i) for i in range(6)]
    untold = [answered("spec", i, chunk_tokens=None, completion_tokens=None) for i in range(6)]
    (said,) = summarise(raw_run(*untold, *plain))["explanations"]
    assert said["predicted_speed_up"] is None
    assert "not known" in said["text"]
    assert summarise(raw_run(plain[0]))["explanations"] == [], "without a pair"
    times = {"steady": (0.1, 0.2, 0.2, 0.2, 0.2, 0.3), "spec": (0.1, 0.15, 0.2, 0.25)}
    shared = [answered(arm, pair, chunk_s=at) for pair in range(6) for arm, at in times.items()]
    (said,) = summarise(raw_run(*shared))["explanations"]
    assert said["step_time_ratio"] is None or said["step_time_ratio"] > 0


FALLING = ((1, 2.0, 1.9, 2.1), (8, 1.2, 1.1, 1.3), (64, 0.7, 0.6, 0.8))


@pytest.mark.parametrize(
    ("ratios", "prices", "level", "shown", "text"),
    [
        (FALLING, (), 64, True, "between 8 and 64 at a time (arms at the same price per hour)"),
        (FALLING, (10.0, 15.0), 8, True, "between 1 and 8 at a time"),
        (((1, 2.0, 1.9, 2.1), (8, 0.98, 0.9, 1.1)), (), 8, False, "; an interval there leaves it open"),
        (((1, 0.9, 0.8, 0.95), (8, 1.5, 1.4, 1.6)), (), None, False, "at no measured load up to 8 at a time"),
        (((8, 0.5, 0.4, 0.6),), (), 8, True, "from 8 at a time on, the lowest measured load"),
        (((8, 1.5, 1.4, 1.6),), (), None, None, None),
    ],
    ids=["falls", "prices move it", "within the noise", "recovers", "one load, slower", "one load, faster"],
)
def test_plain_decoding_is_cheaper_from_the_load_on_where_the_speed_up_is_below_the_ratio_of_prices(
    ratios: tuple[tuple[int, float, float, float], ...],
    prices: tuple[float, ...],
    level: int | None,
    shown: bool | None,
    text: str | None,
) -> None:
    content = plan_content(concurrency=[1, 8, 64])
    for arm, price in zip(content["arms"], prices, strict=False):
        arm["usd_per_hour"] = price
    said = {"class": "chat", "baseline": "steady", "treatment": "spec", "metric": "output_tokens_per_s"}
    names = ("concurrency", "ratio", "ci_low", "ci_high")
    found = crossovers(from_dict(content), [said | dict(zip(names, one, strict=True)) for one in ratios])
    assert len(found) == (text is not None)
    for one in found:
        assert (one["concurrency_from_which_plain_is_cheaper"], one["shown"]) == (level, shown)
        assert text in one["text"]
        assert ("same price" in one["text"]) == (not prices)
