"""What a reader must know before believing a run's numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from benchmark.analyse.cells import token_source
from benchmark.analyse.comparison import MIN_PROMPTS
from benchmark.measure.journal import RawRun
from benchmark.measure.lag import LIMIT_S
from benchmark.plan import Plan


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
    if lag_s > LIMIT_S:
        late = sum(block.client_lag_s > LIMIT_S for block in raw.blocks)
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
