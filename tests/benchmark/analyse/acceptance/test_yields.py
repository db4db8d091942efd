from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmark.analyse.acceptance.yields import acceptance as described
from benchmark.analyse.acceptance.yields import known
from benchmark.measure.records import (
    COUNTED_ACCEPTED,
    COUNTED_DRAFTS,
    COUNTED_PER_POSITION,
    BlockRecord,
    RequestRecord,
)
from benchmark.plan import Arm
from tests.benchmark.records import answered, counted, failed


def acceptance(
    arm: Arm,
    records: Sequence[RequestRecord],
    blocks: Sequence[BlockRecord] = (),
    plain_s: float | None = None,
) -> dict[str, Any]:
    return described(arm, records, known(arm, records, blocks, plain_s))


GENERATED = "vllm:generation_tokens_total"
ARM = Arm(name="spec", url="http://b/v1", speculative_tokens=4, max_tokens_per_step=4)
CHUNKS = answered("spec", chunk_s=(0.1, 0.2, 0.3, 0.4), chunk_tokens=(1, 4, 2, 3))
COUNTED = counted(
    {COUNTED_DRAFTS: 0, COUNTED_ACCEPTED: 0},
    {
        COUNTED_DRAFTS: 10,
        COUNTED_ACCEPTED: 25,
        f"{COUNTED_PER_POSITION}/0": 10,
        f"{COUNTED_PER_POSITION}/1": 15 / 2,
    },
)
SAID = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10, "acceptance_histogram": [0, 1, 0, 3]}


def test_the_servers_own_statistics_go_first_then_its_counters_then_chunks() -> None:
    said = acceptance(ARM, [answered("spec", spec_stats=SAID)], [COUNTED])
    assert (said["source"], said["tokens_per_step"]) == ("server per-request", 3.5)
    counted = acceptance(ARM, [CHUNKS], [COUNTED])
    assert (counted["source"], counted["tokens_per_step"]) == ("server counters", 3.5)
    assert counted["per_position"] == pytest.approx([1.0, 0.75])
    one_without = acceptance(ARM, [answered("spec", spec_stats=SAID), CHUNKS])
    assert one_without["source"] == "tokens per chunk"
    seen = acceptance(ARM, [CHUNKS])
    assert (seen["source"], seen["tokens_per_step"]) == ("tokens per chunk", 3.0)
    assert seen["per_position"] == pytest.approx([1.0, 1 / 1 * 2 / 3, 2 / 3])


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


def test_where_the_server_counts_merged_chunks_do_not_matter() -> None:
    found = acceptance(ARM, [answered("spec", chunk_tokens=(1, 9, 9))], [COUNTED])
    assert (found["source"], found["tokens_per_step"]) == ("server counters", 3.5)
    assert found["per_position"] == pytest.approx([1.0, 0.75])
    assert "chunks hold" in found["caution"]


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


STEPS = counted({GENERATED: 100}, {GENERATED: 107})
"""One answer in seven: its prefill and six steps."""


def test_the_counter_of_generated_tokens_is_a_source_where_it_counts_steps() -> None:
    records = [
        answered("spec", chunk_s=(0.1, *(0.2 + i for i in range(6))), chunk_tokens=(1, 4, 2, 3, 3, 3, 3))
    ]
    found = acceptance(ARM, records, [STEPS])
    assert (found["source"], found["tokens_per_step"], found["steps"]) == ("generation counter", 3.0, 6)
    assert found["per_position"], "of chunks, which tell the same"
    assert found["caution"] is None


def test_a_counter_that_counts_tokens_or_an_unfinished_request_tells_nothing_of_steps() -> None:
    found = acceptance(ARM, [CHUNKS], [counted({GENERATED: 100}, {GENERATED: 110})])
    assert (found["source"], found["tokens_per_step"]) == ("tokens per chunk", 3.0)
    assert acceptance(ARM, [CHUNKS, failed("spec")], [STEPS])["source"] == "tokens per chunk"


def test_chunks_of_one_token_do_not_stand_against_the_counter() -> None:
    single = answered("spec", chunk_s=tuple(0.1 + i / 100 for i in range(19)))
    found = acceptance(ARM, [single], [STEPS])
    assert (found["source"], found["tokens_per_step"], found["per_position"]) == (
        "generation counter",
        3.0,
        None,
    )
    assert found["caution"] == (
        "chunks hold 1.00 tokens, but a step yields 3.00 by generation counter: a chunk is not a step here"
    )


def test_a_drafting_step_that_is_shorter_than_a_plain_one_is_not_believed() -> None:
    single = answered("spec", chunk_s=tuple(0.1 + i * 0.015 for i in range(19)))
    found = acceptance(ARM, [single], plain_s=0.045)
    assert (found["source"], found["tokens_per_step"]) == ("unknown", None)
    assert "a chunk takes 15.0 ms at most and a plain step 45.0 ms" in found["caution"]
    assert acceptance(ARM, [single], plain_s=0.0155)["tokens_per_step"] == 1.0


def test_a_plain_arm_yields_one_token_a_step_however_its_chunks_were_merged() -> None:
    plain = Arm(name="plain", url="http://a/v1")
    found = acceptance(plain, [answered(chunk_tokens=(1, 2, 1))])
    assert (found["source"], found["tokens_per_step"]) == ("plain decoding", 1.0)
    found = acceptance(plain, [answered()])
    assert (found["tokens_per_step"], found["per_position"]) == (1.0, None)
    assert "does not speculate" in found["note"]
