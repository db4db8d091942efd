"""Arms of several batches: each treatment beside the baseline of its own batch and beside the best baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmark.analyse.decision import decide
from benchmark.analyse.losslessness import judged
from benchmark.analyse.summary import summarise
from benchmark.analyse.two_runs import compare_runs
from benchmark.measure.journal import RawRun
from benchmark.show import page, tables
from tests.benchmark.analyse.test_decision import run_of

CLASSES = ("a", "b")
PRICES = dict.fromkeys(("plain", "plain-b8", "spec-k7", "spec-k7-b8"), 10.0)


def two_batches(gains: dict[str, float], *, usd: dict[str, float] | None = None) -> RawRun:
    """Of `plain` and others, with how many times as fast they are."""
    by_arm = {name: dict.fromkeys(CLASSES, gain) for name, gain in gains.items()}
    raw = run_of(by_arm, usd=PRICES if usd is None else usd, max_tokens=200)
    own = {True: {"baseline": "plain-b8"}, False: dict[str, str]()}
    arms = tuple(arm.model_copy(update=own[arm.name.endswith("-b8")]) for arm in raw.plan.arms)
    plan = raw.plan.model_copy(update={"arms": arms})
    return replace(raw, sittings=tuple(replace(one, plan=plan) for one in raw.sittings))


BETTER = {"plain-b8": 1.3, "spec-k7": 1.6, "spec-k7-b8": 2.6}


def compared(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    return {(one["baseline"], one["treatment"]): one["ratio"] for one in rows}


def test_a_treatment_is_compared_with_its_own_baseline_and_with_the_best() -> None:
    summary = summarise(two_batches(BETTER))
    expected: dict[tuple[str, str], float] = {
        ("plain", "spec-k7"): 1.6,
        ("plain-b8", "spec-k7"): 1.6 / 1.3,
        ("plain-b8", "spec-k7-b8"): 2.0,
    }
    assert compared(summary["mix"]) == pytest.approx(expected, rel=0.05)
    for class_ in CLASSES:
        rows = [one for one in summary["comparisons"] if one["class"] == class_ and one["metric"] == "tpot_s"]
        assert compared(rows) == pytest.approx(expected, rel=0.05)
    (best,) = summary["best_baseline"]
    assert (best["arm"], best["no_dearer"]) == ("plain-b8", ["spec-k7", "spec-k7-b8"])
    assert {one["arm"] for one in summary["best"]} == {"spec-k7-b8"}
    assert {(one["baseline"], one["treatment"]) for one in summary["explanations"]} == {
        ("plain", "spec-k7"),
        ("plain-b8", "spec-k7-b8"),
    }


def test_the_page_has_each_treatment_beside_both() -> None:
    raw = two_batches(BETTER)
    summary = summarise(raw)
    _, every = tables.decision_tables(decide(summary).at)
    own = [(row[0], row[1]) for row in every.rows]
    assert own == [("spec-k7-b8", "plain-b8"), ("spec-k7", "plain-b8"), ("spec-k7", "plain")]
    table = page.render(raw, summary).partition('aria-label="Arms over all classes"')[2]
    for arm, baseline in own:
        cells = f'data-label="arm">{arm}</td><td role="cell" class="word" data-label="baseline">{baseline}<'
        assert cells in table


def test_texts_and_earlier_runs_are_compared_with_the_own_baseline() -> None:
    raw = two_batches(BETTER)
    other = {"plain-b8": "x", "spec-k7-b8": "x", "plain": "y", "spec-k7": "y"}
    texts = ((one, other[one.arm]) for one in raw.requests)
    records = [replace(one, text=text, text_sha256=f"{ord(text):064x}") for one, text in texts]
    assert judged(replace(raw, requests=tuple(records))) == {}
    rows = compare_runs(raw, raw)["speed_ups"]
    assert {(one["baseline"], one["treatment"]) for one in rows} == {
        ("plain", "spec-k7"),
        ("plain-b8", "spec-k7-b8"),
    }


def test_one_baseline_says_nothing_of_batches() -> None:
    summary = summarise(run_of({"spec-k7": {"a": 2.0}}))
    assert summary["best_baseline"] == []
    assert "baseline" not in decide(summary).sentence
