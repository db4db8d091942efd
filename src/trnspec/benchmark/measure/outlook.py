"""What a run says before it loads the servers: its size; and after the warm-up, what it will not be able to say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trnspec.benchmark.cell_size import MIN_PROMPTS, SETS
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.measure.schedule import requests_about, set_size
from trnspec.benchmark.plan import MIXED, Plan
from trnspec.core.words import count, listed, plural


def size(plan: Plan) -> str:
    """Arms, classes, requests, loads and the length of an answer; all requests, and the minutes where the plan limits them."""
    classes = count(len(plan.classes), "class") + (" together" if plan.loaded_with == (MIXED,) else "")
    each = SETS * min(set_size(plan, load) for load in plan.loads) // (len(plan.classes) if plan.mixed else 1)
    loads = listed([f"{load.size:g}" for load in plan.loads])
    unit = "requests per second" if plan.rate else plural(plan.loads[-1].size, "concurrent request")
    limits = {plan.answer_limit(prompt) for prompt in plan.prompts}
    length = f"{max(limits)} tokens" if plan.ignore_eos else f"at most {max(limits)} tokens"
    text = f"{count(len(plan.arms), 'arm')} x {classes} x {each} requests or more, at {loads} {unit}; answers of {length}"
    text += f"; about {requests_about(plan):,} requests with ramps and warm-up"
    if plan.cell_minutes:
        cells = len(plan.loads) * len(plan.loaded_with)
        text += f", {plan.cell_minutes * (cells + 0.5):.0f} minutes at most"
    return text


def limits(plan: Plan, warmups: Mapping[str, Sequence[RequestRecord]], counts: Mapping[str, bool]) -> str:
    """What the run will not be able to say, with the reasons; empty if there is nothing. `warmups` are the answers of each arm, `counts`
    whether its server has counters."""
    return "; ".join(_limits(plan, warmups, counts))


def _limits(
    plan: Plan, warmups: Mapping[str, Sequence[RequestRecord]], counts: Mapping[str, bool]
) -> Iterable[str]:
    answers = {arm: [one for one in own if one.error is None] for arm, own in warmups.items()}
    drafting = [arm.name for arm in plan.arms if arm.speculative_tokens]
    several = [arm.name for arm in plan.arms if arm.max_tokens_per_step > 1]
    prompts = Counter(prompt.class_name for prompt in plan.prompts)
    few = [
        f"{class_} ({count(number, 'prompt')})" for class_, number in prompts.items() if number < MIN_PROMPTS
    ]
    if few:
        yield f"which arm is faster for {listed(few, max_names=5)}: a verdict needs {MIN_PROMPTS} prompts"
    if len(plan.arms) == 1:
        yield "which arm is faster (the run has one arm)"
    if uncounted := [arm for arm in several if any(one.completion_tokens is None for one in answers[arm])]:
        yield f"how many tokens an answer has ({listed(uncounted)}: the server sends no usage)"
    whole = [arm for arm in several if any(one.chunk_tokens is None for one in answers[arm])]
    if whole := [arm for arm in whole if arm not in uncounted]:
        yield f"how many tokens a chunk has ({listed(whole)}: the server sends no usage per chunk)"
    if silent := [arm for arm in drafting if not counts[arm]]:
        yield f"how many drafts are accepted ({listed(silent)}: no counters at /metrics)"
    if all(arm.usd_per_hour is None for arm in plan.arms):
        yield "what a token costs (no arm has a price: --usd-per-hour)"
