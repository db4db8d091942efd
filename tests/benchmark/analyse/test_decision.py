"""What a run says to do, case by case."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from benchmark.analyse.decision import AtLoad, decide
from benchmark.analyse.summary import summarise
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.show.tables import cost_by_class
from benchmark.show.terminal import render
from benchmark.show.wording import UNKNOWN
from tests.benchmark.records import answered, emulated, failed, raw_run

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
    return decide(summarise(run_of(gains, **options))).at


EQUAL_PRICES = {"plain": 10.0, "spec-k7": 10.0}


def test_a_mix_is_what_equal_shares_of_the_tokens_take() -> None:
    found = at({"spec-k7": {"a": 2.0, "b": 4.0}}, spread=0.0, usd=EQUAL_PRICES).mix
    assert found is not None
    assert found.ratio == pytest.approx(2 / (1 / 2 + 1 / 4))
    assert (found.tpot_before_s, found.tpot_after_s) == pytest.approx((PLAIN_S, PLAIN_S * 3 / 8))
    assert found.usd_before is not None
    assert found.usd_after == pytest.approx(found.usd_before * (0.1 + 4 * 3 / 8) / 4.1, rel=0.01)


def test_as_many_prompts_as_would_tell_do_tell() -> None:
    few = at({"spec-k7": {"a": 1.1}}, spread=0.15).mix
    assert few is not None
    assert few.verdict == "no clear difference"
    assert few.prompts_to_tell is not None
    assert at({"spec-k7": {"a": 1.1}}, spread=0.15, prompts=few.prompts_to_tell).advice == "use"


def test_worse_answers_and_faults_speak_against_a_faster_treatment() -> None:
    summary = summarise(run_of({"spec-k7": {"a": 2.0}}))
    worse = {"treatment": "spec-k7", "n": 200, "difference": -0.05, "ci_high": -0.01}
    sentence = decide({**summary, "quality": {"comparisons": [worse]}}).sentence
    assert sentence.startswith("Do not use spec-k7 (window 7) yet: it is 2.0")
    assert sentence.endswith("but its answers to gsm8k are worse by 5.0 points.")
    cell = next(one for one in summary["cells"] if one["arm"] == "spec-k7")
    cell["output_equality"] |= {"equal": 6, "faults": 2}
    found = decide(summary)
    assert found.at.advice == "wait"
    assert "in 2 of its answers it took a token that plain finds much less likely" in found.sentence


def test_a_sweep_names_its_winner_and_what_it_is_not_told_apart_from() -> None:
    gains = {
        "spec-k3": {"a": 1.5, "b": 1.2},
        "spec-k5": {"a": 2.0, "b": 1.21},
        "spec-k7": {"a": 2.5, "b": 0.8},
    }
    found = at(gains, spread=0.05)
    mix, of_a, of_b = found.winners
    assert (mix.arm, mix.second, mix.alike) == ("spec-k5", "spec-k3", ())
    assert (of_a.class_, of_a.arm, of_a.alike) == ("a", "spec-k7", ())
    assert of_b.class_ == "b"
    assert set(of_b.alike) == {"spec-k3", "spec-k5"} - {of_b.arm}
    assert [gain.window for gain in found.by_window] == [3, 5, 7] * 2
    assert {gain.family for gain in found.by_window} == {"spec"}
    assert found.by_class[0].arm == "spec-k7"


def test_the_intervals_of_a_sweep_are_wider_because_the_best_was_chosen() -> None:
    alone = at({"spec-k3": {"a": 2.0}}, spread=0.05).mix
    several = at({f"spec-k{k}": {"a": 2.0} for k in (3, 4, 5, 6)}, spread=0.05)
    assert alone is not None
    widths = [gain.high / gain.low for gain in (alone, *several.by_arm) if gain.high and gain.low]
    assert min(widths[1:]) > 1
    rows = summarise(run_of({f"spec-k{k}": {"a": 2.0} for k in (3, 4)}, spread=0.05))
    ratios = {one["treatment"]: one for one in rows["comparisons"] if one["metric"] == "tpot_s"}
    for one in rows["mix"]:
        assert one["ratio"] == pytest.approx(ratios[one["treatment"]]["ratio"])
        assert one["ci_low"] < ratios[one["treatment"]]["ci_low"]


def test_of_several_loads_the_cheapest_is_answered_first_and_the_others_after_it() -> None:
    summary = summarise(run_of({"spec-k7": {"a": 2.0}}, loads=(1, 4), usd=EQUAL_PRICES))
    for cell in summary["cells"]:
        cell["cost"]["usd_per_million_output_tokens"] *= 1 if cell["concurrency"] == 4 else 3
    sentence = decide(summary).sentence
    assert sentence.startswith("At 4 at a time, use spec-k7 (window 7): 1.99 times faster for a")
    assert sentence.endswith("; at 1 at a time spec-k7 is 2.01 times faster.")


def test_what_an_emulator_made_up_has_neither_dollars_nor_a_verdict() -> None:
    raw = run_of({"spec-k7": {"a": 2.0, "b": 2.0}}, usd={"plain": 10.0, "spec-k7": 10.0})
    nothing = summarise(emulated(raw, made_up={"spec-k7": ["a", "b"]}))
    at = decide(nothing).at
    assert "$/M" not in render(nothing)
    judged = {(gain.verdict, gain.usd_after) for gain in (*at.by_class, *at.by_arm)}
    assert judged == {("not judged", None)}
    summary = summarise(emulated(raw, made_up={"spec-k7": ["a"]}))
    assert [gain.verdict for gain in decide(summary).at.by_class] == ["not judged", "faster"]
    dollars, *_ = cost_by_class(summary)
    assert {row[0]: row[1] for row in dollars.rows}["spec-k7"] == UNKNOWN


def test_the_question_is_made_from_what_is_known_of_the_arms() -> None:
    raw, drafts = run_of({"spec-k7": {"a": 2.0}}), {"spec-k7": {"mode": "fused", "draft": "Qwen/Qwen3-1.7B"}}
    decision = decide({**summarise(raw), "drafts": drafts})
    assert decision.question == "Does drafting with Qwen3-1.7B pay for Qwen3-32B?"
    assert json.loads(json.dumps(decision.as_json(), allow_nan=False))["question"] == decision.question
    own = tuple(record for record in raw.requests if record.arm == "plain")
    sittings = tuple(replace(one, plan=one.plan.with_arms(["plain"])) for one in raw.sittings)
    alone = decide(summarise(replace(raw, sittings=sittings, requests=own)))
    assert alone.question == "How fast is Qwen3-32B?"
