"""What arrived, against what was made: the time per token, the bound of its error, and what is said of a stream."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.benchmark.records import answered, block, raw_run
from trnspec.benchmark.analyse.arrivals import arrivals, collected
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.speed_up import gain_of
from trnspec.benchmark.analyse.tokens_and_text import tokens_and_text
from trnspec.benchmark.analyse.values import arrival_starts, decoding
from trnspec.benchmark.measure.records import RequestRecord

STEPS_S = tuple(0.1 + 0.01 * step for step in range(60))


def made(at_s: tuple[float, ...] = STEPS_S, **changes: Any) -> RequestRecord:
    """An answer of a token in each chunk, of which the server gives the total only."""
    known: dict[str, Any] = {
        "chunk_tokens": None,
        "chunk_chars": (5,) * len(at_s),
        "completion_tokens": len(at_s),
    }
    known |= {"text": "word " * len(at_s), **changes}
    return answered(chunk_s=at_s, **known)


def by_clock(period_s: float, at_s: tuple[float, ...] = STEPS_S) -> tuple[float, ...]:
    """The arrivals where a proxy sends what it has at each tick, and the rest at the end."""
    return tuple(min(math.ceil(at / period_s) * period_s, at_s[-1]) for at in at_s)


def test_chunks_of_one_read_are_one_arrival_and_so_is_a_burst_in_parts() -> None:
    assert arrival_starts(made((0.1, 0.1, 0.2, 0.2003, 0.3))) == [0, 2, 4]
    assert arrival_starts(made((0.1, 0.1004, 0.1008))) == [0], "no engine is that fast"
    assert arrival_starts(made((0.1, 0.1))) == [0]


def test_the_tokens_of_the_first_arrival_are_left_out() -> None:
    first = made((0.2,) * 12 + STEPS_S[12:])
    found = decoding(first, 60)
    assert found is not None
    assert found.tokens == 48, "a token in each chunk"
    assert found.doubt == 0
    told = decoding(answered(chunk_s=(0.1, 0.2, 0.3), chunk_tokens=(12, 3, 3)), 18)
    assert told is not None
    assert (told.tokens, told.doubt) == (6, 0)


def test_an_estimated_first_arrival_bounds_its_error() -> None:
    """Of twenty chunks the first holds 60 of 288 characters, so 12.5 of 60 tokens: to 1.96 * 0.6 * sqrt(12.5 * 0.79) = 3.7 of them."""
    drafted = made(STEPS_S[:20], chunk_chars=(60, *(12,) * 19), completion_tokens=60)
    found = decoding(drafted, 60)
    assert found is not None
    assert found.tokens == pytest.approx(60 - 60 * 60 / 288)
    assert found.doubt == pytest.approx(math.log(47.5 / (47.5 - 3.7)), abs=0.001)


def test_the_bound_widens_the_interval() -> None:
    plain = [made(pair_id=str(pair), prompt_id=f"chat-{pair}") for pair in range(6)]
    sure = raw_run(*plain, *(made(arm="spec", pair_id=one.pair_id, prompt_id=one.prompt_id) for one in plain))
    unsure = raw_run(
        *plain,
        *(
            made(STEPS_S[:20], arm="spec", pair_id=one.pair_id, prompt_id=one.prompt_id, completion_tokens=60)
            for one in plain
        ),
    )
    widths = []
    for raw in (sure, unsure):
        cells = cells_of(raw)
        found = gain_of(cells.pairs((cells.plan.arms[0], cells.plan.arms[1]), next(cells.places)))
        assert found is not None
        assert found.low is not None
        widths.append(found.mean - found.low)
    assert widths[0] == pytest.approx(0, abs=1e-9)
    assert widths[1] > 0.01


def test_a_stream_that_is_collected_is_told_from_steps() -> None:
    assert collected([made()], 1) is None
    found = collected([made(by_clock(0.1))], 1)
    assert found is not None
    assert found.tokens_per_arrival == pytest.approx(10, rel=0.1)
    steps = tuple(at_s for at_s in STEPS_S[:20] for _ in range(3))
    assert collected([made(steps)], 4) is None, "a step of three, a chunk for each token"
    assert collected([made(steps)], 4, others=True) is not None


def rows(check: Any, *records: RequestRecord) -> list[tuple[str, str, str]]:
    found = list(check(cells_of(raw_run(*records))))
    return [(row.arm, row.outcome, row.says) for row in found]


def test_what_cannot_be_bounded_within_3_percent_is_withheld() -> None:
    late = made(by_clock(0.3))
    ((_, outcome, says),) = rows(arrivals, late)
    assert outcome == "withheld"
    assert "may be wrong" in says
    ((_, outcome, says),) = rows(arrivals, made((0.7,) * 60))
    assert (outcome, says) == (
        "withheld",
        "the time per token of 1 of 1 answers is not known, because they came in one piece or nearly so",
    )
    ((_, outcome, _),) = rows(arrivals, made())
    assert outcome == "fine"


def pairs_of(at_s: tuple[float, ...] = STEPS_S, **changes: Any) -> list[RequestRecord]:
    """Twelve answers of the baseline, and of an arm that is as fast."""
    about = [
        {"prompt_id": f"chat-{n}", "pair_id": f"{n}", "text": f"w{n} " + "word " * 59} for n in range(12)
    ]
    return [one for own in about for one in (made(**own), made(at_s, arm="spec", **own | changes))]


@pytest.mark.parametrize(
    ("at_s", "says"),
    [
        ((0.0, *(0.5 + at for at in STEPS_S[1:])), "in the beginning of an answer"),
        ((*STEPS_S[:-1], STEPS_S[-1] + 0.2), "in the end of an answer"),
        (tuple(0.1 + 0.002 * step for step in range(60)), "more than a step of at most 4 tokens can give"),
    ],
)
def test_pauses_that_no_engine_makes_are_withheld(at_s: tuple[float, ...], says: str) -> None:
    found = rows(arrivals, *pairs_of(at_s))
    (said,) = [told for arm, outcome, told in found if (arm, outcome) == ("spec", "withheld")]
    assert says in said
    assert {outcome for _, outcome, _ in rows(arrivals, *pairs_of())} == {"fine"}


def test_a_first_token_that_waits_for_the_answer_is_withheld() -> None:
    answers = []
    for n in range(12):
        at_s = tuple(0.01 * (40 + n) + 0.003 * step for step in range(40 + n))
        answers.append(made(at_s, prompt_id=f"chat-{n}", pair_id=f"{n}"))
    ((_, outcome, says),) = rows(arrivals, *answers)
    assert (outcome, says[:58]) == ("withheld", "each token of an answer delays its first token by 10.0 ms,")


def test_other_tokens_per_character_are_withheld_where_texts_differ() -> None:
    ((_, base, _), (arm, outcome, says)) = rows(
        tokens_and_text, *pairs_of(completion_tokens=66, text_sha256="0" * 64)
    )
    assert (base, arm, outcome) == ("fine", "spec", "withheld")
    assert says.endswith("not the same tokens")


def test_a_first_token_that_waited_is_withheld_though_the_time_per_token_is_right() -> None:
    long = tuple(0.1 + 0.01 * step for step in range(600))
    found = list(arrivals(cells_of(raw_run(made(by_clock(0.1, long))))))
    assert [(row.outcome, row.metric) for row in found] == [("withheld", "ttft_s"), ("caution", None)]
    held = made((0.25,) * 15 + STEPS_S[15:])
    (row,) = arrivals(cells_of(raw_run(held)))
    assert (row.outcome, row.metric) == ("withheld", "ttft_s"), "the beginning was held back, and no more"
    assert "first token" in row.says


@pytest.mark.parametrize(("lag_s", "named"), [(0.001, "a proxy between"), (0.08, "the client was late")])
def test_a_client_that_was_late_is_named_before_a_proxy(lag_s: float, named: str) -> None:
    late = replace(raw_run(made(by_clock(0.3))), blocks=(block(arm="steady", client_lag_s=lag_s),))
    for row in arrivals(cells_of(late)):
        assert row.outcome == "withheld"
        assert row.remedy.startswith(named)


def test_equal_texts_with_other_counts_are_withheld() -> None:
    digest = hashlib.sha256(b"same").hexdigest()
    plain, more = made(text_sha256=digest), made(arm="spec", text_sha256=digest, completion_tokens=66)
    found = rows(tokens_and_text, plain, more)
    assert ("spec", "withheld", "1 of 1 equal texts have other counts, such as 60 and 66 tokens") in found
    one_more = made(arm="spec", text_sha256=digest, completion_tokens=61)
    assert ("spec", "fine", "1 of 1 equal texts have equal counts") in rows(tokens_and_text, plain, one_more)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reasoning_tokens": 40, "output_keys": ("content",)}, "reasoning that is not in the stream"),
        ({"completion_tokens": 400}, "more tokens than the text has bytes"),
        ({"completion_tokens": 160}, "more tokens than the text can have"),
    ],
)
def test_tokens_that_are_not_in_the_text_are_withheld(changes: dict[str, Any], says: str) -> None:
    ((_, outcome, said),) = rows(tokens_and_text, made(**changes))
    assert outcome == "withheld"
    assert says in said


def test_an_unknown_key_is_named() -> None:
    found = rows(tokens_and_text, made(output_keys=("content", "musing")))
    assert any("musing" in says for _, outcome, says in found if outcome == "caution")
