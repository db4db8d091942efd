from __future__ import annotations

from typing import Any

import pytest
from scipy.stats import (  # type: ignore[import-untyped] # scipy publishes no types
    binomtest,
    fisher_exact,
)

from benchmark.analyse.stats import fisher_more, wilson
from benchmark.analyse.summary import summarise
from benchmark.measure.divergence import Again, Asked, Step
from benchmark.measure.journal import RawRun
from benchmark.show.terminal import render, render_all
from tests.benchmark.records import answered, raw_run

COUNTS = [(0, 1), (1, 1), (0, 32), (2, 32), (31, 32), (32, 32), (7, 500), (0, 500)]


@pytest.mark.parametrize(("count", "n"), COUNTS)
def test_the_interval_of_a_share_is_scipys(count: int, n: int) -> None:
    found = binomtest(count, n).proportion_ci(method="wilson")
    assert wilson(count, n) == pytest.approx((found.low, found.high), abs=1e-12)


@pytest.mark.parametrize(("count", "n"), COUNTS)
@pytest.mark.parametrize(("other", "n_other"), COUNTS)
def test_the_test_of_two_shares_is_scipys(count: int, n: int, other: int, n_other: int) -> None:
    table = [[count, n - count], [other, n_other - other]]
    assert fisher_more(count, n, other, n_other) == pytest.approx(
        fisher_exact(table, "greater").pvalue, rel=1e-9
    )


def test_of_nothing_nothing_is_known() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_only_pairs_of_one_nonce_are_compared_and_the_baseline_with_its_second_answers() -> None:
    raw = raw_run(
        *(answered("steady", pair) for pair in range(3)),
        answered("spec", 0),
        answered("spec", 1, text="a b d"),
        answered("spec", 2, text="else", nonce="other"),
    )
    second = [
        Again(run="r1", started_unix_s=1.0, pair_id="chat/c2/0000", text="a b c"),
        Again(run="r1", started_unix_s=1.0, pair_id="chat/c2/0001", text="a x"),
        Again(run="r1", started_unix_s=1.0, pair_id="chat/c2/0002", error="timeout"),
        Again(run="r1", started_unix_s=1.0, pair_id="of nobody", text="a b c"),
    ]
    found = summarise(type(raw)(raw.sittings, raw.requests, closer=tuple(second)))["losslessness"]
    (treatment,) = found["treatments"]
    assert (treatment["n_pairs"], treatment["equal"], treatment["cannot_tell"]) == (2, 1, 1)
    assert (found["baseline"]["n_pairs"], found["baseline"]["differing"]) == (2, 1)
    assert (found["baseline"]["ci_low"], found["baseline"]["ci_high"]) == pytest.approx(wilson(1, 2))


def test_without_second_answers_there_is_no_floor_and_nothing_is_above_it() -> None:
    found = summarise(raw_run(answered("steady"), answered("spec", text="a b d")))["losslessness"]
    assert found["baseline"] is None
    (one,) = found["treatments"]
    assert (one["more_than_baseline"], one["reasons"]) == (None, {"not asked": 1})


def test_of_drawn_answers_nothing_is_said() -> None:
    raw = raw_run(answered("steady"), answered("spec", text="a b d"), temperature=0.8)
    assert summarise(raw)["losslessness"] is None
    (cell,) = (one for one in summarise(raw)["cells"] if one["arm"] == "spec" and one["class"] == "chat")
    assert cell["output_equality"]["faults"] is None


def with_verdicts(behind: float, *, itself: int = 0) -> RawRun:
    """40 pairs of which 6 differ in a token that lies so far `behind`; `itself` second answers of the baseline differ."""
    raw = raw_run(
        *(answered("steady", pair) for pair in range(40)),
        *(answered("spec", pair, text="a b d" if pair < 6 else "a b c") for pair in range(40)),
    )
    of: dict[str, Any] = {"run": "r1", "started_unix_s": 1.0}
    step = Step(" c", -0.6, {" c": -0.6, " d": -0.6 - behind, " e": -9.0})
    lines: list[Again | Asked] = [
        Asked(
            **of,
            pair_id=f"chat/c2/{pair:04d}",
            treatment="spec",
            arm="steady",
            given=3,
            max_tokens=3,
            steps=(step,),
        )
        for pair in range(6)
    ]
    for pair in range(32):
        text = "a b d" if pair < itself else "a b c"
        lines.append(Again(**of, pair_id=f"chat/c2/{pair:04d}", text=text))
    return RawRun(raw.sittings, raw.requests, closer=tuple(lines))


def test_near_ties_no_more_frequent_than_the_baselines_own_are_no_warning() -> None:
    summary = summarise(with_verdicts(0.2, itself=4))
    assert "Answers of spec: equal to the baseline's in 34 of 40; of the rest 6 near-ties" in render_all(
        summary
    )
    assert "Answers of spec" not in render(summary)
