from __future__ import annotations

from dataclasses import replace

import pytest

from benchmark.analyse.summary import summarise
from tests.benchmark.analyse.process import DRAFT_S, PLAIN_S, VERIFY_S, Process
from tests.benchmark.records import answered, raw_run

FAST = Process(conditional=(0.95,) * 7, k=7)
SLOW = Process(conditional=(0.4,) * 7, k=7)


@pytest.mark.parametrize(("engine", "outcome"), [(FAST, "should be faster"), (SLOW, "should be slower")])
def test_a_speed_up_is_explained_by_what_steps_yield_and_cost(engine: Process, outcome: str) -> None:
    summary = summarise(engine.run())
    (said,) = summary["explanations"]
    assert said["step_time_ratio"] == pytest.approx((VERIFY_S + 7 * DRAFT_S) / PLAIN_S, rel=0.01)
    assert said["break_even_tokens_per_step"] == said["step_time_ratio"]
    assert said["predicted_speed_up"] == pytest.approx(said["measured_speed_up"], rel=0.03)
    assert said["measured_speed_up"] == summary["comparisons"][0]["ratio"]
    assert outcome in said["text"]
    assert "what the steps alone explain" not in said["text"]


def test_what_the_steps_do_not_explain_is_pointed_out() -> None:
    run = FAST.run()
    held_up = tuple(
        replace(r, chunk_s=(*r.chunk_s[:-1], r.chunk_s[-1] + 1.0), e2e_s=r.chunk_s[-1] + 1.0)
        if r.arm == "spec"
        else r
        for r in run.requests
    )
    (said,) = summarise(replace(run, requests=held_up))["explanations"]
    assert "below what the steps alone explain (prefills or a queue between the steps)" in said["text"]


def test_without_token_counts_there_is_no_explanation_but_no_gap_either() -> None:
    untold = [answered("spec", i, chunk_tokens=None, completion_tokens=None) for i in range(6)]
    (said,) = summarise(raw_run(*untold, *(answered("steady", i) for i in range(6))))["explanations"]
    assert said["predicted_speed_up"] is None
    assert "not known" in said["text"]


def test_a_class_without_pairs_is_not_explained() -> None:
    assert summarise(raw_run(answered("steady", 0)))["explanations"] == []


def test_chunks_that_share_a_packet_do_not_stop_the_summary() -> None:
    packed = (0.1, 0.2, 0.2, 0.2, 0.2, 0.3)
    requests = [
        answered(arm, pair, chunk_s=times)
        for pair in range(6)
        for arm, times in (("steady", packed), ("spec", (0.1, 0.15, 0.2, 0.25)))
    ]
    (said,) = summarise(raw_run(*requests))["explanations"]
    assert said["step_time_ratio"] is None or said["step_time_ratio"] > 0
