"""Why one arm is faster or slower, from which load on it no longer pays, and what limits these numbers.

A decode step of the treatment takes r times one of the baseline and yields t times as many tokens. Only where
t is above r does it pay, whatever the share of accepted drafts: the speed-up to expect is t / r
(S = t * T_base / T_step, Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with both times as measured).
Both are means over the same steps of the same answers, so that the mean pause over tokens a step is the time per token, and t / r is
the ratio of the two arms' times per token, whatever the pauses look like (`pooled_speed_up`).

In a closed loop an arm's tokens per second at a given concurrency are what its cost goes by, so the ratio of the
arms' costs is the ratio of their prices over the paired ratio of `output_tokens_per_s`, with that one's interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmark.analyse.cells import Cells, Place, token_source
from benchmark.analyse.comparison import EQUIVALENT, MIN_PROMPTS, STARTS_DIFFER
from benchmark.analyse.stats import mean
from benchmark.analyse.values import decoding, gaps, output_tokens, pooled
from benchmark.measure.journal import RawRun
from benchmark.measure.records import LATE_S, RequestRecord
from benchmark.metrics import INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S
from benchmark.plan import MIXED, Arm, Load, Plan
from core.words import listed

_MATTERS = 0.05
"""Two speed-ups that differ by less are taken for the same."""
_LONG = 2.0
"""Median pauses that a long one takes at least."""


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """The decode steps of one arm's answers."""

    tpot_s: float
    tokens: float
    """Tokens of a step."""
    records: Sequence[RequestRecord]
    median_s: float | None
    """The median pause between two chunks, where each of them is a step."""

    @property
    def pause_s(self) -> float:
        """The mean pause."""
        return self.tpot_s * self.tokens

    @property
    def time_in_long_pauses(self) -> float:
        """Share of the time that pauses above twice the median take beyond a median one."""
        middle = self.median_s or 0.0
        pauses = (pause for record in self.records for pause in gaps(record))
        long_s = math.fsum(pause - middle for pause in pauses if pause > _LONG * middle)
        return long_s / math.fsum(record.chunk_s[-1] - record.chunk_s[0] for record in self.records)


def explain(
    cells: Cells,
    arm: Arm,
    place: Place,
    described: Mapping[str, Mapping[str, Any]],
    measured_speed_up: float | None,
) -> dict[str, Any]:
    """Why `arm` is as fast as it is beside its baseline, or null values where its steps are not known.

    `described` holds the summary's cells by arm; `measured_speed_up` is the mean over pairs, in which prompts weigh alike.
    """
    own = cells.baseline_of(arm)
    sides = zip(*cells.pairs((own, arm), place), strict=True)
    base, treated = (
        _steps(one, records, described[one.name]) for one, records in zip((own, arm), sides, strict=True)
    )
    row = {
        **{**place.to_dict(), "baseline": own.name, "treatment": arm.name},
        "tokens_per_step": treated.tokens if treated else None,
        "step_time_ratio": None,
        "break_even_tokens_per_step": None,
        "predicted_speed_up": None,
        "pooled_speed_up": None,
        "measured_speed_up": measured_speed_up,
    }
    if not (base and treated):
        notes = [described[arm.name]["acceptance"], *(cell["acceptance"] for cell in described.values())]
        unknown = [note["note"] for note in notes if note["tokens_per_step"] is None]
        why = unknown[0] if unknown else "no answer has a second chunk"
        return row | {"text": f"the steps of an arm are not known: {why}"}
    ratio = treated.pause_s / base.pause_s
    needed = base.tokens * ratio
    text = (
        f"a step takes {ratio:.2f} times the baseline's (mean pauses of {base.pause_s * 1000:.1f} and {treated.pause_s * 1000:.1f} ms), "
        f"so {needed:.2f} tokens per step would break even; it yields {treated.tokens:.2f}, "
    )
    return row | {
        "step_time_ratio": ratio,
        "break_even_tokens_per_step": needed,
        "predicted_speed_up": treated.tokens / needed,
        "pooled_speed_up": base.tpot_s / treated.tpot_s,
        "text": text + _outcome(treated.tokens / needed, measured_speed_up, base, treated),
    }


def _steps(arm: Arm, records: Sequence[RequestRecord], cell: Mapping[str, Any]) -> _Steps | None:
    """Chunks count as steps where nothing contradicts it; else tokens a step are the server's, and the mean pause follows."""
    ceiling, acceptance, pauses = arm.max_tokens_per_step, cell["acceptance"], cell[INTER_CHUNK_LATENCY.name]
    per_step = acceptance["tokens_per_step"]
    decoded = [record for record in records if decoding(record, output_tokens(record, ceiling))]
    known = pooled(decoded, ceiling)
    if per_step is None or known is None:
        return None
    by_chunk = known.tokens / sum(len(record.chunk_s) - 1 for record in decoded)
    chunks = acceptance["caution"] is None and 1 <= by_chunk <= ceiling
    return _Steps(
        tpot_s=known.tpot_s,
        tokens=by_chunk if chunks else per_step,
        records=decoded,
        median_s=pauses["p50"] if chunks and pauses else None,
    )


def _outcome(expected: float, measured: float | None, base: _Steps, treated: _Steps) -> str:
    low, high = EQUIVALENT
    outcome = "faster" if expected > high else "slower" if expected < low else "about equal"
    text = f"so it should be {outcome}: {expected:.2f} by these means"
    if measured is not None:
        text += f", observed {measured:.2f} over pairs"
        if abs(measured / expected - 1) > _MATTERS:
            text += ", where each prompt counts the same and not by its tokens"
    if base.median_s and treated.median_s:  # 0 where most chunks came in the packet of the one before
        before, after = base.time_in_long_pauses, treated.time_in_long_pauses
        without = expected * (1 - before) / (1 - after)
        if abs(expected / without - 1) > _MATTERS:
            text += (
                f"; pauses above twice the median take {after:.0%} of its time and {before:.0%} of the baseline's, "
                f"without them it would be {without:.2f}"
            )
    return text


def split_steps(summary: Mapping[str, Any]) -> Iterator[str]:
    """What a drafted step costs beside drafting, a sentence for each load: where a plain arm of the run has the same scheduler as a
    drafting one, the step's cost is split into the scheduler's part and drafting's. They have it where what else differs in their
    engines (`also_changes`) has a text in common; what follows a colon is only the reason."""
    arms = summary["run"]["arms"]
    changes = {
        arm["name"]: [text.partition(":")[0].strip() for text in arm.get("also_changes", ())] for arm in arms
    }
    for arm, same in product(arms, arms):
        shared = [text for text in changes[arm["name"]] if text in changes[same["name"]]]
        if arm["speculative_tokens"] and not same["speculative_tokens"] and shared:
            yield from _split(summary["explanations"], arm["name"], same["name"], " and ".join(shared))


def _split(rows: Sequence[Mapping[str, Any]], drafting: str, same: str, what: str) -> Iterator[str]:
    """Steps over the same baseline's, geometric means over the classes in which both are known."""
    steps: dict[Load, dict[str, dict[str, float]]] = {}
    known = [row for row in rows if row["treatment"] in (drafting, same) and row["step_time_ratio"]]
    for row in known:
        place = Place.of(row)
        of_arm = steps.setdefault(place.load, {drafting: {}, same: {}})[row["treatment"]]
        of_arm[place.class_] = math.log(row["step_time_ratio"])
    if len(bases := {row["baseline"] for row in known}) != 1:
        return
    for load, by_arm in steps.items():
        if classes := by_arm[drafting].keys() & by_arm[same].keys():
            whole, alone = (
                math.exp(mean([by_arm[name][class_] for class_ in classes])) for name in (drafting, same)
            )
            yield (
                f"Step of {drafting}, {load.in_words}: {whole:.2f} times as long as that of {next(iter(bases))}. What it changes beside "
                f"drafting ({what}) accounts for {alone - 1:+.2f}, as {same} shows, which decodes plainly; drafting accounts for "
                f"{whole - alone:+.2f}."
            )


def crossovers(plan: Plan, comparisons: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """For each class and treatment, the lowest listed concurrency from which plain decoding stays cheaper; a search has an
    answer of its own (`benchmark.analyse.frontier`)."""
    for class_, arm in product(() if plan.search else plan.classes, plan.arms):
        base = plan.arm(plan.baselines[arm.name])
        sought = (class_, base.name, arm.name, OUTPUT_TOKENS_PER_S.name)
        keys = ("class", "baseline", "treatment", "metric")
        rows = [
            row
            for row in comparisons
            if tuple(map(row.get, keys)) == sought
            and row["concurrency"] is not None
            and row["ratio"] is not None
        ]
        price, note = 1.0, " (arms at the same price per hour)"
        if base.usd_per_hour and arm.usd_per_hour:
            price, note = arm.usd_per_hour / base.usd_per_hour, ""
        if len(rows) > 1 or (rows and rows[0]["ratio"] < price):
            known = _crossover(sorted(rows, key=lambda row: int(row["concurrency"])), price)
            yield {"class": class_, "treatment": arm.name, **known, "text": known["text"] + note}


def _crossover(rows: Sequence[Mapping[str, Any]], price: float) -> dict[str, Any]:
    """`shown`: whether the interval excludes equal cost where plain decoding becomes cheaper, or anywhere if it never
    does; `price` is the arm's over the baseline's."""
    index = len(rows)
    while index and rows[index - 1]["ratio"] < price:
        index -= 1
    levels, level = [row["concurrency"] for row in rows], None
    if index == len(rows):
        shown = all(row["ci_low"] is not None and row["ci_low"] > price for row in rows)
        text = f"the baseline is cheaper at no load up to {levels[-1]} at a time"
    else:
        level, high = levels[index], rows[index]["ci_high"]
        shown = high is not None and high < price
        text = f"the baseline is cheaper from {level} at a time on, the lowest load of the run"
        if index:
            text = f"the baseline becomes cheaper between {levels[index - 1]} and {level} at a time"
    return {
        "concurrency_from_which_plain_is_cheaper": level,
        "shown": shown,
        "text": text if shown else f"{text}; not certain, because an interval includes equal cost",
    }


def is_aa(plan: Plan) -> bool:
    """Whether arms share an address, so that their difference is the method's own noise."""
    return len({arm.url for arm in plan.arms}) < len(plan.arms)


def warnings(raw: RawRun) -> Iterator[str]:
    """What a reader must know before believing a run's numbers, a sentence each; empty where there is nothing to say."""
    yield from _of_plan(raw.plan)
    yield from _of_records(raw)


def _of_plan(plan: Plan) -> Iterator[str]:
    if is_aa(plan):
        yield "A/A: arms share an address; what differs between them is noise, and no outputs are compared"
    if made_up := sum(prompt.made_up for prompt in plan.prompts):
        yield (
            f"{made_up} of {len(plan.prompts)} prompts have made-up texts with the lengths of recorded ones: how many drafts are "
            "accepted depends on the text, so no speed-up here is that of your traffic"
        )
    if MIXED in plan.loaded_with:
        yield "classes were asked together, as they come: tokens per second and dollars are those of all classes"
    if plan.simultaneous:
        yield "the arms were loaded at once: they may have slowed each other down, and the client may have slowed both"
    if plan.ignore_eos:
        yield (
            "answers were forced to max_tokens: what follows an answer's natural end is not natural text, and "
            "drafts of it are accepted at another rate"
        )
    if plan.temperature > 0:
        yield f"temperature {plan.temperature:g}: equal outputs are not to be expected, pairs vary more"
    asked, prompts = plan.requests * plan.rounds, Counter(prompt.class_ for prompt in plan.prompts)
    if few := [class_ for class_, number in prompts.items() if min(number, asked) < MIN_PROMPTS]:
        yield f"fewer than {MIN_PROMPTS} prompts in {', '.join(few)}: no verdict there"


def _of_records(raw: RawRun) -> Iterator[str]:
    if raw.left_out:
        yield raw.left_out
    lags_s = [block.client_lag_s for block in raw.blocks]
    if late := sum(lag_s > LATE_S for lag_s in lags_s):
        yield (
            f"the client was up to {max(lags_s) * 1000:.0f} ms late in {late} of {len(lags_s)} blocks: times may be "
            "too long by that; give it more CPU or fewer requests at once"
        )
    if (rounds := len({sitting.run for sitting in raw.sittings})) > 1:
        yield (
            f"{rounds} rounds, one after the other: arms of different rounds were measured hours apart; where an arm "
            "and its baseline were in one round, that round's report compares them"
        )
    yield from raw.cautions
    for arm, classes in raw.made_up.items():
        yield (
            f"{arm}: no verdict for {listed(classes)}, because the emulator does not know how many drafts of these prompts are "
            "accepted: measure it on any vLLM server that drafts (benchmark run --prompts), then ./trnspec forecast EXPERIMENT "
            "--run DIR, or --acceptance FILE"
        )
    at_first = raw.sittings[0].plan.prices
    for arm, price in raw.plan.prices.items():
        if at_first.get(arm) != price:
            then, now = ("?" if usd is None else f"{usd:g}" for usd in (at_first.get(arm), price))
            yield f"{arm}: ${then} an hour when the run began, ${now} now: costs are by the last price"
    source = token_source(record for record in raw.requests if record.phase == "measured")
    if source and source.startswith("mixed"):
        yield f"tokens were not counted in the same way in all answers ({source})"


def not_held(raw: RawRun) -> Iterator[str]:
    """What to beware of where loads were not held while they were measured."""
    if not raw.held and not raw.plan.replayed:
        low, high = STARTS_DIFFER
        yield (
            "its loads were not held while they were measured (it has no marks of that): full and draining waves are mixed, so "
            f"a ratio from {low:.2f} to {high:.2f} has no verdict"
        )
