"""What runs of all kinds say to do."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.benchmark.records import answered, changed, emulated, failed, held, raw_run, result_of, summary_of
from trnspec.benchmark.analyse.answers import losslessness
from trnspec.benchmark.analyse.decision import AtLoad, at_loads, question
from trnspec.benchmark.analyse.requests import cells_of
from trnspec.benchmark.analyse.result import Run
from trnspec.benchmark.measure.journal import RawRun
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.show import page, tables
from trnspec.benchmark.show.report_templates import render
from trnspec.benchmark.show.tables import UNKNOWN

Gains = dict[str, dict[str, float]]
"""By treatment and class, the speed-up."""
PLAIN_S, TOKENS = 0.04, 101


def run_of(
    gains: Gains,
    *,
    prompts: int = 8,
    spread: float = 0.02,
    usd: dict[str, float] | None = None,
    loads: tuple[int, ...] = (4,),
    fails: int = 0,
    **plan: Any,
) -> RawRun:
    """Of `plain` and the treatments, whose names end in their window; the first `fails` requests of each treatment fail."""
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
        times = (0.1, 0.1 + (TOKENS - 1) * tpot_s)
        records.append(answered(arm, chunk_s=times, chunk_tokens=None, completion_tokens=TOKENS, **where))
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
IN_WORDS: list[tuple[RawRun, str, str]] = [
    (one(pair(2.0, 3.0), usd=EQUAL_PRICES), "use", "Use spec-k7 (window 7): 2.40 times faster over all classes in equal shares [2.37, 2.43], $14.37 -> $6.19 per million output tokens; 2.01 to 2.99 times faster for a and b."),
    (one(pair(2.0, 1.0)), "use", "; 2.01 times faster for a; no clear difference for b."),
    (one(pair(2.0, 0.7)), "route", "Route a to spec-k7 (window 7), and keep plain for the rest; 2.01 times faster for a; 0.70 times as fast for b; used for everything it is 1.04 times as fast over all classes"),
    (one(pair(1.3, 0.5)), "route", "used for everything it is 0.73 times as fast"),
    (one(pair(0.8, 0.6)), "keep", "Keep plain: spec-k7 (window 7) is 0.69 times as fast over all classes in equal shares [0.68, 0.70]; 0.60 to 0.80 times as fast for b and a."),
    (one(pair(1.0, 1.0)), "unclear", "; no clear difference for b and a; its load was not held while it was measured, so a ratio that is close to 1 has no verdict."),
    (held(one(pair(1.0, 1.0))), "keep", "INCOMPLETE (32 of 320 requests): keep plain: spec-k7 (window 7) is 1.00 times as fast over all classes in equal shares [0.99, 1.02]; no difference that matters for b and a."),
    (held(one(LITTLE, spread=0.005)), "use", "1.08 times faster in this start of the servers over all classes in equal shares [1.08, 1.08]; 1.08 times faster in this start of the servers for b and a."),
    (held(one(pair(0.92, 1.4), spread=0.005)), "route", "0.92 times as fast in this start of the servers for a; used for everything it is 1.11 times faster over all"),
    (one(LITTLE, spread=0.005), "unclear", "is 1.08 times as fast over all classes"),
    (one(pair(1.1, 1.1), spread=0.5), "unclear", "about 209 prompts per class would show a difference, 8 were asked."),
    (one(BOTH, prompts=5), "unclear", "No verdict: both arms answered at most 5 prompts per class, and 6 are needed."),
    (kept(one(pair(2.0, 4.0)), class_b=5), "use", "use spec-k7 (window 7): 2.01 times faster for a [1.97, 2.06]; too few prompts for b."),
    (one({"a": 1.5}, usd=DEARER), "choose", "Your choice: spec-k7 (window 7) is 1.51 times faster for a [1.48, 1.54], $14.63 -> $29.16 per million output tokens, and costs more."),
    (one({"a": 0.8}, usd=CHEAPER), "choose", "per million output tokens, and costs less."),
    (one(BOTH, prompts=10, fails=2), "none", "Do not switch yet: 4 of 20 requests to spec-k7 failed (timeout 4), 0 of 20 to plain."),
    (kept(emulated(one(BOTH)), class_b=7), "use", "EMULATED, INCOMPLETE (30 of 32 requests): use spec-k7 (window 7): 2.00 times faster"),
    (emulated(one(BOTH, usd=EQUAL_PRICES), made_up={"spec-k7": ["a"]}), "unclear", "EMULATED: no verdict over all classes, because how many drafts are accepted is not known for a; spec-k7 (window 7) is 1.99 times faster for b."),
    (emulated(one(BOTH, usd=EQUAL_PRICES), made_up={"spec-k7": ["a", "b"]}), "unclear", "EMULATED: no verdict: the emulator does not know how many drafts"),
    (run_of(SWEEP, spread=0.05), "use", "Use spec-k5 (window 5; best of 3, 1.18 times faster than spec-k3): 1.59 times faster"),
    (run_of(EQUAL, spread=0.05), "use", "(window 5; best of 3, no clear difference from spec-k7 and spec-k3): 2.12 times faster for a"),
    (run_of({"spec-k2": pair(1.2, 1.2), "spec-k7": pair(3.0, 0.8)}), "route", "; 3.07 times faster for a; 0.79 times as fast for b; spec-k2 (window 2) is 1.19 times faster for b; used for everything"),
    (run_of({"spec-k2": pair(1.0, 1.0), "spec-k7": pair(1.5, 0.6)}), "route", "Route a to spec-k7 (window 7), 1.54 times faster [1.51, 1.56], and keep plain for the rest; spec-k2 (window 2; best of 2,"),
    (run_of({"spec-k3": {"a": 2.0}, "other": {"a": 2.0}}), "use", "Use other (best of 2, no clear difference from spec-k3)"),
    (two_batches(BETTER), "use", "Use spec-k7-b8 (window 7): 2.01 times faster over all classes in equal shares [1.99, 2.04] (over plain-b8), $11.16 -> $5.76 per million output tokens; 2.00 to"),
    (two_batches(BETTER | {"spec-k7": 3.0}), "use", "Use spec-k7 (window 7): 3.06 times faster over all classes in equal shares [3.01, 3.11] (over plain)"),
    (two_batches(BETTER | {"plain-b8": 4.0, "spec-k7": 0.8}), "keep", "Keep plain: spec-k7 (window 7) is"),
]  # fmt: skip
"""Runs of all kinds, their advice, and a part of the sentence."""


def test_each_kind_of_run_says_what_to_do() -> None:
    for raw, advice, part in IN_WORDS:
        result = result_of(raw)
        assert (result.advice[result.here].advice, part in result.sentence) == (advice, True), result.sentence


def test_a_mix_is_what_equal_shares_of_the_tokens_take() -> None:
    found = at({"spec-k7": pair(2.0, 4.0)}, spread=0.0, usd=EQUAL_PRICES).mix
    assert found is not None
    assert found.ratio == pytest.approx(2 / (1 / 2 + 1 / 4))
    assert (found.baseline_tpot_s, found.treatment_tpot_s) == pytest.approx((PLAIN_S, PLAIN_S * 3 / 8))
    assert found.usd_before is not None
    assert found.usd_after == pytest.approx(found.usd_before * (0.1 + 4 * 3 / 8) / 4.1, rel=0.01)


def test_as_many_prompts_as_would_tell_do_tell() -> None:
    few = at({"spec-k7": {"a": 1.2}}, spread=0.2).mix
    assert few is not None
    assert few.verdict == "not shown"
    assert few.prompts_to_tell is not None
    (told,) = result_of(run_of({"spec-k7": {"a": 1.2}}, spread=0.2, prompts=few.prompts_to_tell)).advice
    assert told.advice == "use"


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
    quality = {"task": "gsm8k", "questions": None, "answered": {}, "scores": [], "comparisons": [worse]}
    sentence = changed(result_of(one({"a": 2.0})), quality=quality).sentence
    assert sentence.startswith("Do not use spec-k7 (window 7) yet: it is 2.0")
    assert sentence.endswith("but its answers to gsm8k are worse by 5.0 points.")


def test_of_several_loads_the_cheapest_is_answered_first_and_the_others_after_it() -> None:
    result = result_of(one({"a": 2.0}, loads=(1, 4), usd=EQUAL_PRICES))
    mix = [row.model_dump() for row in result.mix]
    for row in mix:
        row["usd_after"] *= 1 if row["concurrency"] == 4 else 3
    sentence = changed(result, mix=mix).sentence
    assert sentence.startswith("At 4 at a time, use spec-k7 (window 7): 1.99 times faster for a")
    assert sentence.endswith("; at 1 at a time spec-k7 is 2.01 times faster.")


@pytest.mark.parametrize(
    ("gain", "hold", "told"),
    [
        (1.06, True, "1.07 times as fast (no clear difference)"),
        (1.0, True, "1.00 times as fast (no difference that matters)"),
        (0.92, True, "0.92 times as fast in this start of the servers (slower)"),
        (0.92, False, "0.92 times as fast (no clear difference)"),
        (1.08, True, "1.08 times faster in this start of the servers"),
    ],
)
def test_what_is_said_of_other_loads_has_its_verdict(gain: float, hold: bool, told: str) -> None:
    raw = one({"a": gain}, loads=(1, 4), spread=0.03 if gain == 1.06 else 0.005, usd=EQUAL_PRICES)
    (other,) = re.findall(
        r"; at \d at a time spec-k7 is (.*)\.$", result_of(held(raw) if hold else raw).sentence
    )
    assert other == told


def test_what_an_emulator_made_up_has_neither_dollars_nor_a_verdict() -> None:
    raw = one(pair(2.0, 2.0), usd=EQUAL_PRICES)
    nothing = result_of(emulated(raw, made_up={"spec-k7": ["a", "b"]}))
    (found,) = at_loads(nothing)
    assert "$/M" not in render(nothing)
    judged = {(gain.verdict, gain.usd_after) for gain in (*found.by_class, *found.by_arm)}
    assert judged == {("not judged", None)}
    result = result_of(emulated(raw, made_up={"spec-k7": ["a"]}))
    assert [one.verdict for one in at_loads(result)[0].by_class] == ["not judged", "faster"]
    dollars, *_ = tables.cost_by_class(result)
    assert {row[0]: row[1] for row in dollars.rows}["spec-k7"] == UNKNOWN


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
