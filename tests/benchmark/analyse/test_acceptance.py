from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.benchmark.records import answered, counted, counted_drafts, failed
from trnspec.benchmark.analyse.acceptance import acceptance, tokens_per_step
from trnspec.benchmark.measure.records import BlockRecord, RequestRecord
from trnspec.benchmark.plan import PlannedArm

GENERATED = "vllm:generation_tokens_total"
ARM = PlannedArm(name="spec", url="http://b/v1", speculative_tokens=4, max_tokens_per_step=4)
PLAIN = PlannedArm(name="plain", url="http://a/v1")
COUNTED = counted_drafts(steps=10, accepted=25, survivors=(10, 7.5))
OTHER = counted_drafts(steps=10, accepted=15, survivors=(6, 1), begun=90)
FEW = counted_drafts(steps=2, accepted=3, survivors=(1, 1), begun=5)
RESTARTED = replace(FEW, counters_before=FEW.counters_after, counters_after=FEW.counters_before)
STEPS, TOKENS = (counted({GENERATED: 100}, {GENERATED: 100 + more}) for more in (7, 10))
"""One answer in seven (its prefill and six steps), and as many tokens as it has."""
SUMS = {"num_spec_steps": 4, "num_accepted_draft_tokens": 8}
SAID = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10, "acceptance_histogram": [0, 1, 0, 3]}


def of(*tokens: int, **changes: Any) -> RequestRecord:
    """An answer in chunks of so many tokens after the first."""
    times = tuple(0.1 + 0.1 * i for i in range(len(tokens) + 1))
    return answered("spec", chunk_s=times, chunk_tokens=(1, *tokens), **changes)


CHUNKS, MERGED, SINGLE = of(4, 2, 3), of(9, 9), answered("spec", chunk_s=tuple(i * 0.015 for i in range(19)))
ELSEWHERE, NOT_STEPS = "by position: tokens per chunk", "chunks hold 1.00 tokens, but a step yields 3.00"


@pytest.mark.parametrize(
    ("arm", "records", "blocks", "source", "tokens", "positions", "told"),
    [
        (ARM, [of(1, 1, spec_stats=SAID)], [COUNTED], "server per-request", 3.5, [1, 0.75, 0.75], None),
        (ARM, [of(4, 2, spec_stats=SUMS)], [], "server per-request", 3.0, [1, 1, 1], ELSEWHERE),
        (ARM, [answered("spec", chunk_s=tuple(i / 10 for i in range(41)), spec_stats=SUMS)], [], "server per-request", 3.0, None, NOT_STEPS),
        (ARM, [of(4, 2, spec_stats=SAID | {"acceptance_histogram": [2, 1]})], [], "server per-request", 3.5, [1, 1, 1], ELSEWHERE),
        (ARM, [CHUNKS], [COUNTED, OTHER], "server counters", 3.0, [0.8, 0.425], None),
        (ARM, [CHUNKS], [COUNTED, RESTARTED], "tokens per chunk", 3.0, [1.0, 2 / 3, 2 / 3], None),
        (ARM, [CHUNKS], [COUNTED, replace(COUNTED, counters_after=None)], "tokens per chunk", 3.0, [1.0, 2 / 3, 2 / 3], None),
        (ARM, [CHUNKS], [COUNTED], "server counters", 3.5, [1.0, 0.75], None),
        (ARM, [MERGED], [COUNTED], "server counters", 3.5, [1.0, 0.75], "2 of 2 chunks hold more"),
        (ARM, [of(1, 1, spec_stats=SAID), CHUNKS], [], "tokens per chunk", 2.2, [0.75, 0.5, 0.5], None),
        (ARM, [CHUNKS], [], "tokens per chunk", 3.0, [1.0, 2 / 3, 2 / 3], None),
        (ARM, [CHUNKS], [TOKENS], "tokens per chunk", 3.0, [1.0, 2 / 3, 2 / 3], None),
        (ARM, [CHUNKS, failed("spec")], [STEPS], "tokens per chunk", 3.0, [1.0, 2 / 3, 2 / 3], None),
        (ARM, [SINGLE], [STEPS], "generation counter", 3.0, None, f"{NOT_STEPS} by generation counter: a chunk is not a step here"),
        (ARM, [of(4, 2, 3, 3, 3, 3)], [STEPS], "generation counter", 3.0, [1, 5 / 6, 5 / 24], ELSEWHERE),
        (ARM, [of(9, 2)], [], "unknown", None, None, "1 of 2 chunks hold more than the 4 tokens"),
        (ARM, [answered("spec", chunk_tokens=None, completion_tokens=13)], [], "unknown", None, None, "chunks hold 6.00 tokens, a step yields 1 to 4"),
        (PLAIN, [of(2, 1)], [], "plain decoding", 1.0, None, "1 of 2 chunks hold more than the 1 tokens"),
        (PLAIN, [answered()], [], "tokens per chunk", 1.0, None, None)
    ],
    ids=["server's own", "positions of chunks", "chunks are not steps", "contradicts its sum",
         "two blocks", "restarted", "block without", "counters", "counters, merged", "one without", "chunks",
         "counts tokens", "unfinished", "steps", "steps, positions of chunks", "merged", "totals", "plain, merged", "plain"]
)  # fmt: skip
def test_the_servers_own_statistics_go_first_then_its_counters_then_chunks_where_they_are_steps(
    arm: PlannedArm,
    records: list[RequestRecord],
    blocks: list[BlockRecord],
    source: str,
    tokens: float | None,
    positions: list[float] | None,
    told: str | None,
) -> None:
    found = acceptance(arm, records, tokens_per_step(arm, records, blocks))
    assert (found["source"], found["tokens_per_step"]) == (source, tokens and pytest.approx(tokens))
    assert found["per_position"] == (positions and pytest.approx(positions))
    assert (told or "") in f"{found['note']}, {found['caution']}"
    assert (found["caution"] is None) == (told in (None, ELSEWHERE))
    assert ("does not speculate" in found["note"]) == (arm is PLAIN)


@pytest.mark.parametrize(("steps", "accepted"), [(4, 400), (4, -10), (-4, 10), (10**400, 10)])
def test_counts_that_no_engine_has_are_not_taken_from_a_server(steps: int, accepted: int) -> None:
    said = {"num_spec_steps": steps, "num_accepted_draft_tokens": accepted}
    found = tokens_per_step(ARM, [of(4, 2, spec_stats=said)])
    assert (found.source, found.tokens_per_step) == ("tokens per chunk", 3.0)


def test_a_drafting_step_that_is_shorter_than_a_plain_one_is_not_believed() -> None:
    found = tokens_per_step(ARM, [SINGLE], plain_s=0.045)
    assert (found.source, found.tokens_per_step) == ("unknown", None)
    assert "a chunk takes 15.0 ms at most and a plain step 45.0 ms" in (found.why_chunks_are_not_steps or "")
    assert tokens_per_step(ARM, [SINGLE], plain_s=0.0155).tokens_per_step == 1.0
