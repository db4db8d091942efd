"""The recommendation of a run: the question, the advice for each load, and its sentence. `templates/` has the words.

The first rule that applies gives the advice for a load. The time per output token decides, other metrics and dollars are said beside it:

    do not switch yet   evidence, failures or answers speak against an arm as a whole
    too few prompts     in every class
    use                 faster over the mix, by more than a restart can change, and slower in no class
    use for some        faster in some classes
    keep for now        faster or a little faster over the mix, which a restart can change
    keep                same, a little slower or slower over the mix
    cannot tell         else
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trnspec.benchmark.analyse.evidence import withheld_from
from trnspec.benchmark.analyse.result import (
    Advice,
    AdviceCode,
    Best,
    Comparison,
    Evidence,
    Result,
    Run,
    Verdict,
)
from trnspec.benchmark.analyse.sentences import paragraph
from trnspec.benchmark.analyse.speed_up import FASTER, SLOWER
from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.benchmark.metrics import OUTPUT_TOKENS_PER_S, TPOT, TTFT
from trnspec.benchmark.plan import Load
from trnspec.core.words import count


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
    def before(self) -> str:
        """The name of the baseline, or words for several."""
        return self.baseline if len({one.baseline for one in self.by_window}) < 2 else "its baseline"


def at_loads(result: Result) -> list[AtLoad]:
    return [_at(result, load) for load in result.loads]


def _at(result: Result, load: Load) -> AtLoad:
    classes = [one for one in result.comparisons if one.load == load and one.metric == TPOT.name]
    best = {(one.baseline, one.class_): one for one in result.best if one.load == load}
    names = list(dict.fromkeys(one.class_ for one in classes))
    alone = len({one.baseline for one in classes}) == 1

    def rank(one: Comparison) -> tuple[bool, bool, float]:
        won = best.get((one.baseline, one.class_))
        suspect = one.verdict == "withheld" or bool(_withheld(result, one))
        return suspect, alone and won is not None and one.treatment != won.arm, -(one.ratio or 0)

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
    told = [_told(result, at) for at in loads]
    advice = tuple(
        Advice(
            **vars(at.load),
            baseline=at.baseline,
            arm=at.mix.treatment if at.mix else None,
            advice=code,
            sentence=paragraph("decision", at=at, code=code, **facts),
        )
        for at, (code, facts) in zip(loads, told, strict=True)
    )
    uses = [index for index, one in enumerate(advice) if one.advice == "use"]

    def cost_rank(index: int) -> tuple[bool, float, int]:
        """The load at which tokens are cheapest comes first."""
        mix = loads[index].mix
        known = [usd for usd in (mix.usd_before, mix.usd_after) if usd is not None] if mix else []
        return mix is None, min(known, default=math.inf), -index

    here = min(uses or range(len(loads)), key=cost_rank)
    sentence = advice[here].sentence
    if len(loads) > 1:
        same = advice[here].advice, advice[here].arm
        alike = [one.load for one in advice if (one.advice, one.arm) == same]
        sizes = {"alike": alike, "loads": sorted((at.load for at in loads), key=lambda load: load.size)}
        sentence = paragraph("decision", at=loads[here], code=advice[here].advice, **told[here][1], **sizes)
        sentence += f" {paragraph('loads', others=[at for at in loads if at is not loads[here]])}"
    done = f"INCOMPLETE ({run.requests_recorded} of {run.requests_planned} requests)"
    labels = ["EMULATED"] * (run.provenance == "emulated") + ["DUMMY WEIGHTS"] * run.dummy_weights
    if labels := [*labels, *[done] * (not run.complete)]:
        sentence = f"{', '.join(labels)}: {sentence[:1].lower()}{sentence[1:]}"
    draft = {name: drafting.draft for name, drafting in result.drafts.items()}
    said = {"question": question(run, draft), "sentence": sentence, "here": here, "advice": advice}
    return result.model_copy(update=said)


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


def average(ones: Sequence[Comparison], number: str, shares: Sequence[float] | None = None) -> float | None:
    """The mean of one number over comparisons, by their shares; None if it is unknown for one."""
    values = [getattr(one, number) for one in ones]
    weights = shares or [1.0] * len(values)
    if not values or None in values:
        return None
    return math.fsum(map(math.prod, zip(values, weights, strict=True))) / math.fsum(weights)


def _told(result: Result, at: AtLoad) -> tuple[AdviceCode, dict[str, Any]]:
    """The advice for a load, and what its sentence is made from."""
    facts: dict[str, Any] = {"run": result.run, "min_prompts": MIN_PROMPTS, "average": average}
    if result.run.aa or not at.by_arm:
        return "none", facts
    mix = at.by_arm[0]
    own = [one for one in at.by_window if one.treatment == mix.treatment]
    best = {one.class_: one for one in at.by_class if _faster(one)}
    # The arm of the mix, and where another arm alone is faster, that one.
    faster = [one if _faster(one) else best[one.class_] for one in own if _faster(one) or one.class_ in best]
    routed = {one.class_ for one in faster}
    rest = [one for one in own if one.class_ not in routed]
    withheld = _withheld(result, mix)
    facts |= {"mix": mix, "own": own, "faster": faster, "rest": rest, "withheld": withheld}
    code = _ruled(mix, own, faster)
    if withheld:
        return "do not switch yet", facts
    wanted, against = faster if code == "use for some" else own, FASTER if code == "keep" else SLOWER
    return code, facts | {"others": list(_by_other_metrics(result, wanted, against))}


def _ruled(mix: Comparison, own: Sequence[Comparison], faster: Sequence[Comparison]) -> AdviceCode:
    if mix.verdict == "too few prompts":
        return "too few prompts"
    if _faster(mix) and not any(one.verdict in SLOWER for one in own):
        return "use"
    if faster:
        return "use for some"
    if mix.verdict in FASTER:
        return "keep for now"
    return "keep" if mix.verdict in ("same", *SLOWER) else "cannot tell"


def _faster(one: Comparison) -> bool:
    """Whether it is faster by more than a restart of the servers can change."""
    return one.verdict == "faster" and not one.one_start


def _withheld(result: Result, one: Comparison) -> list[Evidence]:
    """The evidence that withholds an arm, or its baseline, as a whole."""
    return withheld_from(result.evidence, one.place._replace(class_=""), one.baseline, one.treatment)


def _by_other_metrics(
    result: Result, wanted: Sequence[Comparison], verdicts: Sequence[Verdict]
) -> Iterator[tuple[str, list[Comparison], bool]]:
    """The comparisons of the same arms, classes and load by another metric that have one of these verdicts, and whether all have."""
    places = {(one.place, one.treatment) for one in wanted}
    compared = [one for one in result.comparisons if (one.place, one.treatment) in places]
    for metric in (TTFT.name, OUTPUT_TOKENS_PER_S.name):
        known = [one for one in compared if one.metric == metric]
        if shown := [one for one in known if one.verdict in verdicts]:
            yield metric, sorted(shown, key=lambda one: one.ratio or 0), len(shown) == len(known)
