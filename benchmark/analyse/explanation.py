"""Why one arm is faster or slower, from which load on it no longer pays, and what limits these numbers.

A decode step of the treatment takes r times one of the baseline and yields t times as many tokens. Only where
t is above r does it pay, whatever the share of accepted drafts: the speed-up to expect is t / r
(S = t * T_base / T_step, Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with both times as measured).

In a closed loop an arm's tokens per second at a given concurrency are what its cost goes by, so the ratio of the
arms' costs is the ratio of their prices over the paired ratio of `output_tokens_per_s`, with that one's interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from benchmark.analyse.cells import Cells, Place, token_source
from benchmark.analyse.comparison import EQUIVALENT, MIN_PROMPTS
from benchmark.analyse.values import pooled
from benchmark.measure.journal import RawRun
from benchmark.measure.records import LATE_S
from benchmark.metrics import INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S
from benchmark.plan import MIXED, Arm, Plan

_SURPRISE = 0.05
"""A measured speed-up this far from the expected one has another cause beside the steps."""
_ONE_CHUNK_A_STEP = 0.03


def explain(
    cells: Cells,
    arm: Arm,
    place: Place,
    described: Mapping[str, Mapping[str, Any]],
    measured_speed_up: float | None,
) -> dict[str, Any]:
    """Why `arm` is as fast as it is beside its baseline, or null values where its steps are not known.

    `described` holds the summary's cells by arm.
    """
    own = cells.baseline_of(arm)
    base, treated = (_step(cells, one, place, described[one.name]) for one in (own, arm))
    ratio = needed = expected = None
    if base and treated:
        ratio = treated[1] / base[1]
        needed = base[0] * ratio
        expected = treated[0] / needed
        text = (
            f"a step takes {ratio:.2f} times the baseline's, so {needed:.2f} tokens per step would break even; "
            f"it yields {treated[0]:.2f}, {_outcome(expected, measured_speed_up)}"
        )
    else:
        notes = [described[arm.name]["acceptance"], *(cell["acceptance"] for cell in described.values())]
        unknown = [one["note"] for one in notes if one["tokens_per_step"] is None]
        why = unknown[0] if unknown else "no answer has a second chunk"
        text = f"the steps of an arm are not known: {why}"
    return {
        **place.to_dict(),
        "baseline": own.name,
        "treatment": arm.name,
        "tokens_per_step": treated[0] if treated else None,
        "step_time_ratio": ratio,
        "break_even_tokens_per_step": needed,
        "predicted_speed_up": expected,
        "measured_speed_up": measured_speed_up,
        "text": text,
    }


def _step(cells: Cells, arm: Arm, place: Place, cell: Mapping[str, Any]) -> tuple[float, float] | None:
    """Tokens of a typical decode step, and its seconds: the median pause between chunks, if they are steps."""
    per_step, pauses = cell["acceptance"]["tokens_per_step"], cell[INTER_CHUNK_LATENCY.name]
    known = pooled(cells.answered(arm, place), arm.max_tokens_per_step)
    if per_step is None or known is None or not pauses:
        return None
    if abs(known.tokens / pauses["n"] / per_step - 1) <= _ONE_CHUNK_A_STEP and pauses["p50"] > 0:
        return per_step, pauses["p50"]  # 0 where most chunks came in the packet of the one before
    return (per_step, known.tpot_s * per_step) if known.span_s > 0 else None


def _outcome(expected: float, measured: float | None) -> str:
    low, high = EQUIVALENT
    outcome = "faster" if expected > high else "slower" if expected < low else "about equal"
    text = f"so it should be {outcome}: {expected:.2f} expected"
    if measured is None:
        return text
    off, text = measured / expected - 1, f"{text}, measured {measured:.2f}"
    if off > _SURPRISE:
        return f"{text}: {off:.0%} above what the steps alone explain"
    if off < -_SURPRISE:
        return (
            f"{text}: {-off:.0%} below what the steps alone explain (prefills or a queue between the steps)"
        )
    return text


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
        text = f"the baseline is cheaper at no measured load up to {levels[-1]} at a time"
    else:
        level, high = levels[index], rows[index]["ci_high"]
        shown = high is not None and high < price
        text = f"the baseline is cheaper from {level} at a time on, the lowest measured load"
        if index:
            text = f"the baseline becomes cheaper between {levels[index - 1]} and {level} at a time"
    return {
        "concurrency_from_which_plain_is_cheaper": level,
        "shown": shown,
        "text": text if shown else f"{text}; an interval there leaves it open",
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
        yield "the arms were loaded at once: they may have slowed each other down, and the client both"
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
            f"{rounds} rounds, one after the other: between arms of two rounds there are hours; where an arm and its "
            "baseline were in one round, that round's page compares them within it"
        )
    yield from raw.cautions
    for arm, classes in raw.made_up.items():
        yield (
            f"{arm}: the emulator knows no acceptance for {', '.join(classes)} and makes it up: no verdict there, and "
            "nothing follows for your prompts"
        )
    at_first = raw.sittings[0].plan.prices
    for arm, price in raw.plan.prices.items():
        if at_first.get(arm) != price:
            then, now = ("?" if usd is None else f"{usd:g}" for usd in (at_first.get(arm), price))
            yield f"{arm}: ${then} an hour when the run began, ${now} now: costs are by the last price"
    source = token_source(record for record in raw.requests if record.phase == "measured")
    if source and source.startswith("mixed"):
        yield f"tokens were not counted alike in all answers ({source})"
