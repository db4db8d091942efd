"""Rounds, durations, rates, arms at once: what a run does beside one pass at a fixed concurrency."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from benchmark.measure import journal
from benchmark.measure.journal import RawRun
from benchmark.measure.server_metrics import counters_in
from tests.benchmark.conftest import Run
from tests.benchmark.endpoint import Endpoint, Timing
from tests.benchmark.measure.test_run import summary, together

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 5.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30
vllm:spec_decode_num_accepted_tokens_total 21
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0",engine="1"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 8.0
vllm:num_requests_running{engine="0"} 1.0
"""


CarriedOut = Callable[..., RawRun]


@pytest.fixture
def carried_out(run: Run, out: Path) -> CarriedOut:
    def carried_out(options: str = "") -> RawRun:
        assert run(f"--classes raw --warmup 0 {options}") == 0
        return journal.read(out)

    return carried_out


def test_rounds_are_begun_until_the_time_is_over_and_then_never_again(
    carried_out: CarriedOut, out: Path, endpoint: Endpoint
) -> None:
    raw = carried_out("--duration 0.6s")
    assert len(raw.requests) % 12 == 0
    assert sum(block.duration_s for block in raw.blocks) >= 0.6
    assert sum(block.duration_s for block in raw.blocks if block.round < raw.blocks[-1].round) < 0.6
    assert summary(out)["run"]["complete"] is True
    endpoint.seen.clear()
    carried_out("--duration 0.6s")
    assert endpoint.seen == []
    journal_of = out / "requests.jsonl"
    opening, lost, *rest = journal_of.read_text().splitlines(keepends=True)
    journal_of.write_text(opening + "".join(rest))
    carried_out("--duration 0.6s")
    assert [seen.arm for seen in endpoint.seen] == [json.loads(lost)["arm"]], (
        "a round that was begun is ended"
    )


def test_arrivals_at_a_rate_do_not_wait_for_answers(carried_out: CarriedOut, endpoint: Endpoint) -> None:
    endpoint.arms["spec"] = endpoint.arms["steady"] = Timing(first_s=0.1, step_s=0.01)
    raw = carried_out("--rate 40 --requests 12 --max-tokens 3")
    assert {(r.concurrency, r.rate_per_s) for r in raw.requests} == {(None, 40.0)}
    assert {(b.concurrency, b.rate_per_s) for b in raw.blocks} == {(None, 40.0)}
    due: dict[str, list[float | None]] = {"steady": [], "spec": []}
    for request in sorted(raw.requests, key=lambda r: r.pair_id):
        due[request.arm].append(request.scheduled_s)
    assert None not in due["steady"]
    assert due["steady"] == due["spec"], "both arms meet the same arrivals"
    steady = sorted((seen for seen in endpoint.seen if seen.arm == "steady"), key=lambda seen: seen.began)
    assert any(later.began < earlier.ended for earlier, later in pairwise(steady)), "requests overlap"


def test_arms_are_loaded_at_once_with_forced_lengths_only_when_asked(
    carried_out: CarriedOut, endpoint: Endpoint
) -> None:
    raw = carried_out("--simultaneous --ignore-eos")
    asked = {arm: [seen for seen in endpoint.seen if seen.arm == arm] for arm in ("steady", "spec")}
    assert any(together(one, other) for one in asked["steady"] for other in asked["spec"])
    assert all(request.forced_length for request in raw.requests)
    assert {(seen.body["ignore_eos"], seen.body["min_tokens"]) for seen in endpoint.seen} == {(True, 13)}


def test_a_block_records_the_servers_counters_around_it(carried_out: CarriedOut, endpoint: Endpoint) -> None:
    def spec() -> str:
        answers = sum(seen.arm == "spec" for seen in endpoint.seen)
        return f'vllm:spec_decode_num_drafts_total{{engine="0"}} {4 * answers}\n'

    endpoint.metrics["spec"] = spec
    name, grown = "vllm:spec_decode_num_drafts_total", 0.0
    for block in carried_out().blocks:
        if block.arm == "steady":
            assert (block.counters_before, block.counters_after) == (None, None)
        elif block.counters_before and block.counters_after:
            grown += block.counters_after[name] - block.counters_before[name]
    assert grown == 4 * 6


def test_a_client_that_comes_late_is_warned_of(
    carried_out: CarriedOut, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmark.measure.loader.LATE_S", -1.0)
    assert all(0 <= block.client_lag_s < 5 for block in carried_out().blocks)
    assert "warning: this client was up to" in capsys.readouterr().err


def test_counters_are_summed_over_engines_and_kept_by_position() -> None:
    assert counters_in(METRICS) == {
        "vllm:spec_decode_num_drafts_total": 15.0,
        "vllm:spec_decode_num_draft_tokens_total": 30.0,
        "vllm:spec_decode_num_accepted_tokens_total": 21.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total/0": 13.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total/1": 8.0,
    }
    assert counters_in("vllm:num_requests_running 1\nvllm:spec_decode_num_drafts_total many\n") is None
