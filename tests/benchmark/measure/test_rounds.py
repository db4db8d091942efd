"""What a run does beside its cells at a fixed concurrency: the repeated cell, rates, counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.conftest import Captured, Run
from tests.benchmark.endpoint import Endpoint, Timing
from trnspec.benchmark.measure import journal
from trnspec.benchmark.measure.client import request_body
from trnspec.benchmark.measure.endpoints import counters_in
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import REPEATED

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
    def carried_out(options: str = "", **changes: Any) -> RawRun:
        assert run(f"--warmup 0 {options}", **{"only": "raw"} | changes) == 0
        return journal.read(out)

    return carried_out


def test_the_first_cell_is_measured_once_more_at_the_end(carried_out: CarriedOut, capsys: Captured) -> None:
    raw = carried_out("--concurrency 2,1")
    places = [(block.round, block.concurrency) for block in raw.blocks if block.arm == "spec"]
    assert places == [(1, 2)] * 4 + [(1, 1)] * 4 + [(REPEATED, 2)] * 2
    sent = sorted(raw.requests, key=lambda r: r.pair_id)
    first, again = (
        [
            r.prompt_id
            for r in sent
            if (r.arm, r.round, r.concurrency, r.block, r.phase) == ("spec", round_, 2, 1, "measured")
        ]
        for round_ in (1, REPEATED)
    )
    assert first[:8] == again[:8], "with the prompts that it had at first"
    said = capsys.readouterr().err
    assert "[20/20]" in said
    assert "repeat of raw, 2 concurrent requests, steady" in said
    assert str(REPEATED) not in said


@pytest.mark.slow
def test_arrivals_at_a_rate_do_not_wait_for_answers(carried_out: CarriedOut, endpoint: Endpoint) -> None:
    endpoint.arms["spec"] = endpoint.arms["steady"] = Timing(first_s=0.06, step_s=0.005)
    raw = carried_out("--rate 40 --requests 12 --max-tokens 3")
    assert {r.phase for r in raw.requests} == {"ramp", "measured", "drain"}
    assert {(r.concurrency, r.rate_per_s) for r in raw.requests} == {(None, 40.0)}
    assert {(b.concurrency, b.rate_per_s) for b in raw.blocks} == {(None, 40.0)}
    due_s = {(r.arm, r.pair_id): r.scheduled_s or 0.0 for r in raw.requests}
    steady = [r.pair_id for r in raw.requests if r.arm == "steady" and r.phase == "measured"]
    for before, after in pairwise(steady):
        if before[:-4] == after[:-4] and ("spec", before) in due_s and ("spec", after) in due_s:
            gaps_s = [due_s[arm, after] - due_s[arm, before] for arm in ("steady", "spec")]
            assert gaps_s[0] == pytest.approx(gaps_s[1], abs=1e-5), "both arms meet the same arrivals"
    for block in raw.blocks:
        own = [r for r in raw.requests if (r.arm, r.round, r.block) == (block.arm, block.round, block.block)]
        last_s = max((r.scheduled_s or 0.0) + (r.e2e_s or 0.0) for r in own if r.phase == "measured")
        at_s = [r.scheduled_s or 0.0 for r in own]
        late_s = 0.5 + block.client_lag_s
        assert max(at_s) >= last_s - late_s, "arrivals go on until the last has ended"
        from_s, until_s = block.steady_from_s or 0.0, block.steady_until_s or 0.0
        phases = ["ramp" if one < from_s else "drain" if one >= until_s else "measured" for one in at_s]
        assert [r.phase for r in own] == phases
    seen = sorted((one for one in endpoint.seen if one.arm == "steady"), key=lambda one: one.began)
    assert any(later.began < earlier.ended for earlier, later in pairwise(seen)), "requests overlap"


@pytest.mark.slow
def test_a_late_client_adds_to_its_times(carried_out: CarriedOut, monkeypatch: pytest.MonkeyPatch) -> None:
    """From when a request was to be sent, not from when the client came to it."""

    def slow(*args: Any) -> bytes:
        time.sleep(0.02)
        return request_body(*args)

    monkeypatch.setattr("trnspec.benchmark.measure.loader.request_body", slow)
    raw = carried_out("--rate 10 --requests 1 --max-tokens 3", only="chat")
    assert all((one.ttft_s or 0.0) >= 0.02 for one in raw.measured)


def test_answers_have_their_full_length_where_that_is_asked(
    carried_out: CarriedOut, endpoint: Endpoint
) -> None:
    assert all(request.forced_length for request in carried_out(ignore_eos=True).requests)
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
    assert grown == 4 * sum(seen.arm == "spec" for seen in endpoint.seen)


def test_a_client_that_comes_late_is_warned_of(
    carried_out: CarriedOut, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("trnspec.benchmark.measure.progress.LATE_S", -1.0)
    assert all(0 <= block.client_lag_s < 5 for block in carried_out().blocks)
    assert capsys.readouterr().err.count("warning: this client was late in 12 blocks, by ") == 1


def test_counters_are_summed_over_engines_and_kept_by_position() -> None:
    assert counters_in(METRICS) == {
        "vllm:spec_decode_num_drafts_total": 15.0,
        "vllm:spec_decode_num_draft_tokens_total": 30.0,
        "vllm:spec_decode_num_accepted_tokens_total": 21.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total/0": 13.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total/1": 8.0,
    }
    assert counters_in("vllm:num_requests_running 1\nvllm:spec_decode_num_drafts_total many\n") is None
