"""Rounds, durations, rates, arms at once: what a run does beside one pass at a fixed concurrency."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.measure import journal
from benchmark.measure.loader import counters_in
from benchmark.measure.records import BlockRecord, RequestRecord
from tests.benchmark.conftest import WritePlan
from tests.benchmark.endpoint import Endpoint, Timing

RAW = ("--classes", "raw", "--warmup", "0")
METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
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


def carried_out(plan: Path, out: Path, *options: str) -> tuple[list[RequestRecord], list[BlockRecord]]:
    assert main(["run", "--plan", str(plan), "--out", str(out), *RAW, *options]) == 0
    raw = journal.read(out)
    return list(raw.requests), list(raw.blocks)


def test_each_round_asks_every_cell_again_with_new_nonces(write_plan: WritePlan, tmp_path: Path) -> None:
    requests, blocks = carried_out(write_plan(), tmp_path / "out", "--rounds", "3")
    assert len(requests) == 3 * 12
    assert {request.round for request in requests} == {block.round for block in blocks} == {1, 2, 3}
    for arm in ("steady", "spec"):
        nonces = [request.nonce for request in requests if request.arm == arm]
        assert len(set(nonces)) == len(nonces) == 18


def test_rounds_are_begun_until_the_time_is_over_and_then_never_again(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    plan, out = write_plan(), tmp_path / "out"
    requests, blocks = carried_out(plan, out, "--duration", "1.5s")
    assert len(requests) % 12 == 0
    assert sum(block.duration_s for block in blocks) >= 1.5
    assert sum(block.duration_s for block in blocks if block.round < blocks[-1].round) < 1.5
    assert json.loads((out / "summary.json").read_text())["run"]["complete"] is True
    endpoint.seen.clear()
    carried_out(plan, out, "--duration", "1.5s")
    assert endpoint.seen == []


def test_arrivals_at_a_rate_do_not_wait_for_answers(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    endpoint.arms["spec"] = endpoint.arms["steady"] = Timing(first_s=0.3, step_s=0.01)
    options = ("--rate", "40", "--requests", "24")
    requests, blocks = carried_out(write_plan(), tmp_path / "out", *options)
    assert {(r.concurrency, r.rate_per_s) for r in requests} == {(None, 40.0)}
    assert {(b.concurrency, b.rate_per_s) for b in blocks} == {(None, 40.0)}
    due: dict[str, list[float]] = {"steady": [], "spec": []}
    for request in sorted(requests, key=lambda r: r.pair_id):
        assert request.scheduled_s is not None
        due[request.arm].append(request.scheduled_s)
    assert due["steady"] == due["spec"], "both arms meet the same arrivals"
    steady = sorted((seen for seen in endpoint.seen if seen.arm == "steady"), key=lambda seen: seen.began)
    assert any(later.began < earlier.ended for earlier, later in pairwise(steady)), "requests overlap"


def test_arms_are_loaded_at_once_only_when_asked(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    carried_out(write_plan(), tmp_path / "out", "--simultaneous")
    asked = {arm: [seen for seen in endpoint.seen if seen.arm == arm] for arm in ("steady", "spec")}
    assert any(
        one.began < other.ended and other.began < one.ended
        for one in asked["steady"]
        for other in asked["spec"]
    )


def test_a_block_records_the_servers_counters_around_it(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    def spec() -> str:
        answers = sum(seen.arm == "spec" for seen in endpoint.seen)
        return f'vllm:spec_decode_num_drafts_total{{engine="0"}} {4 * answers}\n'

    endpoint.metrics["spec"] = spec
    _, blocks = carried_out(write_plan(), tmp_path / "out")
    name = "vllm:spec_decode_num_drafts_total"
    grown = [
        b.counters_after[name] - b.counters_before[name]
        for b in blocks
        if b.counters_before and b.counters_after
    ]
    assert sum(grown) == 4 * 6
    assert {b.counters_before for b in blocks if b.arm == "steady"} == {None}


def test_a_forced_length_is_asked_for_and_recorded(
    write_plan: WritePlan, tmp_path: Path, endpoint: Endpoint
) -> None:
    requests, _ = carried_out(write_plan(), tmp_path / "out", "--ignore-eos")
    assert all(request.forced_length for request in requests)
    bodies: list[dict[str, Any]] = [seen.body for seen in endpoint.seen]
    assert {(body["ignore_eos"], body["min_tokens"]) for body in bodies} == {(True, 13)}


def test_a_client_that_comes_late_is_warned_of(
    write_plan: WritePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmark.measure.loader.LATE_S", -1.0)
    _, blocks = carried_out(write_plan(), tmp_path / "out")
    assert "warning: this client came up to" in capsys.readouterr().err
    assert all(0 <= block.client_lag_s < 5 for block in blocks)


def test_counters_are_summed_over_engines_and_kept_by_position() -> None:
    assert counters_in(METRICS) == {
        "vllm:spec_decode_num_drafts_total": 15.0,
        "vllm:spec_decode_num_draft_tokens_total": 30.0,
        "vllm:spec_decode_num_accepted_tokens_total": 21.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total/0": 13.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total/1": 8.0,
    }
    assert counters_in("vllm:num_requests_running 1\nvllm:spec_decode_num_drafts_total many\n") is None
