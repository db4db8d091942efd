"""How often a treatment's answers part from the baseline's, and the baseline's from its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmark.analyse.stats import wilson
from benchmark.analyse.summary import summarise
from benchmark.measure.divergence import Again, Asked, Step
from benchmark.measure.journal import RawRun
from benchmark.show.terminal import render, render_all
from tests.benchmark.records import answered, raw_run

OF: dict[str, Any] = {"run": "r1", "started_unix_s": 1.0}
PARTED = (answered("steady"), answered("spec", text="a b d"))


def again(pair: int, text: str | None, **changes: Any) -> Again:
    """A second answer of the baseline."""
    return Again(**(OF | {"pair_id": f"chat/c2/{pair:04d}", "text": text} | changes))


def test_only_pairs_of_one_nonce_are_compared_and_the_baseline_with_its_second_answers() -> None:
    answers = (
        *(answered("steady", pair) for pair in range(3)),
        answered("spec", 0),
        answered("spec", 1, text="a b d"),
        answered("spec", 2, text="else", nonce="other"),
    )
    second = (
        again(0, "a b c"),
        again(1, "a x"),
        again(2, None, error="timeout"),
        again(9, "a b c", pair_id="of nobody"),
    )
    found = summarise(replace(raw_run(*answers), closer=second))["losslessness"]
    (treatment,) = found["treatments"]
    assert (treatment["n_pairs"], treatment["equal"], treatment["cannot_tell"]) == (2, 1, 1)
    assert (found["baseline"]["n_pairs"], found["baseline"]["differing"]) == (2, 1)
    assert (found["baseline"]["ci_low"], found["baseline"]["ci_high"]) == pytest.approx(wilson(1, 2))


def test_without_second_answers_there_is_no_floor_and_of_drawn_answers_nothing_is_said() -> None:
    found = summarise(raw_run(*PARTED))["losslessness"]
    assert found["baseline"] is None
    (one,) = found["treatments"]
    assert (one["more_than_baseline"], one["reasons"]) == (None, {"not asked": 1})
    drawn = summarise(raw_run(*PARTED, temperature=0.8))
    assert drawn["losslessness"] is None
    (cell,) = (one for one in drawn["cells"] if one["arm"] == "spec" and one["class"] == "chat")
    assert cell["output_equality"]["faults"] is None


def with_verdicts(behind: float, *, itself: int = 0) -> RawRun:
    """40 pairs of which 6 differ in a token that lies so far `behind`; `itself` second answers of the baseline differ."""
    answers = [answered("steady", pair) for pair in range(40)]
    answers += [answered("spec", pair, text="a b d" if pair < 6 else "a b c") for pair in range(40)]
    step = Step(" c", -0.6, {" c": -0.6, " d": -0.6 - behind, " e": -9.0})
    told = {"treatment": "spec", "arm": "steady", "given": 3, "max_tokens": 3, "steps": (step,)}
    asked = [Asked(**(OF | told), pair_id=f"chat/c2/{pair:04d}") for pair in range(6)]
    second = [again(pair, "a b d" if pair < itself else "a b c") for pair in range(32)]
    return replace(raw_run(*answers), closer=(*asked, *second))


def test_near_ties_no_more_frequent_than_the_baselines_own_are_no_warning() -> None:
    summary = summarise(with_verdicts(0.2, itself=4))
    said = "Answers of spec: equal to the baseline's in 34 of 40; of the rest 6 near-ties"
    assert said in render_all(summary)
    assert "Answers of spec" not in render(summary)
