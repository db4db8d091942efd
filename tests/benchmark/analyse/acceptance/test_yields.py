from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmark.analyse.acceptance.yields import acceptance as described
from benchmark.analyse.acceptance.yields import known
from benchmark.measure.records import BlockRecord, RequestRecord
from benchmark.plan import Arm
from tests.benchmark.records import answered, counted, counted_drafts, failed


def acceptance(
    arm: Arm,
    records: Sequence[RequestRecord],
    blocks: Sequence[BlockRecord] = (),
    plain_s: float | None = None,
) -> dict[str, Any]:
    return described(arm, records, known(arm, records, blocks, plain_s))


GENERATED = "vllm:generation_tokens_total"
ARM = Arm(name="spec", url="http://b/v1", speculative_tokens=4, max_tokens_per_step=4)
PLAIN = Arm(name="plain", url="http://a/v1")
CHUNKS = answered("spec", chunk_s=(0.1, 0.2, 0.3, 0.4), chunk_tokens=(1, 4, 2, 3))
SINGLE = answered("spec", chunk_s=tuple(0.1 + i * 0.015 for i in range(19)))
COUNTED = counted_drafts(steps=10, accepted=25, survivors=(10, 7.5))
SAID = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10, "acceptance_histogram": [0, 1, 0, 3]}
STEPS = counted({GENERATED: 100}, {GENERATED: 107})
"""One answer in seven: its prefill and six steps."""


@pytest.mark.parametrize(
    ("arm", "records", "blocks", "source", "tokens", "per_position"),
    [
        (ARM, [answered("spec", spec_stats=SAID)], [COUNTED], "server per-request", 3.5, [1, 0.75, 0.75]),
        (ARM, [CHUNKS], [COUNTED], "server counters", 3.5, [1.0, 0.75]),
        (ARM, [answered("spec", chunk_tokens=(1, 9, 9))], [COUNTED], "server counters", 3.5, [1.0, 0.75]),
        (ARM, [answered("spec", spec_stats=SAID), CHUNKS], [], "tokens per chunk", 2.2, [0.75, 0.5, 0.5]),
        (ARM, [CHUNKS], [], "tokens per chunk", 3.0, [1.0, 2 / 3, 2 / 3]),
        (ARM, [CHUNKS], [counted({GENERATED: 100}, {GENERATED: 110})], "tokens per chunk", 3.0, [1.0, 2 / 3, 2 / 3]),
        (ARM, [CHUNKS, failed("spec")], [STEPS], "tokens per chunk", 3.0, [1.0, 2 / 3, 2 / 3]),
        (ARM, [SINGLE], [STEPS], "generation counter", 3.0, None),
        (PLAIN, [answered(chunk_tokens=(1, 2, 1))], [], "plain decoding", 1.0, None),
        (PLAIN, [answered()], [], "tokens per chunk", 1.0, None),
    ],
    ids=["server's own", "counters", "merged chunks", "one without", "chunks", "counts tokens", "unfinished", "steps",
         "plain, merged", "plain"],
)  # fmt: skip
def test_the_servers_own_statistics_go_first_then_its_counters_then_chunks(
    arm: Arm,
    records: list[RequestRecord],
    blocks: list[BlockRecord],
    source: str,
    tokens: float,
    per_position: list[float] | None,
) -> None:
    found = acceptance(arm, records, blocks)
    assert (found["source"], found["tokens_per_step"]) == (source, pytest.approx(tokens))
    assert found["per_position"] == (per_position and pytest.approx(per_position))
    assert ("does not speculate" in found["note"]) == (arm is PLAIN)


def test_positions_may_come_from_the_next_source_where_it_tells_the_same() -> None:
    sums = {"num_spec_steps": 4, "num_accepted_draft_tokens": 8}
    found = acceptance(ARM, [answered("spec", chunk_tokens=(1, 4, 2), spec_stats=sums)])
    assert (found["source"], found["tokens_per_step"]) == ("server per-request", 3.0)
    assert found["per_position"]
    assert "by position: tokens per chunk" in found["note"]
    single = answered("spec", chunk_s=tuple(i / 10 for i in range(41)), spec_stats=sums)
    other = acceptance(ARM, [single])
    assert (other["tokens_per_step"], other["per_position"]) == (3.0, None)
    assert "chunks hold 1.00 tokens, but a step yields 3.00" in other["caution"]


def test_merged_chunks_are_no_steps_and_no_fact() -> None:
    found = acceptance(ARM, [answered("spec", chunk_tokens=(1, 9, 2))])
    assert (found["steps_above_ceiling"], found["per_position"]) == (1, None)
    assert (found["source"], found["tokens_per_step"]) == ("unknown", None)
    assert "1 of 2 chunks hold more than the 4 tokens" in found["caution"]


@pytest.mark.parametrize(
    "said",
    [
        {"num_spec_steps": 4, "num_accepted_draft_tokens": 400},
        {"num_spec_steps": 4, "num_accepted_draft_tokens": -10},
        {"num_spec_steps": -4, "num_accepted_draft_tokens": 10},
        {"num_spec_steps": 10**400, "num_accepted_draft_tokens": 10},
    ],
)
def test_counts_that_no_engine_has_are_not_taken_from_a_server(said: dict[str, int]) -> None:
    found = acceptance(ARM, [answered("spec", chunk_tokens=(1, 4, 2), spec_stats=said)])
    assert (found["source"], found["tokens_per_step"]) == ("tokens per chunk", 3.0)


def test_means_of_totals_that_no_step_yields_are_not_shown() -> None:
    found = acceptance(ARM, [answered("spec", chunk_tokens=None, completion_tokens=13)])
    assert (found["source"], found["tokens_per_step"]) == ("unknown", None)
    assert "chunks hold 6.00 tokens, a step yields 1 to 4" in found["note"]


def test_the_counter_of_generated_tokens_is_a_source_where_it_counts_steps() -> None:
    times = (0.1, *(0.2 + i for i in range(6)))
    found = acceptance(ARM, [answered("spec", chunk_s=times, chunk_tokens=(1, 4, 2, 3, 3, 3, 3))], [STEPS])
    assert (found["source"], found["tokens_per_step"], found["steps"]) == ("generation counter", 3.0, 6)
    assert found["per_position"], "of chunks, which tell the same"
    assert found["caution"] is None
    why = "chunks hold 1.00 tokens, but a step yields 3.00 by generation counter: a chunk is not a step here"
    assert acceptance(ARM, [SINGLE], [STEPS])["caution"] == why


def test_a_drafting_step_that_is_shorter_than_a_plain_one_is_not_believed() -> None:
    found = acceptance(ARM, [SINGLE], plain_s=0.045)
    assert (found["source"], found["tokens_per_step"]) == ("unknown", None)
    assert "a chunk takes 15.0 ms at most and a plain step 45.0 ms" in found["caution"]
    assert acceptance(ARM, [SINGLE], plain_s=0.0155)["tokens_per_step"] == 1.0
