"""Does renting a Trn2 node pay? Drafting is predicted class by class, from step times and from acceptance that was measured anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trnspec.benchmark.analyse.draft_cost import CURVES, StepTimes, step_times
from trnspec.benchmark.analyse.windows import AdviceOptions
from trnspec.core.findings import Misuse
from trnspec.core.words import count, listed
from trnspec.experiment import Arm, Experiment
from trnspec.experiment.arm_forecast import ArmForecast, expected_of
from trnspec.experiment.run_price import RunPrice, usd_range

EXAMPLE = "results/gpu"
"""Folder of the run that docs/decide.md measures."""
WHOLE = "all classes"
"""Class of the mixture."""
NOTE = (
    "Speed-up: the likely value and its range, from the slowest to the fastest drafted step. Where the prompts' interval is known, it "
    "widens the range. $/M: dollars per million output tokens, for the fastest and the slowest plain step. They are for decoding only, "
    "without prompts and waiting."
)
Evidence = Callable[[AdviceOptions], Mapping[str, Any]]
"""What acceptance, measured anywhere, says about windows of drafts."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Likely step times, and both ends of their range."""

    likely: StepTimes
    slow: StepTimes
    fast: StepTimes
    plain_s: tuple[float, float]
    """The fastest and the slowest plain step; dollars follow from it, and the speed-up does not."""
    origin: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One class of prompts on Trn2; `low` and `high` span the prompts' interval and the bounds of the drafted step."""

    class_name: str
    share: float
    """Share of the output tokens."""
    tokens_per_step: float
    speed_up: float
    low: float
    high: float
    baseline_usd_per_million: tuple[float, float]
    """At the fastest and the slowest plain step."""
    HEADINGS: ClassVar = ("class", "tok/step", "speed-up", "$/M plain", "$/M drafted", "verdict")
    WORDS: ClassVar = (0, 5)

    @property
    def usd_per_million(self) -> tuple[float, float]:
        """At the likely speed-up, with the fastest and the slowest plain step."""
        fast, slow = self.baseline_usd_per_million
        return fast / self.speed_up, slow / self.speed_up

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of a table."""
        return (
            self.class_name,
            f"{self.tokens_per_step:.2f}",
            f"{self.speed_up:.2f} ({self.low:.2f} to {self.high:.2f})",
            usd_range(*self.baseline_usd_per_million, 1),
            usd_range(*self.usd_per_million, 1),
            self.verdict,
        )

    @property
    def verdict(self) -> str:
        """`pays`, `does not pay` or `open`: whether the whole range is on one side of 1."""
        return "pays" if self.low > 1 else "does not pay" if self.high < 1 else "open"


def break_even(arm: Arm, steps: Steps) -> dict[str, Any]:
    """Return the tokens per step above which drafting pays, at the likely drafted step and at both ends of its range, the most that a
    step can yield, and the share of drafts that must be accepted, equal at each position (1 if no share is enough). It is the same for
    all classes."""
    k, most = arm.num_speculative_tokens, arm.tokens_per_step
    needed, least, largest = (one.step_s(k) / one.plain_s for one in (steps.likely, steps.fast, steps.slow))
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        enough = sum(middle**place for place in range(most)) >= needed
        low, high = (low, middle) if enough else (middle, high)
    ends = {"low": least, "high": largest, "most_tokens_per_step": most}
    return {"tokens_per_step": needed, **ends, "accepted": high}


def measured(points: Mapping[int, float], k: int) -> Steps:
    """Return step times that somebody timed: seconds by window, with 0 for plain decoding. An arm's window that was not timed has a
    range.

    Raises Misuse for a drafted step that is shorter than the plain one, which no engine has.
    """
    times = step_times(points)
    if shorter := [window for window, seconds in points.items() if window and seconds < points[0]]:
        raise Misuse(
            f"--step-times {shorter[0]}={points[shorter[0]]:g}: is shorter than the plain step of {points[0]:g} s; "
            "a step that drafts verifies as well"
        )
    curves = sorted((replace(times, cost=cost) for cost in CURVES), key=lambda one: float(one.step_s(k)))
    untimed = "" if k in times.timed else f"; k = {k} was not timed, so a range follows"
    plain_s = (times.plain_s, times.plain_s)
    return Steps(likely=times, slow=curves[-1], fast=curves[0], plain_s=plain_s, origin=f"as given{untimed}")


def published(one: ArmForecast) -> Steps:
    """Return what published results predict for an arm; a drafted step is a range of plain ones.

    Raises Misuse where no published result applies.
    """
    plain_s, step, k = one.plain.likely_s, one.drafted, one.arm.num_speculative_tokens
    if plain_s is None or one.plain_s is None or step is None or step.likely is None or step.high is None:
        reason = one.plain.why or (step.why if step else "it does not draft")
        remedy = "give --step-times 0=S,K=S, seconds of a plain step and of one with K drafts"
        raise Misuse(f"{one.arm.name}: {reason}; {remedy}")
    likely, slow, fast = (
        StepTimes(plain_s=plain_s, timed={k: ratio * plain_s}) for ratio in (step.likely, step.high, step.low)
    )
    return Steps(likely=likely, slow=slow, fast=fast, plain_s=one.plain_s, origin="from published results")


def plain_usd(experiment: Experiment, arm: Arm, steps: Steps) -> tuple[float, float]:
    """Return dollars per million output tokens of an arm's baseline, at the fastest and the slowest plain step."""
    baseline = expected_of(experiment, experiment.baseline_of(arm))
    return baseline.usd_per_million(steps.plain_s[0]), baseline.usd_per_million(steps.plain_s[1])


def predict(
    experiment: Experiment, arm: Arm, *, steps: Steps, evidence: Evidence, mix: Mapping[str, float] | None
) -> tuple[Prediction, ...]:
    """Predict every class of the evidence and, last, their mixture as `all classes` if there are several.

    Raises `Misuse`, also for a mixture of classes of which nothing is known.
    """
    likely, slow, fast = (
        _rows(arm, evidence, mix, times) for times in (steps.likely, steps.slow, steps.fast)
    )
    baseline = plain_usd(experiment, arm, steps)
    weights = mix or dict.fromkeys(likely, 1.0)
    total = sum(weights.get(name, 0.0) for name in likely if name != WHOLE)

    def prediction(name: str) -> Prediction:
        row, slowest, fastest = likely[name], slow[name], fast[name]
        low = float(slowest["speed_up"] if slowest["ci_low"] is None else slowest["ci_low"])
        high = float(fastest["speed_up"] if fastest["ci_high"] is None else fastest["ci_high"])
        return Prediction(
            class_name=name,
            share=1.0 if name == WHOLE else weights.get(name, 0.0) / total,
            tokens_per_step=row["tokens_per_step"],
            speed_up=row["speed_up"],
            low=low,
            high=high,
            baseline_usd_per_million=baseline,
        )

    return tuple(map(prediction, likely))


def _rows(
    arm: Arm, evidence: Evidence, mix: Mapping[str, float] | None, times: StepTimes
) -> dict[str, Mapping[str, Any]]:
    """Return the row of the arm's window, by class, from the arm of the evidence with the largest window, at its lowest load."""
    k = arm.num_speculative_tokens
    advice = evidence(AdviceOptions(mix=mix, step_times=times, unused_drafts=k + 1 - arm.tokens_per_step))

    def one_load(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        best = max(entries, key=lambda one: (len(one["by_k"]), -(one["concurrency"] or 0)), default=None)
        return [e for e in entries if best and all(e[key] == best[key] for key in ("arm", "concurrency"))]

    def at_k(by_k: Sequence[Mapping[str, Any]], where: str) -> Mapping[str, Any]:
        if row := next((row for row in by_k if row["k"] == k), None):
            return row
        remedy = f"measure with k = {k} or more, or forecast an arm with a smaller window"
        raise Misuse(f"{where}: acceptance is known up to k = {len(by_k)}, the arm drafts {k}; {remedy}")

    rows = {cell["class"]: at_k(cell["by_k"], cell["class"]) for cell in one_load(advice["cells"])}
    mixes = one_load(advice["mixes"])
    if mixes and len(rows) > 1:
        # Tokens per step of mixed traffic: steps add up, weighted by tokens.
        weights = {name: weight for name, weight in mixes[0]["weights"].items() if weight}
        steps = sum(weight / float(rows[name]["tokens_per_step"]) for name, weight in weights.items())
        rows[WHOLE] = {**at_k(mixes[0]["by_k"], "the mixture"), "tokens_per_step": 1 / steps}
    return rows


def decide(
    predictions: Sequence[Prediction], arm: str, rental: RunPrice, tokens_per_month: float | None
) -> dict[str, Any]:
    """Rent for the classes for which drafting pays, else for those for which it is likely to; after how many output tokens of these
    classes, and months of all traffic, the run is paid back."""
    own = [one for one in predictions if one.class_name != WHOLE and one.share]
    sure, unsure, lost = (
        [one for one in own if one.verdict == verdict] for verdict in ("pays", "open", "does not pay")
    )
    chosen = sure or [one for one in unsure if one.speed_up > 1]
    if not chosen:
        costs = "is likely to cost" if unsure else "costs"
        return _decision(
            "do not rent",
            f"Do not rent. With arm {arm} drafting {costs} more than it saves for {_names(own)} (predicted: {_speed(own)}). "
            f"A run costs {rental.text}, and is never paid back.",
        )
    share, before = sum(one.share for one in chosen), chosen[0].baseline_usd_per_million
    kept = sum(one.share / one.speed_up for one in chosen) / share  # of the dollars of plain decoding
    after = before[0] * kept, before[1] * kept
    millions = rental.low_usd / (before[1] - after[1]), rental.high_usd / (before[0] - after[0])
    months = [each * 1e6 / share / tokens_per_month for each in millions] if tokens_per_month else None
    traffic = f" ({_span(months, _months)} of your traffic)" if months else ""
    rest = [one for one in unsure if one not in chosen]
    sentences = (
        "Rent." if sure else "Rent only to find out.",
        f"Arm {arm} is predicted to decode {_speed(chosen)} for {_names(chosen)}. It costs {usd_range(*after, 1)} instead of "
        f"{usd_range(*before, 1)} per million output tokens.",
        f"One run to {'confirm this' if sure else 'find out'} costs {rental.text}. It is paid back after "
        f"{_span(millions, _millions)} output tokens of {_names(chosen)}{traffic}.",
        f"For {_names(lost)} drafting costs more than it saves." if lost else "",
        f"For {_names(rest)} drafting may or may not pay." if rest else "",
    )
    decision = _decision("rent" if sure else "find out", " ".join(filter(None, sentences)))
    repaid = {"repaid_after_million_tokens": millions, "repaid_after_months": months}
    return decision | {"classes": [one.class_name for one in chosen], **repaid}


def without_acceptance(
    needed: Mapping[str, Any], arm: str, rental: RunPrice, usd_per_million: tuple[float, float], *, file: str
) -> dict[str, Any]:
    """What has to be measured before anybody can decide; `usd_per_million` is what the baseline costs."""
    most, likely, low = (needed[key] for key in ("most_tokens_per_step", "tokens_per_step", "low"))
    if most < low:
        return _decision(
            "do not rent",
            f"Do not rent. With arm {arm} a step yields at most {most} tokens and takes as long as {low:.1f} plain steps or "
            "more (predicted), so drafting never pays.",
        )
    paid_back = ""
    if most > likely:
        least = _millions(rental.low_usd / (usd_per_million[1] * (1 - likely / most)))
        paid_back = (
            f" A run costs {rental.text}. It is paid back after {least} output tokens at the earliest."
        )
    wide = f"{low:.1f} to {needed['high']:.1f}"
    span = "" if low == needed["high"] else f" (predicted; range {wide})"
    decision = _decision(
        "measure",
        f"We do not know your acceptance yet: how often the model accepts a draft token. Arm {arm} pays if a step yields more than "
        f"{likely:.1f} tokens{span}. A step yields at most {most}. For {likely:.1f}, each draft must be accepted "
        f"{100 * needed['accepted']:.0f} % of the time.{paid_back} Measure your acceptance first, on any GPU (docs/decide.md). Then:",
    )
    return decision | {"next": f"./trnspec forecast {file} --run {EXAMPLE}"}


def _decision(advice: str, sentence: str) -> dict[str, Any]:
    """What to do, as JSON: `rent` where drafting pays for some class, `find out` where it is likely to, `do not rent` where it is not,
    `measure` where it is not known how often drafts are accepted."""
    repaid = {"repaid_after_million_tokens": None, "repaid_after_months": None}
    return {"advice": advice, "sentence": sentence, "classes": (), **repaid, "next": None}


def _names(predictions: Sequence[Prediction]) -> str:
    return listed([one.class_name for one in predictions])


def _speed(predictions: Sequence[Prediction]) -> str:
    likely = sorted(one.speed_up for one in predictions)
    ends = _span((likely[0], likely[-1]), "{:.2f}".format)
    low, high = min(one.low for one in predictions), max(one.high for one in predictions)
    return f"{ends} times as fast (range {low:.2f} to {high:.2f})"


def _span(ends: Sequence[float], text: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(map(text, ends)))


def _millions(millions: float) -> str:
    return f"{millions:,.1f} million" if millions < 1000 else f"{millions / 1000:,.1f} billion"


def _months(months: float) -> str:
    if months < 2:
        days = max(1, round(months * 30))
        return "a day" if days == 1 else count(days, "day")
    return f"{months:.1f} months" if months < 24 else f"{months / 12:,.1f} years"
