"""Why one arm is faster or slower: what a step yields against what a step costs.

A decode step of the treatment takes r times one of the baseline and yields t times as many tokens. Only where
t is above r does it pay, whatever the share of accepted drafts: the speed-up to expect is t / r
(S = t * T_base / T_step, Leviathan et al. 2023, https://arxiv.org/abs/2211.17192, with both times as measured).

From which load on plain decoding is the cheaper one, where the measured loads show it.

In a closed loop an arm's tokens per second at a given concurrency are what its cost goes by, so the ratio of the
arms' costs is the ratio of their prices over the paired ratio of `output_tokens_per_s`, with that one's interval.

What a reader must know before believing a run's numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmark.analyse.cells import Cells, Place, token_source
from benchmark.analyse.comparison import EQUIVALENT, MIN_PROMPTS
from benchmark.analyse.values import pooled
from benchmark.measure.journal import RawRun
from benchmark.measure.records import LATE_S
from benchmark.metrics import INTER_CHUNK_LATENCY, OUTPUT_TOKENS_PER_S
from benchmark.plan import Arm, Plan

Described = Mapping[str, Mapping[str, Any]]
_SURPRISE = 0.05
"""A measured speed-up this far from the expected one has another cause beside the steps."""
_ONE_CHUNK_A_STEP = 0.03


def explain(
    cells: Cells, arm: Arm, place: Place, described: Described, measured_speed_up: float | None
) -> dict[str, Any]:
    """Why `arm` is as fast as it is, or null values where its steps are not known.

    `described` holds the summary's cells by arm.
    """
    base, treated = (_step(cells, one, place, described[one.name]) for one in (cells.baseline, arm))
    said: dict[str, Any] = {
        **place.to_dict(),
        "baseline": cells.plan.baseline,
        "treatment": arm.name,
        "tokens_per_step": treated[0] if treated else None,
        "step_time_ratio": None,
        "break_even_tokens_per_step": None,
        "predicted_speed_up": None,
        "measured_speed_up": measured_speed_up,
        "text": f"the steps of an arm are not known: {_why(described, arm)}",
    }
    if base and treated:
        said["step_time_ratio"] = treated[1] / base[1]
        said["break_even_tokens_per_step"] = base[0] * said["step_time_ratio"]
        said["predicted_speed_up"] = treated[0] / said["break_even_tokens_per_step"]
        said["text"] = _in_words(said)
    return said


def _why(described: Described, arm: Arm) -> str:
    notes = [described[arm.name]["acceptance"], *(cell["acceptance"] for cell in described.values())]
    unknown = [one["note"] for one in notes if one["tokens_per_step"] is None]
    return unknown[0] if unknown else "no answer has a second chunk"


def _step(cells: Cells, arm: Arm, place: Place, cell: Mapping[str, Any]) -> tuple[float, float] | None:
    """Tokens of a typical decode step, and its seconds: the median pause between chunks, if they are steps."""
    per_step, pauses = cell["acceptance"]["tokens_per_step"], cell[INTER_CHUNK_LATENCY.name]
    known = pooled(cells.answered(arm, place), arm.max_tokens_per_step)
    if per_step is None or known is None or not pauses:
        return None
    if abs(known.tokens / pauses["n"] / per_step - 1) <= _ONE_CHUNK_A_STEP and pauses["p50"] > 0:
        return per_step, pauses["p50"]  # 0 where most chunks came in the packet of the one before
    return (per_step, known.tpot_s * per_step) if known.span_s > 0 else None


def _in_words(said: dict[str, Any]) -> str:
    needed, expected, measured = (
        said["break_even_tokens_per_step"],
        said["predicted_speed_up"],
        said["measured_speed_up"],
    )
    text = (
        f"a step takes {said['step_time_ratio']:.2f} times the baseline's, so {needed:.2f} tokens per step would "
        f"break even; it yields {said['tokens_per_step']:.2f}, {_outcome(expected)}"
    )
    if measured is None:
        return text
    off = measured / expected - 1
    text = f"{text}, measured {measured:.2f}"
    if abs(off) <= _SURPRISE:
        return text
    return (
        f"{text}: {abs(off):.0%} {'above' if off > 0 else 'below'} what the steps alone explain{_cause(off)}"
    )


def _outcome(expected: float) -> str:
    if expected > EQUIVALENT[1]:
        return f"so it should be faster: {expected:.2f} expected"
    if expected < EQUIVALENT[0]:
        return f"so it should be slower: {expected:.2f} expected"
    return f"so it should be about equal: {expected:.2f} expected"


def _cause(off: float) -> str:
    return " (prefills or a queue between the steps)" if off < 0 else ""


def crossovers(plan: Plan, comparisons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each class and treatment, the lowest measured concurrency from which plain decoding stays cheaper."""
    base = plan.arm(plan.baseline)
    found = []
    for class_ in plan.classes:
        for arm in plan.arms:
            rows = [
                row
                for row in comparisons
                if (row["class"], row["treatment"], row["metric"])
                == (class_, arm.name, OUTPUT_TOKENS_PER_S.name)
                and row["concurrency"] is not None
                and row["ratio"] is not None
            ]
            if len(rows) > 1 or (rows and rows[0]["ratio"] < _price_ratio(base, arm)):
                rows.sort(key=lambda row: row["concurrency"])
                found.append(_crossover(class_, base, arm, rows))
    return found


def _crossover(class_: str, base: Arm, arm: Arm, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`shown` says whether the intervals bear it out."""
    price = _price_ratio(base, arm)
    index = len(rows)
    while index and rows[index - 1]["ratio"] < price:
        index -= 1
    shown = _sure(rows, index, price)
    text = _crossover_in_words([row["concurrency"] for row in rows], index) + _doubt(shown)
    return {
        "class": class_,
        "treatment": arm.name,
        "concurrency_from_which_plain_is_cheaper": rows[index]["concurrency"] if index < len(rows) else None,
        "shown": shown,
        "text": text
        if base.usd_per_hour and arm.usd_per_hour
        else f"{text} (arms at the same price per hour)",
    }


def _price_ratio(base: Arm, arm: Arm) -> float:
    """The arm's price over the baseline's; 1 where one of them is not known."""
    return arm.usd_per_hour / base.usd_per_hour if arm.usd_per_hour and base.usd_per_hour else 1.0


def _sure(rows: Sequence[Mapping[str, Any]], index: int, price: float) -> bool:
    """Whether the interval excludes equal cost where plain decoding becomes cheaper, or anywhere if it never does."""
    if index < len(rows):
        return rows[index]["ci_high"] is not None and rows[index]["ci_high"] < price
    return all(row["ci_low"] is not None and row["ci_low"] > price for row in rows)


def _crossover_in_words(levels: Sequence[int], index: int) -> str:
    if index == len(levels):
        return f"the baseline is cheaper at no measured load up to {levels[-1]} at a time"
    if index == 0:
        return f"the baseline is cheaper from {levels[0]} at a time on, the lowest measured load"
    return f"the baseline becomes cheaper between {levels[index - 1]} and {levels[index]} at a time"


def _doubt(shown: bool) -> str:
    return "" if shown else "; an interval there leaves it open"


def is_aa(plan: Plan) -> bool:
    """Whether arms share an address, so that their difference is the method's own noise."""
    urls = [arm.url for arm in plan.arms]
    return len(set(urls)) < len(urls)


def warnings(plan: Plan, raw: RawRun) -> list[str]:
    """One sentence each; empty for a run without reproach."""
    return [*_of_plan(plan), *_of_records(raw)]


def _of_plan(plan: Plan) -> Iterator[str]:
    if is_aa(plan):
        yield "A/A: arms share an address; what differs between them is noise, and no outputs are compared"
    if plan.simultaneous:
        yield "the arms were loaded at once: they may have slowed each other down, and the client both"
    if plan.ignore_eos:
        yield (
            "answers were forced to max_tokens: what follows an answer's natural end is no natural text, and "
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
            f"the client came up to {lag_s * 1000:.0f} ms late in {late} of {len(raw.blocks)} blocks: times may be "
            "too long by that; give it more CPU or fewer requests at once"
        )
    yield from raw.cautions
    for arm, classes in raw.made_up.items():
        yield (
            f"{arm}: the emulator knows no acceptance for {', '.join(classes)} and makes it up: no verdict there, and "
            "nothing follows for your prompts"
        )
    prices = [sitting.plan.prices for sitting in raw.sittings]
    for arm, price in prices[-1].items():
        if (first := prices[0].get(arm)) != price:
            yield f"{arm}: ${_price(first)} an hour when the run began, ${_price(price)} now: costs are by the last price"
    source = token_source(record for record in raw.requests if record.phase == "measured")
    if source and source.startswith("mixed"):
        yield f"tokens were not counted alike in all answers ({source})"


def _price(usd_per_hour: float | None) -> str:
    return "?" if usd_per_hour is None else f"{usd_per_hour:g}"
