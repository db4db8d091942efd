"""The recommendation of a run, as data: the question, the advice for each load, and its numbers. `templates/` has the words.

All of it is derived from the summary; pages and terminals only render it. The time per output token decides; dollars,
failures and answers can be reasons against an arm. The verdict of a class is the one after Holm's correction over all
classes and treatments of a load. The interval of the mix, and the comparison of the best treatment with the others, hold for
all treatments together (`trnspec.benchmark.analyse.speed_up`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from trnspec.benchmark.analyse.requests import Place
from trnspec.benchmark.analyse.sentences import rendered
from trnspec.benchmark.analyse.speed_up import (
    BAND,
    EQUIVALENT,
    MIN_PROMPTS,
    NOT_HELD,
    STARTS_DIFFER,
    VERDICT_WORDS,
)
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import Load
from trnspec.core.words import count

Advice = Literal["use", "route", "keep", "choose", "wait", "unclear", "none"]
"""use: the treatment; route: the treatment for some classes; keep: the baseline; choose: one is faster and the other cheaper; wait: the
treatment, but first explain its failures or worse answers; unclear: not enough is known; none: nothing is compared."""
MORE_ERRORS = 0.01
"""If the share of failed requests exceeds that of the baseline by more than this, it is a reason against a treatment."""
USD = ("usd_before", "usd_after")
_BAND_MARGIN = 0.005
"""A log ratio this close to an end of the band of no difference counts as on it: no number of prompts would show a difference."""
_NOT_JUDGED = VERDICT_WORDS["not judged"]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A treatment against a baseline, in one class or (None) over the mix.

    `family` is the name of the arm without its window; a figure connects the windows of a family with a line. `window` is 0 for plain
    decoding. Times are geometric means over the pairs, so `ratio` is before divided by after. Dollars are per million output tokens,
    prompts and waiting included. `prompts_to_tell` is the number of prompts per class with which a run would show a difference in
    four of five repetitions; None if one is shown already.
    """

    class_: str | None
    baseline: str
    arm: str
    family: str
    window: int
    verdict: str
    one_start: bool
    """Whether the verdict is about the one start of the servers that was measured."""
    ratio: float | None
    low: float | None
    high: float | None
    tpot_before_s: float | None
    tpot_after_s: float | None
    usd_before: float | None
    usd_after: float | None
    tokens_per_step: float | None
    step_cost: float | None
    prompts: int
    prompts_to_tell: int | None


@dataclass(frozen=True)
class Winner:
    """The best of several treatments, in one class or (None) over the mix. It is not clearly faster than the arms in `alike`."""

    class_: str | None
    arm: str
    second: str
    ratio: float
    low: float | None
    high: float | None
    alike: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AtLoad:
    """The advice for one load."""

    load: Load
    baseline: str
    """The baseline of the best treatment."""
    mix: Gain | None
    """The best treatment over all classes; None if nothing can be compared."""
    by_class: tuple[Gain, ...]
    """The best treatment of each class."""
    by_arm: tuple[Gain, ...]
    """Every treatment over the mix, the best first."""
    by_window: tuple[Gain, ...]
    """Every treatment in every class, by family, class and window."""
    winners: tuple[Winner, ...]
    """With several treatments of a baseline, the winner of the mix, then that of each class that has one."""
    advice: Advice = "none"
    sentence: str = ""
    """Without a full stop."""

    @property
    def of_one_start(self) -> str:
        """A caution about verdicts near 1, or an empty text."""
        low, high = STARTS_DIFFER
        shown = any(gain.one_start for gain in (*self.by_window, *self.by_arm))
        return f"Verdicts from {low:.2f} to {high:.2f} are about this start of the servers." if shown else ""

    @property
    def before(self) -> str:
        """The name of the baseline, or words for several."""
        return self.baseline if len({gain.baseline for gain in self.by_window}) < 2 else "its baseline"


@dataclass(frozen=True)
class Decision:
    question: str
    sentence: str
    origin: str
    """`measured` or `emulated`."""
    here: int
    """Index of the load in `loads` that the sentence is about: the one with the cheapest tokens, or the largest if prices are unknown."""
    loads: tuple[AtLoad, ...]

    @property
    def at(self) -> AtLoad:
        return self.loads[self.here]

    def as_json(self) -> dict[str, Any]:
        return asdict(self, dict_factory=lambda items: {key.rstrip("_"): value for key, value in items})


def decide(summary: Mapping[str, Any]) -> Decision:
    run = summary["run"]
    loads = tuple(
        _at(summary, load) for load in dict.fromkeys(Place.of(cell).load for cell in summary["cells"])
    )

    def cost_rank(index: int) -> tuple[bool, float, int]:
        """The load at which tokens are cheapest comes first."""
        mix = loads[index].mix
        known = [usd for usd in (mix.usd_before, mix.usd_after) if usd is not None] if mix else []
        return mix is None, min(known, default=math.inf), -index

    here = min(range(len(loads)), key=cost_rank)
    sentence = loads[here].sentence
    if len(loads) > 1:
        sentence = f"at {loads[here].load.in_words}, {sentence}"
    for at in loads[:here] + loads[here + 1 :]:
        sentence += f"; at {at.load.in_words} {rendered('advice', at=at, reason='other load')}"
    done = f"INCOMPLETE ({run['requests_recorded']} of {run['requests_planned']} requests)"
    labels = ["EMULATED"] * (run["provenance"] == "emulated") + [done] * (not run["complete"])
    sentence = ": ".join([*filter(None, [", ".join(labels)]), sentence])
    sentence = f"{sentence[:1].upper()}{sentence[1:]}."
    return Decision(question(summary), sentence, run["provenance"], here, loads)


def question(summary: Mapping[str, Any]) -> str:
    """The question that the run answers, from its arms and their drafts."""
    run = summary["run"]
    treatments = [arm for arm in run["arms"] if baseline_of(run, arm["name"]) != arm["name"]]
    model = _short(run["model"])
    if run["aa"] or not treatments:
        return f"How much do measurements of {model} vary?" if run["aa"] else f"How fast is {model}?"
    drafting = all(arm["speculative_tokens"] for arm in treatments)
    if len(treatments) > 1:
        return f"Which {'way of drafting pays' if drafting else 'arm is fastest'} for {model}?"
    (arm,) = treatments
    if not drafting:
        return f"Is {arm['name']} faster than {run['baseline']} for {model}?"
    known, k = summary.get("drafts", {}).get(arm["name"]), arm["speculative_tokens"]
    what = f"with {_short(known['draft'])}" if known else f"{count(k, 'token')} per step"
    return f"Does drafting {what} pay for {model}?"


def _short(model: str) -> str:
    """The name of the model without its owner."""
    return model.rstrip("/").rpartition("/")[2]


def baseline_of(run: Mapping[str, Any], name: str) -> str:
    """The baseline of an arm in the run of a summary; a baseline has itself."""
    own = next(arm.get("baseline") for arm in run["arms"] if arm["name"] == name)
    return own or str(run["baseline"])


def _at(summary: Mapping[str, Any], load: Load) -> AtLoad:
    comparisons, mixes, best = (
        [row for row in summary.get(key, ()) if Place.of(row).load == load]
        for key in ("comparisons", "mix", "best")
    )
    gains = [_in_class(summary, row, mixes) for row in comparisons if row["metric"] == TPOT.name]
    winners: dict[tuple[str, str | None], Winner] = {}
    for row in best:
        alike = tuple(other["arm"] for other in row["over"] if other["verdict"] != "faster")
        second = row["over"][0]
        ends = second["ratio"], second["ci_low"], second["ci_high"]
        winners[row["baseline"], row["class"]] = Winner(row["class"], row["arm"], second["arm"], *ends, alike)
    classes = list(dict.fromkeys(gain.class_ for gain in gains))

    alone = len({gain.baseline for gain in gains}) == 1

    def rank(gain: Gain) -> tuple[bool, float]:
        won = winners.get((gain.baseline, gain.class_))
        return alone and won is not None and gain.arm != won.arm, -(gain.ratio or 0)

    by_arm = tuple(sorted((_of_mix(summary, row, gains) for row in mixes), key=rank))
    mix = next((gain for gain in by_arm if gain.ratio), None)
    at = AtLoad(
        load=load,
        baseline=mix.baseline if mix else summary["run"]["baseline"],
        mix=mix,
        by_class=tuple(min((g for g in gains if g.class_ == class_), key=rank) for class_ in classes),
        by_arm=by_arm,
        by_window=tuple(sorted(gains, key=lambda g: (g.family, classes.index(g.class_), g.window))),
        winners=tuple(winners.values()),
    )
    advice, reason, facts = _advised(summary, at)
    return replace(
        at, advice=advice, sentence=rendered("advice", at=at, reason=reason, **(facts | {"average": average}))
    )


def _in_class(summary: Mapping[str, Any], row: Mapping[str, Any], mixes: Sequence[Mapping[str, Any]]) -> Gain:
    place, arm = Place.of(row), row["treatment"]
    cost = {cell["arm"]: cell["cost"] or {} for cell in summary["cells"] if Place.of(cell) == place}
    usd = [cost[name].get("usd_per_million_output_tokens") for name in (row["baseline"], arm)]
    if row["verdict"] == "not judged":  # calculated from times that are made up
        usd = [None, None]
    explained = (row for row in summary["explanations"] if (Place.of(row), row["treatment"]) == (place, arm))
    over_mix = next((m for m in mixes if (m["baseline"], m["treatment"]) == (row["baseline"], arm)), {})
    times = (times for times in over_mix.get("classes", ()) if times["class"] == place.class_)
    return _gain(summary, {**next(explained, {}), **next(times, {}), **row}, usd)


def _of_mix(summary: Mapping[str, Any], row: Mapping[str, Any], gains: Sequence[Gain]) -> Gain:
    """The gain over the mix. Dollars are the mean over the classes, because all classes have equal shares of the tokens."""
    inside = {(row["baseline"], row["treatment"], own["class"]) for own in row["classes"] if own["share"]}
    members = [gain for gain in gains if (gain.baseline, gain.arm, gain.class_) in inside]
    prompts = min((gain.prompts for gain in members), default=0)
    return _gain(summary, {**row, "n_prompts": prompts}, [average(members, side) for side in USD])


def _gain(summary: Mapping[str, Any], known: Mapping[str, Any], usd: Sequence[float | None]) -> Gain:
    arm, code, prompts = known["treatment"], known["verdict_holm"] or known["verdict"], known["n_prompts"]
    windows = {planned["name"]: planned["speculative_tokens"] for planned in summary["run"]["arms"]}
    to_tell = MIN_PROMPTS if code == "too few" else None
    if code == "not shown" and known["detectable_ratio"] and known["p_value"] is not None:
        log_ratio, (low, high) = math.log(known["ratio"]), BAND
        wanted = max(min(abs(log_ratio - low), abs(log_ratio - high)), _BAND_MARGIN)
        # The interval shrinks with the square root of the number of prompts.
        more = (math.log(known["detectable_ratio"]) - high) / wanted
        to_tell = max(prompts + 1, math.ceil(prompts * more**2))
    return Gain(
        class_=known["class"],
        baseline=known["baseline"],
        arm=arm,
        family=re.sub(rf"-k{windows[arm]}(?=(-b\d+)?$)", "", arm),
        window=windows[arm],
        verdict=VERDICT_WORDS[code],
        one_start=bool(known.get("one_start")) and code in ("faster", "slower"),
        ratio=known["ratio"],
        low=known["ci_low"],
        high=known["ci_high"],
        tpot_before_s=known.get("baseline_tpot_s"),
        tpot_after_s=known.get("treatment_tpot_s"),
        usd_before=usd[0],
        usd_after=usd[1],
        tokens_per_step=known.get("tokens_per_step"),
        step_cost=known.get("step_time_ratio"),
        prompts=prompts,
        prompts_to_tell=to_tell,
    )


def average(gains: Sequence[Gain], number: str) -> float | None:
    """The mean of one number over gains; None if it is unknown for a gain."""
    values = [getattr(gain, number) for gain in gains]
    return math.fsum(values) / len(values) if values and None not in values else None


def _advised(summary: Mapping[str, Any], at: AtLoad) -> tuple[Advice, str, dict[str, Any]]:
    """The advice, the code of its reason, and further values for its sentence."""
    run, mix = summary["run"], at.mix
    if is_withheld(summary):
        return "none", "withheld", {"cause": summary["sense"]["text"]}
    if run["aa"]:
        return "none", "same address", {}
    if len(run["arms"]) == 1:
        return "none", "one arm", {}
    if mix:
        return _of_mix_known(summary, at, mix)
    if all(gain.verdict == _NOT_JUDGED for gain in at.by_window):
        return "unclear", "acceptance unknown", {}
    if unknown := [str(gain.class_) for gain in at.by_class if gain.verdict == _NOT_JUDGED]:
        known = [gain for gain in at.by_class if gain.class_ not in unknown and gain.ratio]
        return "unclear", "acceptance unknown of some", {"unknown": unknown, "known": known}
    maximum = max((gain.prompts for gain in at.by_window), default=0)
    return "unclear", "few prompts", {"prompts": maximum, "min_prompts": MIN_PROMPTS}


def _of_mix_known(summary: Mapping[str, Any], at: AtLoad, mix: Gain) -> tuple[Advice, str, dict[str, Any]]:
    own = [gain for gain in at.by_window if gain.arm == mix.arm]
    faster = [gain for gain in own if gain.verdict == "faster"]
    rest = {gain.class_: gain for gain in own if gain.verdict != "faster"}
    also = [gain for gain in at.by_class if gain.verdict == "faster" and gain.class_ in rest]
    inside = [gain for gain in own if gain.prompts >= MIN_PROMPTS]
    facts = {"own": own, "faster": faster, "also": also, "inside": inside, "not_held": NOT_HELD}
    gain_usd = mix.usd_before / mix.usd_after if mix.usd_before and mix.usd_after else 1.0
    pays, costs_more = mix.verdict == "faster", gain_usd < EQUIVALENT[0]
    if (pays or faster) and (troubles := list(_troubles(summary, at, mix.arm))):
        return "wait", "troubles", facts | {"troubles": troubles}
    if (pays and costs_more) or (not pays and not faster and gain_usd > EQUIVALENT[1]):
        return "choose", "time against dollars", facts | {"costs_more": costs_more}
    if pays and not any(gain.verdict == "slower" for gain in rest.values()):
        return "use", "faster", facts
    if faster or also:
        return "route", "faster for some" if faster else "others faster", facts
    if mix.verdict == VERDICT_WORDS["not shown"]:
        return "unclear", "no clear difference", facts
    return "keep", "not faster", facts


def _troubles(summary: Mapping[str, Any], at: AtLoad, arm: str) -> Iterator[dict[str, Any]]:
    own = {
        name: [c for c in summary["cells"] if c["arm"] == name and Place.of(c).load == at.load]
        for name in (at.baseline, arm)
    }
    counts = {
        name: (failed := sum(cell["errors"] for cell in cells), failed + sum(cell["n"] for cell in cells))
        for name, cells in own.items()
    }
    before, after = counts[at.baseline], counts[arm]
    if after[0] / max(after[1], 1) > before[0] / max(before[1], 1) + MORE_ERRORS:
        yield {"kind": "failures", "failed": after, "before": before}
    quality = (summary.get("quality") or {"comparisons": ()})["comparisons"]
    if worse := [row for row in quality if row["treatment"] == arm and row["n"] and row["ci_high"] < 0]:
        yield {"kind": "answers", "points": max(-row["difference"] * 100 for row in worse)}


def is_withheld(summary: Mapping[str, Any]) -> bool:
    """Whether the verdicts of a run are withheld because its answers make no sense."""
    return bool((summary.get("sense") or {}).get("withheld"))
