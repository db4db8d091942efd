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
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from benchmark.analyse.cells import Cells, Place, token_source
from benchmark.analyse.comparison import EQUIVALENT, MIN_PROMPTS
from benchmark.analyse.values import decoding, gaps, output_tokens, pooled
from benchmark.measure.journal import RawRun
from benchmark.measure.records import LATE_S, RequestRecord
from benchmark.metrics import INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S
from benchmark.plan import MIXED, Arm, Plan
from core.words import listed

_MATTERS = 0.05
"""Two speed-ups that differ by less are taken for the same."""
_LONG = 2.0
"""Median pauses that a long one takes at least."""
_MOST, _OFTENER = 0.5, 2.0
"""A cause is named where it was seen in this share of the long pauses, and so many times as often as chance would have it."""


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
        """Its mean."""
        return self.tpot_s * self.tokens


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
    ratio = needed = expected = None
    if base and treated:
        ratio = treated.pause_s / base.pause_s
        needed = base.tokens * ratio
        expected = treated.tokens / needed
        text = (
            f"a step takes {ratio:.2f} times the baseline's (mean pauses of {base.pause_s * 1000:.1f} and {treated.pause_s * 1000:.1f} ms), "
            f"so {needed:.2f} tokens per step would break even; it yields {treated.tokens:.2f}, {_outcome(expected, measured_speed_up)}"
        )
        text += _long_pauses(cells, (own, base), (arm, treated), expected)
    else:
        notes = [described[arm.name]["acceptance"], *(cell["acceptance"] for cell in described.values())]
        unknown = [one["note"] for one in notes if one["tokens_per_step"] is None]
        why = unknown[0] if unknown else "no answer has a second chunk"
        text = f"the steps of an arm are not known: {why}"
    return {
        **place.to_dict(),
        "baseline": own.name,
        "treatment": arm.name,
        "tokens_per_step": treated.tokens if treated else None,
        "step_time_ratio": ratio,
        "break_even_tokens_per_step": needed,
        "predicted_speed_up": expected,
        "pooled_speed_up": base.tpot_s / treated.tpot_s if base and treated else None,
        "measured_speed_up": measured_speed_up,
        "text": text,
    }


def _steps(arm: Arm, records: Sequence[RequestRecord], cell: Mapping[str, Any]) -> _Steps | None:
    """Chunks count as steps where nothing contradicts it; else tokens a step are the server's, and the mean pause follows."""
    ceiling, acceptance, pauses = arm.max_tokens_per_step, cell["acceptance"], cell[INTER_CHUNK_LATENCY.name]
    per_step = acceptance["tokens_per_step"]
    decoded = [one for one in records if decoding(one, output_tokens(one, ceiling))]
    known = pooled(decoded, ceiling)
    if per_step is None or known is None:
        return None
    by_chunk = known.tokens / sum(len(one.chunk_s) - 1 for one in decoded)
    chunks = acceptance["caution"] is None and 1 <= by_chunk <= ceiling
    return _Steps(
        tpot_s=known.tpot_s,
        tokens=by_chunk if chunks else per_step,
        records=decoded,
        median_s=pauses["p50"] if chunks and pauses else None,
    )


def _outcome(expected: float, measured: float | None) -> str:
    low, high = EQUIVALENT
    outcome = "faster" if expected > high else "slower" if expected < low else "about equal"
    text = f"so it should be {outcome}: {expected:.2f} by these means"
    if measured is None:
        return text
    text += f", observed {measured:.2f} over pairs"
    if abs(measured / expected - 1) > _MATTERS:
        text += ", where each prompt counts the same and not by its tokens"
    return text


def _long_pauses(cells: Cells, base: tuple[Arm, _Steps], treated: tuple[Arm, _Steps], expected: float) -> str:
    """The effect of pauses above twice the median, and their cause where the records show it; empty where they change little."""
    # 0 where most chunks came in the packet of the one before
    if not (base[1].median_s and treated[1].median_s):
        return ""
    shares = [_time_in_long_pauses(steps) for _, steps in (base, treated)]
    without = expected * (1 - shares[0]) / (1 - shares[1])
    if abs(expected / without - 1) <= _MATTERS:
        return ""
    arm, steps = max(zip(shares, (base, treated), strict=True), key=lambda one: one[0])[1]
    cause = (
        "most of them are pauses in which another request got its first token, so prefills are the likely cause"
        if _with_prefills(cells, arm, steps)
        else "the records do not show why"
    )
    return (
        f"; pauses above twice the median take {shares[1]:.0%} of its time and {shares[0]:.0%} of the baseline's, "
        f"without them it would be {without:.2f}; {cause}"
    )


def _time_in_long_pauses(steps: _Steps) -> float:
    """Share of the time that long pauses take beyond a median one."""
    middle = steps.median_s or 0.0
    pauses = (pause for one in steps.records for pause in gaps(one))
    long_s = math.fsum(pause - middle for pause in pauses if pause > _LONG * middle)
    return long_s / math.fsum(one.chunk_s[-1] - one.chunk_s[0] for one in steps.records)


def _with_prefills(cells: Cells, arm: Arm, steps: _Steps) -> bool:
    """Whether first chunks of other requests fall into long pauses far more often than their length makes likely."""
    middle = steps.median_s or 0.0
    requests = [one for (name, _), found in cells.requests.items() if name == arm.name for one in found]
    firsts = sorted(one.started_unix_s + one.ttft_s for one in requests if one.ttft_s is not None)
    long_s: list[float] = []
    hit, ordinary, ordinary_s = 0, 0, 0.0
    for one in steps.records:
        for begin, end in pairwise(one.chunk_s):
            # A prefill that joins a step sends its first token with the others' next ones.
            low, high = (one.started_unix_s + at for at in (begin + middle / 4, end + middle / 4))
            inside = bisect_right(firsts, high) - bisect_right(firsts, low)
            if end - begin > _LONG * middle:
                hit += inside > 0
                long_s.append(end - begin)
            else:
                ordinary, ordinary_s = ordinary + inside, ordinary_s + end - begin
    if not long_s or not ordinary_s:
        return False
    chance = math.fsum(1 - math.exp(-ordinary / ordinary_s * length) for length in long_s)
    return hit >= _MOST * len(long_s) and hit >= _OFTENER * chance


def crossovers(plan: Plan, comparisons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each class and treatment, the lowest listed concurrency from which plain decoding stays cheaper; a search has an
    answer of its own (`benchmark.analyse.frontier`)."""
    found: list[dict[str, Any]] = []
    if plan.search:
        return found
    for class_, arm in product(plan.classes, plan.arms):
        base = plan.arm(plan.baselines[arm.name])
        sought = (class_, base.name, arm.name, OUTPUT_TOKENS_PER_S.name)
        keys = ("class", "baseline", "treatment", "metric")
        rows = [row for row in comparisons if tuple(map(row.get, keys)) == sought]
        rows = [row for row in rows if row["concurrency"] is not None and row["ratio"] is not None]
        rows.sort(key=lambda row: int(row["concurrency"]))
        price, note = 1.0, " (arms at the same price per hour)"
        if base.usd_per_hour and arm.usd_per_hour:
            price, note = arm.usd_per_hour / base.usd_per_hour, ""
        if len(rows) > 1 or (rows and rows[0]["ratio"] < price):
            crossover = _crossover(rows, price)
            crossover["text"] += note
            found.append({"class": class_, "treatment": arm.name, **crossover})
    return found


def _crossover(rows: Sequence[Mapping[str, Any]], price: float) -> dict[str, Any]:
    """`shown`: whether the interval excludes equal cost where plain decoding becomes cheaper, or anywhere if it never
    does; `price` is the arm's over the baseline's."""
    index = len(rows)
    while index and rows[index - 1]["ratio"] < price:
        index -= 1
    levels = [row["concurrency"] for row in rows]
    if index == len(rows):
        level = None
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
    urls = [arm.url for arm in plan.arms]
    return len(set(urls)) < len(urls)


def warnings(raw: RawRun) -> list[str]:
    """What a reader must know before believing a run's numbers, a sentence each; empty where there is nothing to say."""
    return [*_of_plan(raw.plan), *_of_records(raw)]


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
    prompts = Counter(prompt.class_ for prompt in plan.prompts)
    few = [
        class_ for class_, count in prompts.items() if min(count, plan.requests * plan.rounds) < MIN_PROMPTS
    ]
    if few:
        yield f"fewer than {MIN_PROMPTS} prompts in {', '.join(few)}: no verdict there"


def _of_records(raw: RawRun) -> Iterator[str]:
    if raw.left_out:
        yield raw.left_out
    lag_s = max((block.client_lag_s for block in raw.blocks), default=0.0)
    if lag_s > LATE_S:
        late = sum(block.client_lag_s > LATE_S for block in raw.blocks)
        yield (
            f"the client was up to {lag_s * 1000:.0f} ms late in {late} of {len(raw.blocks)} blocks: times may be "
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
