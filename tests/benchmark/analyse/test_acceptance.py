from __future__ import annotations

import pytest

from benchmark.analyse.acceptance import acceptance
from benchmark.plan import Arm
from tests.benchmark.analyse.test_drafts import ACCEPTED, AT, DRAFTS, block
from tests.benchmark.records import answered

ARM = Arm(name="spec", url="http://b/v1", speculative_tokens=4, max_tokens_per_step=4)
CHUNKS = answered("spec", chunk_s=(0.1, 0.2, 0.3, 0.4), chunk_tokens=(1, 4, 2, 3))
COUNTED = block({DRAFTS: 0, ACCEPTED: 0}, {DRAFTS: 10, ACCEPTED: 25, f"{AT}/0": 10, f"{AT}/1": 15 / 2})
SAID = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10, "acceptance_histogram": [0, 1, 0, 3]}


def test_the_servers_own_statistics_go_first_then_its_counters_then_chunks() -> None:
    said = acceptance(ARM, [answered("spec", spec_stats=SAID)], [COUNTED])
    assert (said["source"], said["tokens_per_step"]) == ("server per-request", 3.5)
    counted = acceptance(ARM, [CHUNKS], [COUNTED])
    assert (counted["source"], counted["tokens_per_step"]) == ("server counters", 3.5)
    assert counted["per_position"] == pytest.approx([1.0, 0.75])
    seen = acceptance(ARM, [CHUNKS])
    assert (seen["source"], seen["tokens_per_step"]) == ("tokens per chunk", 3.0)
    assert seen["per_position"] == pytest.approx([1.0, 1 / 1 * 2 / 3, 2 / 3])


def test_one_answer_without_statistics_makes_them_useless() -> None:
    found = acceptance(ARM, [answered("spec", spec_stats=SAID), CHUNKS])
    assert found["source"] == "tokens per chunk"


def test_positions_may_come_from_the_next_source_and_are_said_to() -> None:
    sums = {"num_spec_steps": 4, "num_accepted_draft_tokens": 10}
    found = acceptance(ARM, [answered("spec", chunk_tokens=(1, 4, 2), spec_stats=sums)])
    assert (found["source"], found["tokens_per_step"]) == ("server per-request", 3.5)
    assert found["per_position"]
    assert "by position: tokens per chunk" in found["note"]


def test_merged_chunks_are_no_steps() -> None:
    found = acceptance(ARM, [answered("spec", chunk_tokens=(1, 9, 2))])
    assert (found["steps_above_ceiling"], found["per_position"]) == (1, None)


def test_plain_decoding_has_no_positions() -> None:
    found = acceptance(Arm(name="plain", url="http://a/v1"), [answered()])
    assert (found["tokens_per_step"], found["per_position"]) == (1.0, None)
    assert "does not speculate" in found["note"]
