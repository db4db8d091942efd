from __future__ import annotations

from dataclasses import replace

import pytest

from benchmark.analyse.cells import cost, goodput, throughput
from benchmark.measure.records import RequestRecord
from benchmark.plan import Arm
from tests.benchmark.records import WALL, answered, block, failed

ARM = Arm(name="steady", url="http://a/v1", usd_per_hour=18.0)


def at(start_s: float, pair: int = 0) -> RequestRecord:
    """Three tokens in 0.3 s, begun `start_s` after the run."""
    return replace(answered(pair=pair), started_unix_s=WALL + start_s)


def test_time_between_requests_is_not_loaded_time() -> None:
    found = throughput(ARM, [at(0.0), at(0.1), at(10.0)], [])
    assert found is not None
    assert found["loaded_s"] == pytest.approx(0.7)
    assert found["output_tokens_per_s"] == pytest.approx(9 / 0.7)
    assert found["mean_in_flight"] == pytest.approx(0.9 / 0.7)


def test_blocks_say_how_long_an_arm_was_loaded() -> None:
    blocks = [block(0.0, 0.5), block(10.0, 0.5, client_lag_s=0.03)]
    found = throughput(ARM, [at(0.0), at(0.1), at(10.0), at(20.0)], blocks)
    assert found is not None
    assert (found["loaded_s"], found["client_lag_s"]) == (1.0, 0.03)
    assert found["requests_per_s"] == pytest.approx(3.0)


def test_a_failed_request_delivers_nothing() -> None:
    assert throughput(ARM, [failed()], [block(0.0, 5.0)]) is None
    found = throughput(ARM, [at(0.0), failed()], [block(0.0, 0.6)])
    assert found is not None
    assert found["requests_per_s"] == pytest.approx(1 / 0.6)


def test_goodput_counts_requests_that_kept_every_limit() -> None:
    late = replace(answered(pair=1, chunk_s=(0.4, 0.5)), started_unix_s=WALL)
    records = [at(0.0), late, failed(pair=2), at(0.2, 3)]
    found = goodput({"ttft_s": 0.2, "tpot_s": 0.11}, ARM, records, [block(0.0, 0.5)])
    assert found == {"slo": {"ttft_s": 0.2, "tpot_s": 0.11}, "share": 0.5, "per_s": pytest.approx(4.0)}
    found = goodput({"tpot_s": 0.05}, ARM, [at(0.0)], [])
    assert found == {"slo": {"tpot_s": 0.05}, "share": 0.0, "per_s": 0.0}


def test_goodput_needs_limits_and_tokens() -> None:
    assert goodput(None, ARM, [at(0.0)], []) is None
    untold = answered(chunk_tokens=None, completion_tokens=None)
    several = ARM.model_copy(update={"max_tokens_per_step": 4})
    assert goodput({"tpot_s": 1.0}, several, [untold], []) is None
    assert goodput({"ttft_s": 1.0}, several, [untold], []) is not None


def test_cost_is_the_price_of_an_hour_over_its_tokens() -> None:
    found = cost(ARM, {"output_tokens_per_s": 100.0})
    assert found is not None
    assert found["usd_per_million_output_tokens"] == pytest.approx(50.0)
    assert cost(ARM.model_copy(update={"usd_per_hour": None}), {"output_tokens_per_s": 100.0}) is None
    assert cost(ARM, None) is None
    assert cost(ARM, {"output_tokens_per_s": None}) is None
