from __future__ import annotations

from benchmark.measure.extent import extent
from benchmark.measure.journal import RawRun
from benchmark.measure.records import BlockRecord
from tests.benchmark.records import answered, raw_run


def block(duration_s: float) -> BlockRecord:
    return BlockRecord(
        run="r1",
        arm="steady",
        class_="chat",
        concurrency=2,
        rate_per_s=None,
        round=1,
        started_unix_s=0.0,
        duration_s=duration_s,
        client_lag_s=0.0,
    )


def of(raw: RawRun, *blocks: BlockRecord) -> tuple[int, bool]:
    found = extent(raw.plan, RawRun(raw.sittings, raw.requests, blocks))
    return found.requests_planned, found.complete


def test_rounds_multiply_what_is_planned() -> None:
    raw = raw_run(answered(), rounds=3, requests=6)
    assert of(raw) == (2 * 2 * 6 * 3, False)


def test_a_plan_with_a_duration_is_complete_when_its_time_is_over_and_its_round_whole() -> None:
    prompts = [{"id": "a", "class": "chat", "prompt": "p"}]
    records = [answered(arm, pair, round=pair + 1) for arm in ("steady", "spec") for pair in (0, 1)]
    raw = raw_run(*records, duration_s=100, requests=1, prompts=prompts)
    assert of(raw, block(60.0), block(60.0)) == (4, True)
    assert of(raw, block(60.0)) == (4, False)
    assert of(raw_run(*records[:3], duration_s=100, requests=1, prompts=prompts), block(120.0)) == (4, False)
