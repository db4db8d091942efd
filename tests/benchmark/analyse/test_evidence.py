"""Checks between measurement and verdict, by runs made by hand and by those recorded on an H200."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.records import answered, failed, held, raw_run, recorded_run, result_of
from trnspec.benchmark.analyse.evidence import withheld_for
from trnspec.benchmark.analyse.result import Evidence, Result
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import QuestionRecord, RepeatRecord
from trnspec.benchmark.measure.sanity_check import QUESTIONS
from trnspec.benchmark.plan import Load

CHAT = [
    {"id": f"chat-{i}", "class": "chat", "messages": [{"role": "user", "content": "?"}]} for i in range(12)
]
TEXTS = [f"Number {i} is a quiet morning by the river, and nobody speaks of the mill." for i in range(12)]
LOOP = "ha ha " * 40


def run_of(spec: Callable[[str], str], *, repeats: int = 12, **plan: Any) -> RawRun:
    """Twelve prompts; the treatment is twice as fast and writes `spec` of the baseline's text."""
    about = [{"prompt_id": f"chat-{i}", "pair": i} for i in range(12)]
    slow = [answered("steady", text=TEXTS[i], **one) for i, one in enumerate(about)]
    fast = [
        answered("spec", text=spec(TEXTS[i]), chunk_s=(0.1, 0.15, 0.2), **one) for i, one in enumerate(about)
    ]
    raw = held(raw_run(*slow, *fast, prompts=CHAT, **plan))
    again = [
        RepeatRecord(run="r1", pair_id=one.pair_id, started_unix_s=1.0, text=one.text)
        for one in slow[:repeats]
    ]
    return replace(raw, repeats=tuple(again))


def rows(result: Result, check: str) -> list[Evidence]:
    return [row for row in result.evidence if row.check == check]


def outcome(result: Result, check: str) -> list[str]:
    return [row.outcome for row in rows(result, check)]


def verdicts(result: Result) -> set[str]:
    return {one.verdict for one in (*result.mix, *result.comparisons)}


def test_equal_texts_prove_equality_and_other_ends_say_nothing() -> None:
    for spec in (str, lambda text: f"{text[:40]} Then it rains."):
        result = result_of(run_of(spec))
        assert outcome(result, "how answers begin") == ["fine"]
        assert result.mix[0].verdict == "faster"
    (row,) = rows(result, "how answers begin")
    assert row.says == "0 of 12 answers of spec equal steady's, 12 begin alike"


def test_other_beginnings_are_a_fault_where_the_baseline_repeats_its_own() -> None:
    result = result_of(run_of(lambda text: f"Well. {text}"))
    (row,) = rows(result, "how answers begin")
    assert (row.outcome, row.arm) == ("withheld", "spec")
    assert row.says.startswith("12 of 12 answers begin differently from steady's, and steady repeats its own")
    assert result.withheld
    assert result.mix[0].ratio == pytest.approx(2.0), "its times are sound"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (lambda text: text[:40], "only the beginning of steady's"),
        (lambda text: f"{text} It rains.", "go on after its end"),
    ],
)
def test_an_arm_that_ends_elsewhere_in_the_same_text_gets_no_verdict(
    spec: Callable[[str], str], says: str
) -> None:
    result = result_of(run_of(spec))
    (row, _) = rows(result, "how answers begin")
    assert row.outcome == "withheld"
    assert says in row.says
    assert verdicts(result) == {"withheld"}


def test_some_other_beginnings_are_a_caution() -> None:
    result = result_of(run_of(lambda text: text if int(text.split()[1]) < 6 else f"Well. {text}"))
    (row,) = rows(result, "how answers begin")
    assert (row.outcome, row.says[:38]) == ("caution", "6 of 12 answers of spec equal steady's")


def test_nothing_follows_from_beginnings_without_repeats() -> None:
    result = result_of(run_of(lambda text: f"Well. {text}", repeats=0))
    (row,) = rows(result, "how answers begin")
    assert row.outcome == "not asked"
    assert "steady was not asked again" in row.says
    assert result.mix[0].verdict == "faster"


def test_a_baseline_that_does_not_repeat_itself_proves_nothing() -> None:
    raw = run_of(lambda text: f"Well. {text}")
    raw = replace(raw, repeats=tuple(replace(one, text=f"So. {one.text}") for one in raw.repeats))
    assert outcome(result_of(raw), "how answers begin") == ["not asked"]


def test_an_arm_that_loops_or_writes_nonsense_gets_no_verdict_and_no_ratio() -> None:
    result = result_of(run_of(lambda _: LOOP, repeats=0))
    (row,) = rows(result, "looping answers")
    assert row.outcome == "withheld"
    assert row.says.startswith("12 of 12 answers of spec repeat themselves or are noise, 0 of 12 of steady")
    assert verdicts(result) == {"withheld"}
    assert {one.ratio for one in (*result.mix, *result.comparisons)} == {None}
    assert all(cell.tpot_s for cell in result.cells if cell.n), "what was measured of each arm stays"
    assert "faster" not in result.sentence


def test_two_arms_that_loop_alike_are_only_a_caution_and_dummies_are_not_asked() -> None:
    raw = run_of(str)
    alike = replace(raw, requests=tuple(replace(one, text=LOOP) for one in raw.requests))
    assert outcome(result_of(alike), "looping answers") == ["caution"]
    dummies = result_of(run_of(lambda _: LOOP, dummy_weights=True))
    for check in ("looping answers", "how answers begin", "sanity questions"):
        (row,) = rows(dummies, check)
        assert row.outcome == "not asked"
        assert "weights are dummies" in row.says
    assert dummies.mix[0].verdict == "faster"
    assert dummies.sentence.startswith("DUMMY WEIGHTS, INCOMPLETE")


def test_each_arm_is_judged_by_the_questions() -> None:
    def answers(arm: str, *, right: bool) -> list[QuestionRecord]:
        about: dict[str, Any] = {"run": "r1", "arm": arm, "started_unix_s": 1.0}
        texts = [one.accepted[0] if right else "bread" for one in QUESTIONS]
        return [
            QuestionRecord(question=one.text, accepted=one.accepted, text=text, **about)
            for one, text in zip(QUESTIONS, texts, strict=True)
        ]

    raw = run_of(str)
    good, bad = answers("steady", right=True), answers("spec", right=False)
    result = result_of(replace(raw, sense=(*good, *bad)))
    assert [(row.arm, row.outcome) for row in rows(result, "sanity questions")] == [
        ("spec", "withheld"),
        (None, "fine"),
    ]
    assert result.withheld


@pytest.mark.parametrize(
    ("lost", "expected"), [(0, "fine"), (1, "withheld"), (12, "withheld")], ids=["none", "one", "all"]
)
def test_failures_are_named_and_more_of_them_withhold_the_arm(lost: int, expected: str) -> None:
    raw = run_of(str)
    requests = [
        failed("spec", i - 12, "timeout", prompt_id=one.prompt_id) if 12 <= i < 12 + lost else one
        for i, one in enumerate(raw.requests)
    ]
    result = result_of(replace(raw, requests=tuple(requests), repeats=()))
    assert outcome(result, "answered requests")[0] == expected
    if lost:
        assert rows(result, "answered requests")[0].says.startswith(
            f"{lost} of 12 requests to spec failed (timeout {lost})"
        )
    assert (verdicts(result) == {"withheld"}) is bool(lost)


def test_arms_that_end_their_answers_differently_are_a_caution() -> None:
    raw = run_of(str)
    cut = tuple(replace(one, finish_reason="length") if one.arm == "spec" else one for one in raw.requests)
    (row,) = rows(result_of(replace(raw, requests=cut)), "how answers end")
    assert row.outcome == "caution"
    assert row.says == "100% of the answers of spec ended with 'length', 0% of steady's"
    (row,) = rows(result_of(raw), "how answers end")
    assert (row.outcome, row.says) == ("fine", "answers ended with: every arm stop 100%")


def test_a_row_takes_the_verdict_from_what_it_names_alone() -> None:
    row = Evidence(check="x", arm="a", class_="code", outcome="withheld", says="y")
    at = row.model_copy(update={"class_": None, "concurrency": 4})
    assert withheld_for([row], "a", "code") == [row]
    assert [withheld_for([row], *one) for one in (("a", None), ("a", "sql"), ("b", "code"))] == [[], [], []]
    assert withheld_for([at], "a", "code", Load(concurrency=4)) == [at]
    assert [withheld_for([at], "a", None, load) for load in (None, Load(concurrency=8))] == [[], []]


@pytest.mark.parametrize("name", ["e1-mid", "e2-low", "e3k1-list", "e4-k1", "e4-k3", "e5-aa"])
def test_a_healthy_run_on_a_real_engine_has_nothing_withheld(name: str, tmp_path: Path) -> None:
    """Their weights are dummies, so texts of both arms are noise alike; no repeats were recorded."""
    result = result_of(recorded_run(name, tmp_path))
    found = {row.check: row.outcome for row in result.evidence}
    assert "withheld" not in found.values()
    assert (found["answered requests"], found["how answers end"], found["client delay"]) == ("fine",) * 3
    assert (found["steady load"], found["looping answers"]) == ("caution", "caution")
