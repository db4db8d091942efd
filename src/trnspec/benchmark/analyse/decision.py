"""The recommendation of a run: the question, the advice for each load, and its sentence. `templates/` has the words.

The time per output token decides; dollars, failures and answers can be reasons against an arm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trnspec.benchmark.analyse.result import Advice, Best, Comparison, Result, Run
from trnspec.benchmark.analyse.sentences import rendered
from trnspec.benchmark.analyse.speed_up import EQUIVALENT, MIN_PROMPTS, NOT_HELD, STARTS_DIFFER
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import Load
from trnspec.core.words import count

MORE_ERRORS = 0.01
"""If the share of failed requests exceeds that of the baseline by more than this, it is a reason against a treatment."""


@dataclass(frozen=True, kw_only=True)
class AtLoad:
    """The comparisons by time per output token under one load."""

    load: Load
    baseline: str
    """The baseline of the best treatment."""
    mix: Comparison | None
    """The best treatment over all classes; None if nothing can be compared."""
    by_class: tuple[Comparison, ...]
    """The best treatment of each class."""
    by_arm: tuple[Comparison, ...]
    """Every treatment over the mix, the best first."""
    by_window: tuple[Comparison, ...]
    """Every treatment in every class, by family, class and window."""
    best: tuple[Best, ...]
    """With several treatments of a baseline, the best of the mix, then that of each class that has one."""

    @property
    def of_one_start(self) -> str:
        """A caution about verdicts near 1, or an empty text."""
        low, high = STARTS_DIFFER
        shown = any(one.one_start for one in (*self.by_window, *self.by_arm))
        return f"Verdicts from {low:.2f} to {high:.2f} are about this start of the servers." if shown else ""

    @property
    def before(self) -> str:
        """The name of the baseline, or words for several."""
        return self.baseline if len({one.baseline for one in self.by_window}) < 2 else "its baseline"


def at_loads(result: Result) -> list[AtLoad]:
    return [_at(result, load) for load in result.loads]


def at_load(result: Result) -> AtLoad:
    """The load that the sentence is about."""
    return _at(result, result.loads[result.here])


def _at(result: Result, load: Load) -> AtLoad:
    classes = [one for one in result.comparisons if one.load == load and one.metric == TPOT.name]
    best = {(one.baseline, one.class_): one for one in result.best if one.load == load}
    names, alone = (
        list(dict.fromkeys(one.class_ for one in classes)),
        len({one.baseline for one in classes}) == 1,
    )

    def rank(one: Comparison) -> tuple[bool, float]:
        won = best.get((one.baseline, one.class_))
        return alone and won is not None and one.treatment != won.arm, -(one.ratio or 0)

    by_arm = sorted((one for one in result.mix if one.load == load), key=rank)
    mix = next((one for one in by_arm if one.ratio), None)
    return AtLoad(
        load=load,
        baseline=mix.baseline if mix else result.run.baseline,
        mix=mix,
        by_class=tuple(min((one for one in classes if one.class_ == name), key=rank) for name in names),
        by_arm=tuple(by_arm),
        by_window=tuple(sorted(classes, key=lambda one: (one.family, names.index(one.class_), one.window))),
        best=tuple(best.values()),
    )


def advised(result: Result) -> Result:
    """The result with its question, the advice for each load, and the sentence."""
    loads, run = at_loads(result), result.run
    advice = tuple(_advice(result, at) for at in loads)

    def cost_rank(index: int) -> tuple[bool, float, int]:
        """The load at which tokens are cheapest comes first."""
        mix = loads[index].mix
        known = [usd for usd in (mix.usd_before, mix.usd_after) if usd is not None] if mix else []
        return mix is None, min(known, default=math.inf), -index

    here = min(range(len(loads)), key=cost_rank)
    sentence = advice[here].sentence
    if len(loads) > 1:
        sentence = f"at {loads[here].load.in_words}, {sentence}"
    for at in loads[:here] + loads[here + 1 :]:
        sentence += f"; at {at.load.in_words} {rendered('advice', at=at, reason='other load')}"
    done = f"INCOMPLETE ({run.requests_recorded} of {run.requests_planned} requests)"
    labels = ["EMULATED"] * (run.provenance == "emulated") + [done] * (not run.complete)
    sentence = ": ".join([*filter(None, [", ".join(labels)]), sentence])
    sentence = f"{sentence[:1].upper()}{sentence[1:]}."
    draft = {name: drafting.draft for name, drafting in result.drafts.items()}
    told = {"question": question(run, draft), "sentence": sentence, "here": here, "advice": advice}
    return result.model_copy(update=told)


def question(run: Run, drafts: dict[str, str]) -> str:
    """The question that the run answers, from its arms and the names of their drafts."""
    treatments, model = run.treatments, _short(run.model)
    if run.aa or not treatments:
        return f"How much do measurements of {model} vary?" if run.aa else f"How fast is {model}?"
    drafting = all(arm.speculative_tokens for arm in treatments)
    if len(treatments) > 1:
        return f"Which {'way of drafting pays' if drafting else 'arm is fastest'} for {model}?"
    (arm,) = treatments
    if not drafting:
        return f"Is {arm.name} faster than {run.baseline} for {model}?"
    known = drafts.get(arm.name)
    what = f"with {_short(known)}" if known else f"{count(arm.speculative_tokens, 'token')} per step"
    return f"Does drafting {what} pay for {model}?"


def _short(model: str) -> str:
    """The name of the model without its owner."""
    return model.rstrip("/").rpartition("/")[2]


def average(ones: Sequence[Comparison], number: str) -> float | None:
    """The mean of one number over comparisons; None if it is unknown for one."""
    values = [getattr(one, number) for one in ones]
    return math.fsum(values) / len(values) if values and None not in values else None


def _advice(result: Result, at: AtLoad) -> Advice:
    code, reason, facts = _advised(result, at)
    return Advice(
        concurrency=at.load.concurrency,
        rate_per_s=at.load.rate_per_s,
        baseline=at.baseline,
        arm=at.mix.treatment if at.mix else None,
        advice=code,
        sentence=rendered("advice", at=at, reason=reason, **facts, average=average),
    )


def _advised(result: Result, at: AtLoad) -> tuple[Any, str, dict[str, Any]]:
    """The advice, the code of its reason, and further values for its sentence."""
    cause = [row.says for row in result.evidence if row.outcome == "withheld" and row.class_ is None]
    if cause and all(one.verdict == "not judged" for one in at.by_arm):
        return "none", "withheld", {"cause": "; ".join(cause)}
    if result.run.aa:
        return "none", "same address", {}
    if len(result.run.arms) == 1:
        return "none", "one arm", {}
    if at.mix:
        return _of_mix_known(result, at, at.mix)
    if all(one.verdict == "not judged" for one in at.by_window):
        return "unclear", "acceptance unknown", {}
    if unknown := [str(one.class_) for one in at.by_class if one.verdict == "not judged"]:
        known = [one for one in at.by_class if one.class_ not in unknown and one.ratio]
        return "unclear", "acceptance unknown of some", {"unknown": unknown, "known": known}
    maximum = max((one.n_prompts for one in at.by_window), default=0)
    return "unclear", "few prompts", {"prompts": maximum, "min_prompts": MIN_PROMPTS}


def _of_mix_known(result: Result, at: AtLoad, mix: Comparison) -> tuple[Any, str, dict[str, Any]]:
    own = [one for one in at.by_window if one.treatment == mix.treatment]
    faster = [one for one in own if one.verdict == "faster"]
    rest = {one.class_: one for one in own if one.verdict != "faster"}
    also = [one for one in at.by_class if one.verdict == "faster" and one.class_ in rest]
    inside = [one for one in own if one.n_prompts >= MIN_PROMPTS]
    facts = {"own": own, "faster": faster, "also": also, "inside": inside, "not_held": NOT_HELD}
    gain_usd = mix.usd_before / mix.usd_after if mix.usd_before and mix.usd_after else 1.0
    pays, costs_more = mix.verdict == "faster", gain_usd < EQUIVALENT[0]
    if (pays or faster) and (troubles := list(_troubles(result, at, mix.treatment))):
        return "wait", "troubles", facts | {"troubles": troubles}
    if (pays and costs_more) or (not pays and not faster and gain_usd > EQUIVALENT[1]):
        return "choose", "time against dollars", facts | {"costs_more": costs_more}
    if pays and not any(one.verdict == "slower" for one in rest.values()):
        return "use", "faster", facts
    if faster or also:
        return "route", "faster for some" if faster else "others faster", facts
    if mix.verdict == "not shown":
        return "unclear", "no clear difference", facts
    return "keep", "not faster", facts


def _troubles(result: Result, at: AtLoad, arm: str) -> Iterator[dict[str, Any]]:
    cells = [cell for cell in result.cells if cell.load == at.load]
    counts = []
    for name in (at.baseline, arm):
        failed = sum(cell.errors for cell in cells if cell.arm == name)
        counts.append((failed, failed + sum(cell.n for cell in cells if cell.arm == name)))
    before, after = counts
    if after[0] / max(after[1], 1) > before[0] / max(before[1], 1) + MORE_ERRORS:
        yield {"kind": "failures", "failed": after, "before": before}
    scores = result.quality.comparisons if result.quality else []
    worse = [
        -one.difference * 100
        for one in scores
        if one.treatment == arm and one.difference and (one.ci_high or 0.0) < 0
    ]
    if worse:
        yield {"kind": "answers", "points": max(worse)}
