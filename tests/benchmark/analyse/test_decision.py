"""What runs of all kinds say to do."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.benchmark.records import answered, changed, emulated, failed, held, raw_run, result_of, summary_of
from trnspec.benchmark.analyse.answers import losslessness, quality
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.decision import AtLoad, at_loads, question
from trnspec.benchmark.analyse.result import Run
from trnspec.benchmark.analyse.result_parts import Quality
from trnspec.benchmark.analyse.speed_up import FASTER
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.show import page, tables
from trnspec.benchmark.show.report_templates import render
from trnspec.benchmark.show.tables import UNKNOWN

Gains = dict[str, dict[str, float]]
"""By treatment and class, the speed-up."""
PLAIN_S, TOKENS, STEP = 0.04, 101, 4


def run_of(
    gains: Gains,
    *,
    prompts: int = 8,
    spread: float = 0.02,
    usd: dict[str, float] | None = None,
    loads: tuple[int, ...] = (4,),
    fails: int = 0,
    first_s: float = 0.1,
    **plan: Any,
) -> RawRun:
    """Of `plain` and the treatments, whose names end in their window; the first `fails` requests of each treatment fail, and its first tokens
    take `first_s`."""
    dice, classes = random.Random(3), list(next(iter(gains.values())))
    arms: list[dict[str, Any]] = [
        {
            "name": name,
            "url": f"http://{name}/v1",
            "usd_per_hour": (usd or {}).get(name),
            "speculative_tokens": int(name.rpartition("-k")[2].partition("-")[0]) if "-k" in name else 0,
            "max_tokens_per_step": 8,
        }
        for name in ("plain", *gains)
    ]
    records: list[RequestRecord] = []
    for load, class_, arm, i in product(loads, classes, ("plain", *gains), range(prompts)):
        gain = gains.get(arm, {}).get(class_, 1.0)
        tpot_s = PLAIN_S / gain * math.exp(dice.gauss(0, spread))
        where: dict[str, Any] = {
            **{"class_": class_, "concurrency": load, "rate_per_s": None},
            **{"prompt_id": f"{class_}-{i}", "pair_id": f"{class_}-{load}-{i}"},
        }
        if arm in gains and i < fails:
            records.append(failed(arm, **where))
            continue
        begun = first_s if arm in gains else 0.1
        times = tuple(begun + token * tpot_s for token in range(0, TOKENS, STEP))
        sizes = (1, *(STEP,) * (len(times) - 1))
        records.append(answered(arm, chunk_s=times, chunk_tokens=sizes, **where))
    content = {
        "model": "Qwen/Qwen3-32B",
        "baseline": "plain",
        "arms": arms,
        "prompts": [{"id": f"{c}-{i}", "class": c, "prompt": "p"} for c in classes for i in range(prompts)],
        "requests": prompts,
        "concurrency": list(loads),
    }
    return raw_run(*records, **(content | plan))


def at(gains: Gains, **options: Any) -> AtLoad:
    result = result_of(run_of(gains, **options))
    return at_loads(result)[result.here]


EQUAL_PRICES = {"plain": 10.0, "spec-k7": 10.0}
DEARER, CHEAPER = ({"plain": 10.0, "spec-k7": usd} for usd in (30.0, 3.0))
ARMS = ("qwen-vllm", "qwen-sd-crowded")


PRICES = dict.fromkeys(("plain", "plain-b8", "spec-k7", "spec-k7-b8"), 10.0)


def two_batches(gains: dict[str, float], *, usd: dict[str, float] | None = None) -> RawRun:
    """Of `plain` and others, with how many times as fast they are."""
    by_arm: Gains = {name: dict.fromkeys("ab", gain) for name, gain in gains.items()}
    raw = run_of(by_arm, usd=PRICES if usd is None else usd, max_tokens=200)
    own = {True: {"baseline": "plain-b8"}, False: dict[str, str]()}
    arms = tuple(arm.model_copy(update=own[arm.name.endswith("-b8")]) for arm in raw.plan.arms)
    plan = raw.plan.model_copy(update={"arms": arms})
    return replace(raw, sessions=tuple(replace(one, plan=plan) for one in raw.sessions))


BETTER = {"plain-b8": 1.3, "spec-k7": 1.6, "spec-k7-b8": 2.6}


def one(gains: dict[str, float], **options: Any) -> RawRun:
    return run_of({"spec-k7": gains}, **options)


def pair(of_a: float, of_b: float) -> dict[str, float]:
    return {"a": of_a, "b": of_b}


def kept(raw: RawRun, *, class_b: int) -> RawRun:
    """Without class b's prompts from there on."""
    beyond = {f"b-{number}" for number in range(class_b, 99)}
    return replace(raw, requests=tuple(r for r in raw.requests if r.prompt_id not in beyond))


SWEEP = {"spec-k3": pair(1.5, 1.2), "spec-k5": pair(2.0, 1.21), "spec-k7": pair(2.5, 0.8)}
EQUAL = {name: {"a": 2.0} for name in SWEEP}
BOTH, LITTLE = pair(2.0, 2.0), pair(1.08, 1.08)
TWO, EACH = "spec-k7 (7 draft tokens)", "all classes weighted equally"
IN_WORDS: list[tuple[RawRun, str, str]] = [
    (one(pair(2.0, 3.0), usd=EQUAL_PRICES), "use", f"Use {TWO}. It decodes 2.40 times as fast (2.37 to 2.43, {EACH}). It costs $6.19 instead of $14.37 per million output tokens. Faster in every class: a 2.01, b 2.99."),
    (held(one(pair(2.0, 1.0))), "use", "Faster: a 2.01. Same: b 1.00."),
    (one(pair(2.0, 0.7)), "use for some", f"Use {TWO} for a: 2.01 times as fast (1.96 to 2.06). Keep plain for b: spec-k7 is 0.70 times as fast there (0.68 to 0.72, slower). Used for all classes, spec-k7 is "),
    (one(pair(0.8, 0.6)), "keep", f"Keep plain: {TWO} is 0.69 times as fast (0.68 to 0.70, {EACH}, slower). Slower in every class: b 0.60, a 0.80."),
    (one(pair(1.0, 1.0)), "cannot tell", f"Cannot tell, so keep plain: {TWO} is 1.00 times as fast (0.99 to 1.02, {EACH}). The load was not held while it was measured, so a ratio near 1 has no verdict. Withheld in every class: b 1.00, a 1.01."),
    (held(one(pair(1.0, 1.0))), "keep", f"INCOMPLETE (32 of 320 requests): keep plain: {TWO} is 1.00 times as fast (0.99 to 1.02, {EACH}, same). A restart can change a ratio by 10 %: run it again and compare. Same in every class: b 1.00, a 1.01."),
    (held(one(LITTLE, spread=0.005)), "keep for now", f"keep plain for now: {TWO} is 1.08 times as fast (1.076 to 1.084, {EACH}, faster). A restart can change"),
    (held(one({"a": 1.06}, spread=0.03)), "keep for now", "times as fast (1.04 to 1.10, a little faster). A restart can change"),
    (held(one(pair(0.92, 1.4), spread=0.005)), "use for some", "for b: 1.40 times as fast (1.39 to 1.41). Keep plain for a: spec-k7 is 0.92 times as fast there (0.92 to 0.93, slower, which a restart can change)."),
    (one(pair(1.1, 1.1), spread=0.5), "cannot tell", "About 97 prompts would tell in each class; this run had 8. Cannot tell: a 1.27 (0.67 to 2.43, 99 prompts would tell). Withheld: b 1.01."),
    (one(BOTH, prompts=5), "too few prompts", f"No verdict: each class has 5 prompts that both arms answered, 8 are needed. So far {TWO} is 2.02 times as fast (1.99 to 2.04)."),
    (kept(one(pair(2.0, 4.0)), class_b=7), "use", f"use {TWO}. It decodes 2.01 times as fast (1.97 to 2.06, a alone). Faster: a 2.01. Too few prompts: b 3.97."),
    (one({"a": 1.5}, usd=DEARER), "use", f"Use {TWO}. It decodes 1.51 times as fast (1.48 to 1.54). It is more expensive: $29.16 instead of $14.63 per million output tokens."),
    (one({"a": 1.5}, usd={"plain": 10.0, "spec-k7": 15.0}), "use", "It costs the same per token."),
    (one({"a": 0.8}, usd=CHEAPER), "keep", f"Keep plain: {TWO} is 0.80 times as fast (0.79 to 0.82, slower). It costs $5.38 instead of $14.63"),
    (one(BOTH, prompts=10, fails=2), "do not switch yet", f"Do not switch yet: {TWO} is 2.01 times as fast (1.98 to 2.05, {EACH}), but 4 of 20 requests to spec-k7 failed (timeout 4), 0 of 20 to plain;"),
    (held(one({"a": 2.0}, first_s=0.2)), "use", "(1.97 to 2.06). But the first token takes 2.00 times as long."),
    (held(one({"a": 1.5}, first_s=4.0)), "use", "But the first token takes 40.00 times as long and tokens per second fall by 38 %."),
    (held(one({"a": 0.5}, first_s=0.05)), "keep", "slower). But the first token comes 2.00 times as soon."),
    (kept(emulated(one(BOTH)), class_b=7), "use", f"EMULATED, INCOMPLETE (30 of 32 requests): use {TWO}. It decodes 2.0"),
    (emulated(one(BOTH, usd=EQUAL_PRICES), made_up={"spec-k7": ["a"]}), "use", f"EMULATED: use {TWO}. It decodes 1.99 times as fast (1.95 to 2.04, b alone). It costs $7.32 instead of $14.11 per million output tokens. Faster: b 1.99. Withheld: a."),
    (emulated(one(BOTH, usd=EQUAL_PRICES), made_up={"spec-k7": ["a", "b"]}), "cannot tell", "EMULATED: cannot tell: the emulator does not know how many drafts of these prompts are accepted. A run with a real engine shows it."),
    (run_of(SWEEP, spread=0.05), "use", "Use spec-k5 (5 draft tokens). It decodes 1.59 times as fast (1.51 to 1.67, all classes weighted equally). Faster in every class: b 1.26, a 2.12. It is the best of 3 arms, 1.18 times as fast as spec-k3."),
    (run_of(EQUAL, spread=0.05), "use", "It is the best of 3 arms, but spec-k7 and spec-k3 may be as fast."),
    (run_of({"spec-k2": pair(1.2, 1.2), "spec-k7": pair(3.0, 0.8)}), "use for some", "Use spec-k2 (2 draft tokens) for b: 1.19 times as fast (1.14 to 1.24); use spec-k7 (7 draft tokens) for a: 3.07 times as fast (3.00 to 3.14)."),
    (run_of({"spec-k2": pair(1.0, 1.0), "spec-k7": pair(1.5, 0.6)}), "use for some", f"Use {TWO} for a: 1.54 times as fast (1.50 to 1.57). Keep plain for b: spec-k7 is 0.59 times as fast there (0.57 to 0.62, slower)."),
    (two_batches(BETTER), "use", f"Use spec-k7-b8 (7 draft tokens). It decodes 2.01 times as fast as plain-b8 (1.99 to 2.04, {EACH}). It costs $5.76 instead of $11.16 per million output tokens."),
    (two_batches(BETTER | {"plain-b8": 4.0, "spec-k7": 0.8}), "keep", f"Keep plain: {TWO} is 0.82 times as fast as plain"),
]  # fmt: skip
"""Runs of all kinds, their advice, and a part of the sentence."""


def test_each_kind_of_run_says_what_to_do() -> None:
    for raw, advice, part in IN_WORDS:
        result = result_of(raw)
        assert (result.advice[result.here].advice, part in result.sentence) == (advice, True), result.sentence
        assert " ." not in result.sentence
    alone = result_of(run_of({"spec-k7": {"a": 0.22}}, prompts=1))
    assert alone.sentence.endswith("0.21 times as fast."), "without an interval"


def test_a_mix_is_what_equal_shares_of_the_tokens_take() -> None:
    found = at({"spec-k7": pair(2.0, 4.0)}, spread=0.0, usd=EQUAL_PRICES).mix
    assert found is not None
    assert found.ratio == pytest.approx(2 / (1 / 2 + 1 / 4))
    assert (found.baseline_tpot_s, found.treatment_tpot_s) == pytest.approx((PLAIN_S, PLAIN_S * 3 / 8))
    assert found.usd_before is not None
    assert found.usd_after == pytest.approx(found.usd_before * (0.1 + 4 * 3 / 8) / 4.1, rel=0.01)


def test_as_many_prompts_as_would_tell_do_tell() -> None:
    few = at({"spec-k7": {"a": 1.1}}, spread=0.2).mix
    assert few is not None
    assert few.verdict == "cannot tell"
    assert few.prompts_to_tell is not None
    (told,) = result_of(run_of({"spec-k7": {"a": 1.1}}, spread=0.2, prompts=few.prompts_to_tell)).mix
    assert told.verdict in FASTER


def test_worse_answers_speak_against_a_faster_treatment() -> None:
    worse = {
        "filter": "strict-match",
        "baseline": "plain",
        "treatment": "spec-k7",
        "n": 200,
        "gained": 0,
        "lost": 10,
    }
    worse |= {"difference": -0.05, "ci_low": -0.09, "ci_high": -0.01, "p_value": 0.01}
    asked = {"task": "gsm8k", "questions": None, "answered": {}, "scores": [], "comparisons": [worse]}
    rows = quality(Quality.model_validate(asked), ["spec-k7"])
    sentence = changed(result_of(one({"a": 2.0})), evidence=[row.model_dump() for row in rows]).sentence
    assert sentence.startswith("Do not switch yet: spec-k7 (7 draft tokens) is 2.0")
    assert "but answers of spec-k7 to gsm8k are worse by 5.0 points" in sentence


def test_of_several_loads_the_cheapest_is_answered_first_and_the_others_after_it() -> None:
    result = result_of(one({"a": 2.0}, loads=(1, 4), usd=EQUAL_PRICES))
    mix = [row.model_dump() for row in result.mix]
    for row in mix:
        row["usd_after"] *= 1 if row["concurrency"] == 4 else 3
    sentence = changed(result, mix=mix).sentence
    assert sentence.startswith(
        f"Use {TWO} at every load. At 4 concurrent requests it decodes 1.99 times as fast"
    )
    assert sentence.endswith(" At 1 concurrent request spec-k7 is 2.01 times as fast (faster).")


LADDERS = [
    ((2.0, 1.5, 0.9), f"Use {TWO} up to 4 concurrent requests. At 4 concurrent requests it decodes 1.5", "At 1 concurrent request spec-k7 is 2.00 times as fast (faster). At 16 concurrent requests spec-k7 is 0.90 times as fast (slower)."),
    ((0.9, 1.5, 1.5), f"Use {TWO} at 4 concurrent requests and 16 concurrent requests. At 16", "At 1 concurrent request spec-k7 is 0.90 times as fast (slower)."),
    ((0.5, 0.6, 0.7), f"Keep plain at every load: {TWO} is 0.70 times as fast", "At 4 concurrent requests spec-k7 is 0.60 times as fast (slower)."),
    ((1.0, 0.9, 0.8), f"Keep plain at every load: {TWO} is 0.80 times as fast", "At 1 concurrent request spec-k7 is 1.00 times as fast (same)."),
]  # fmt: skip


@pytest.mark.parametrize(("gains", "begins", "says"), LADDERS)
def test_a_ladder_is_answered_once_or_up_to_a_load(gains: tuple[float, ...], begins: str, says: str) -> None:
    runs = [one({"a": gain}, loads=(1, 4, 16), spread=0.005) for gain in gains]
    records = [
        r for raw, load in zip(runs, (1, 4, 16), strict=True) for r in raw.requests if r.concurrency == load
    ]
    sentence = result_of(held(replace(runs[0], requests=tuple(records)))).sentence.partition(": ")[2]
    assert f"{sentence[:1].upper()}{sentence[1:]}".startswith(begins), sentence
    assert says in sentence


@pytest.mark.parametrize(
    ("arm", "class_", "told"),
    [("spec-k7", None, True), ("plain", None, True), (None, None, True), ("spec-k7", "a", False), ("other", None, False)],
)  # fmt: skip
def test_evidence_against_an_arm_as_a_whole_comes_before_its_speed(
    arm: str | None, class_: str | None, told: bool
) -> None:
    row = {"check": "text", "arm": arm, "class": class_, "outcome": "withheld", "says": "161 of 161 answers begin differently", "remedy": "ask gsm8k"}  # fmt: skip
    result = changed(result_of(one({"a": 2.0})), evidence=[row])
    assert (result.advice[0].advice == "do not switch yet") is told
    said = f"Do not switch yet: {TWO} is 2.01 times as fast (1.97 to 2.06), but 161 of 161 answers begin differently; ask gsm8k."
    assert (result.sentence == said) is told
    caution = changed(result_of(one({"a": 2.0})), evidence=[row | {"outcome": "caution"}])
    assert caution.advice[0].advice == "use"


def test_an_arm_under_suspicion_is_not_the_best() -> None:
    result = result_of(run_of({"spec-k3": {"a": 1.5}, "spec-k7": {"a": 5.0}}))
    row = {
        "check": "text",
        "arm": "spec-k7",
        "class": None,
        "outcome": "withheld",
        "says": "ha ha ha",
        "remedy": "",
    }
    assert result.sentence.startswith("Use spec-k7")
    assert changed(result, evidence=[row]).sentence.startswith("Use spec-k3")


def test_what_an_emulator_made_up_has_neither_dollars_nor_a_verdict() -> None:
    raw = one(pair(2.0, 2.0), usd=EQUAL_PRICES)
    nothing = result_of(emulated(raw, made_up={"spec-k7": ["a", "b"]}))
    (found,) = at_loads(nothing)
    assert "$/M" not in render(nothing)
    judged = {(gain.verdict, gain.usd_after) for gain in (*found.by_class, *found.by_arm)}
    assert judged == {("withheld", None)}
    result = result_of(emulated(raw, made_up={"spec-k7": ["a"]}))
    assert [one.verdict for one in at_loads(result)[0].by_class] == ["withheld", "faster"]
    (cells,) = tables.cell_tables(result)
    assert {row[:2]: row[-1] == UNKNOWN for row in cells.rows if row[1] == "spec-k7"} == {
        ("a", "spec-k7"): True,
        ("b", "spec-k7"): False,
    }


def test_the_question_is_made_from_what_is_known_of_the_arms() -> None:
    raw, drafts = one({"a": 2.0}), {"spec-k7": {"mode": "fused", "draft": "Qwen/Qwen3-1.7B"}}
    result = changed(result_of(raw), drafts=drafts)
    assert result.question == "Does drafting with Qwen3-1.7B pay for Qwen3-32B?"
    drafting, other = {"b": 1}, {"b": 2, "c": 3}
    for arms, aa, expected in (
        (drafting, False, "Does drafting 1 token per step pay for M?"),
        ({"b": 2}, False, "Does drafting 2 tokens per step pay for M?"),
        ({"b": 0}, False, "Is b faster than a for M?"),
        ({"b": 0, "c": 1}, False, "Which arm is fastest for M?"),
        (other, False, "Which way of drafting pays for M?"),
        (drafting, True, "How much do measurements of M vary?"),
        ({}, False, "How fast is M?"),
    ):
        windows = {"a": 0, **arms}.items()
        facts = {"max_tokens_per_step": 8, "usd_per_hour": None}
        described = [{"name": name, "speculative_tokens": k, **facts} for name, k in windows]
        run = result.run.model_dump() | {"model": "M", "baseline": "a", "aa": aa, "arms": described}
        assert question(Run.model_validate(run), {}) == expected


def test_a_treatment_is_compared_with_its_own_baseline() -> None:
    def compared(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
        return {(one["baseline"], one["treatment"]): one["ratio"] for one in rows}

    raw = two_batches(BETTER)
    summary = summary_of(raw)
    own = {("plain", "spec-k7"): 1.6, ("plain-b8", "spec-k7-b8"): 2.0}
    expected = pytest.approx(own, rel=0.05)
    for class_ in "ab":
        rows = [one for one in summary["comparisons"] if one["class"] == class_ and one["metric"] == "tpot_s"]
        assert compared(rows) == expected
    assert compared(summary["mix"]) == expected
    assert summary["best"] == [], "of one treatment there is no best"
    assert {(one["baseline"], one["treatment"]) for one in summary["explanations"]} == set(own)

    table = page.render(cells_of(raw), result_of(raw)).partition('aria-label="Arms over all classes"')[2]
    for arm, baseline in (("spec-k7-b8", "plain-b8"), ("spec-k7", "plain")):
        cells = f'data-label="arm">{arm}</td><td role="cell" class="word" data-label="baseline">{baseline}<'
        assert cells in table


def test_texts_are_compared_with_those_of_the_own_baseline() -> None:
    raw = two_batches(BETTER)
    texts = ((one, "x" if one.arm.endswith("-b8") else "y") for one in raw.requests)
    records = [replace(one, text=text, text_sha256=f"{ord(text):064x}") for one, text in texts]
    found = losslessness(replace(raw, requests=tuple(records)))
    assert found
    assert [row.differing for row in found.treatments] == [0, 0]
