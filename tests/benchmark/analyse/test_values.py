"""The numbers of a request and of a cell, and what became of drafts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.benchmark.analyse.process import Process
from tests.benchmark.records import WALL, answered, block, failed
from trnspec.benchmark.analyse.delivered import goodput, throughput
from trnspec.benchmark.analyse.request_table import Requests, table
from trnspec.benchmark.analyse.values import of_steps, request_values
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.plan import PlannedArm

ARM = PlannedArm(name="steady", url="http://a/v1")
TOTAL: dict[str, Any] = {"chunk_tokens": None, "completion_tokens": 9}
UNTOLD: dict[str, Any] = {"chunk_tokens": None, "completion_tokens": None}
SAID = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10}


@pytest.mark.parametrize(
    ("record", "ceiling", "expected"),
    [
        (
            answered(chunk_s=(0.1, 0.145, 0.19, 0.235), chunk_tokens=(1, 4, 5, 3), stream_chunks=5),
            7,
            {"tpot_s": 0.135 / 12, "tokens_per_step": 4, "output_tokens_per_s": 13 / 0.235, "llmperf_inter_token_latency_s": 0.235 / 5}
        ),
        (answered(**TOTAL), 7, {"tpot_s": 0.2 / 8, "tokens_per_step": 4}),
        (answered(**UNTOLD), 1, {"tpot_s": 0.1}),
        (answered(**UNTOLD), 7, {"tpot_s": None, "tokens_per_step": None, "output_tokens_per_s": None, "e2e_s": 0.3}),
        (answered(chunk_s=(0.1,)), 1, {"tpot_s": None, "ttft_s": 0.1}),
        (answered(chunk_s=(0.1, 0.1)), 1, {"tpot_s": None}),
        (answered(chunk_tokens=(1, 2, 2), spec_stats=SAID), 7, {"tokens_per_step": 3.5, "tpot_s": 0.2 / 4}),
        (answered(chunk_tokens=(1, 9, 9)), 7, {"tokens_per_step": None, "tpot_s": 0.2 / 18}),
        (failed(), 1, {"ttft_s": None, "e2e_s": None})
    ],
    ids=["time per token, not per chunk", "a total gives means", "one token a step", "untold", "one chunk", "one piece",
         "the server's steps", "merged", "failed"]
)  # fmt: skip
def test_what_is_known_of_a_request_is_by_token_and_what_is_not_is_absent_and_never_zero(
    record: RequestRecord, ceiling: int, expected: dict[str, float | None]
) -> None:
    found = request_values(record, ceiling)
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)


def test_survival_is_the_share_of_steps_that_yielded_more() -> None:
    found = of_steps([[1, 2, 3, 3, 1]], ceiling=3)
    assert found.tokens_per_step == 2.0
    # The last step of an answer may have been cut: it was never seen to fail.
    assert (found.tried, found.passed) == ((4, 3), (3, 2))
    assert found.survival() == pytest.approx((3 / 4, 3 / 4 * 2 / 3))
    assert of_steps([[1, 1, 2]], ceiling=4).survival() == pytest.approx((1 / 3,))
    assert of_steps([[2, 9, 1, 1]], ceiling=2).tried == (2,), "a merged step counts nowhere"
    engine, dice = Process(conditional=(0.9,) * 7, k=7, tokens=20), random.Random(3)
    answers = [engine.steps(dice) for _ in range(4000)]
    assert of_steps(answers, 8).survival() == pytest.approx(engine.survival(7), rel=0.03)
    naive = sum(step > 7 for answer in answers for step in answer) / sum(map(len, answers))
    assert naive < 0.9 * engine.survival(7)[-1], "which cut answers would shorten"


def at(start_s: float, pair: int = 0, **changes: Any) -> RequestRecord:
    """Three tokens in 0.3 s, begun `start_s` after the run."""
    return answered(pair=pair, started_unix_s=WALL + start_s, **changes)


def of(*records: RequestRecord, ceiling: int = 1) -> Requests:
    return table(records, {"steady": ceiling})


def test_a_rate_is_over_the_time_an_arm_was_loaded_and_a_failed_request_delivers_nothing() -> None:
    alone = throughput(of(at(0.0), at(0.1), at(10.0)), [])
    assert alone is not None
    expected = {"loaded_s": 0.7, "output_tokens_per_s": 9 / 0.7}
    assert {name: alone[name] for name in expected} == pytest.approx(expected), "without the time between"
    blocks = [block(0.0, 0.5), block(10.0, 0.5, client_lag_s=0.03)]
    found = throughput(of(at(0.0), at(0.1), failed(), at(10.0), at(20.0)), blocks)
    assert found is not None
    assert (found["loaded_s"], found["client_lag_s"], found["requests_per_s"]) == pytest.approx((1, 0.03, 3))
    assert throughput(of(failed()), [block(0.0, 5.0)]) is None


def test_goodput_counts_requests_that_kept_every_limit_and_needs_limits_and_tokens() -> None:
    limits = {"ttft_s": 0.2, "tpot_s": 0.11}
    requests = of(at(0.0), at(0.0, 1, chunk_s=(0.4, 0.5)), failed(pair=2), at(0.2, 3))
    found = goodput(limits, requests, [block(0.0, 0.5)])
    assert found == {"slo": limits, "share": 0.5, "per_s": pytest.approx(4.0)}
    assert goodput(None, requests, []) is None
    untold = of(answered(**UNTOLD), ceiling=4)
    assert goodput(limits, untold, []) is None
    assert goodput({"ttft_s": 1.0}, untold, []) is not None
