"""Whether renting a Trn2 node pays: for which classes of prompts, what it costs, and when it has paid for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from core.words import count, listed

Advice = Literal["rent", "find out", "do not rent", "measure"]
"""Drafting pays for some class; it is likely to; it is not; how often drafts are accepted is not known."""
WHOLE = "all classes"
"""Class of the mixture."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One class of prompts on Trn2; `low` and `high` span the prompts' interval and the bounds of the step times."""

    class_name: str
    share: float
    """Share of the output tokens."""
    tokens_per_step: float
    speed_up: float
    low: float
    high: float
    usd_per_million: float
    usd_per_million_low: float
    usd_per_million_high: float
    baseline_usd_per_million: float

    @property
    def verdict(self) -> str:
        """`pays`, `does not pay` or `open`: whether the whole range is on one side of 1."""
        return "pays" if self.low > 1 else "does not pay" if self.high < 1 else "open"

    def repaid_after_million_tokens(self, rental_usd: float) -> float | None:
        """Million output tokens after which a rental has paid for itself, because they then cost less; None when never."""
        saved = self.baseline_usd_per_million - self.usd_per_million
        return rental_usd / saved if saved > 0 else None


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """What a class must reach for drafting to pay, at the likely drafted step and at both ends of its range."""

    class_name: str
    tokens_per_step: float
    low: float
    high: float
    most_tokens_per_step: int

    @property
    def accepted(self) -> float:
        """The chance of a draft that its predecessors were right, the same for each, that yields so many tokens; 1 where none does."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            enough = sum(middle**place for place in range(self.most_tokens_per_step)) >= self.tokens_per_step
            low, high = (low, middle) if enough else (middle, high)
        return high


@dataclass(frozen=True, kw_only=True)
class Rental:
    """A run on Trn2, and the traffic that it is for."""

    arm: str
    usd: float
    hours: float
    tokens_per_month: float | None = None
    """Output tokens of all classes."""

    @property
    def price(self) -> str:
        return f"${self.usd:.2f} ({self.hours:.2f} Trn2 hours)"


@dataclass(frozen=True, kw_only=True)
class RentalDecision:
    """What to do."""

    advice: Advice
    sentence: str
    classes: tuple[str, ...] = ()
    repaid_after_million_tokens: float | None = None
    """Output tokens of these classes."""
    repaid_after_months: float | None = None
    """None also where the tokens of a month are not known."""


def decide(predictions: Sequence[Prediction], rental: Rental) -> RentalDecision:
    """Rent for the classes for which drafting pays, else for those for which it is likely to."""
    own = [prediction for prediction in predictions if prediction.class_name != WHOLE and prediction.share]
    sure, unsure, lost = (
        [prediction for prediction in own if prediction.verdict == verdict]
        for verdict in ("pays", "open", "does not pay")
    )
    chosen = sure or [prediction for prediction in unsure if prediction.speed_up > 1]
    drafting = f"with arm {rental.arm} drafting {'is likely to cost' if unsure else 'costs'}"
    if not chosen:
        more = f"{drafting} more than it saves for {_names(own)} (predicted: {_speed(own)})"
        nothing = f"so nothing would pay back the run, {rental.price}."
        return RentalDecision(advice="do not rent", sentence=f"Do not rent: {more}, {nothing}")
    share = sum(prediction.share for prediction in chosen)
    before = chosen[0].baseline_usd_per_million
    saved = sum((before - prediction.usd_per_million) * prediction.share for prediction in chosen) / share
    millions = rental.usd / saved
    months = millions * 1e6 / share / rental.tokens_per_month if rental.tokens_per_month else None
    names, traffic = _names(chosen), "" if months is None else f", {_months(months)} of your traffic"
    sentences = [
        f"{'Rent' if sure else 'Rent only to find out'}: with arm {rental.arm} decoding is predicted to be {_speed(chosen)} for "
        f"{names}, at ${before - saved:.2f} instead of ${before:.2f} per million output tokens",
        f"a run that {'confirms' if sure else 'decides'} it costs {rental.price} and is paid back after {_millions(millions)} output "
        f"tokens of {names}{traffic}",
    ]
    if lost:
        sentences.append(f"for {_names(lost)} drafting costs more than it saves")
    if rest := [prediction for prediction in unsure if prediction not in chosen]:
        sentences.append(f"for {_names(rest)} it is open whether drafting pays")
    return RentalDecision(
        advice="rent" if sure else "find out",
        sentence="; ".join(sentences) + ".",
        classes=tuple(prediction.class_name for prediction in chosen),
        repaid_after_million_tokens=millions,
        repaid_after_months=months,
    )


def without_acceptance(
    needed: Sequence[BreakEven], rental: Rental, *, usd_per_million: float
) -> RentalDecision:
    """What has to be measured before anybody can decide; `usd_per_million` is what the baseline costs."""
    first = needed[0]
    best = first.most_tokens_per_step / first.tokens_per_step
    if first.most_tokens_per_step < first.low:
        return RentalDecision(
            advice="do not rent",
            sentence=f"Do not rent: with arm {rental.arm} a step yields {first.most_tokens_per_step} tokens at most and is predicted to "
            f"take as long as {first.low:.1f} plain ones or more, so drafting costs more than it saves whatever is accepted.",
        )
    sentence = (
        f"Measure first how often drafts are accepted: arm {rental.arm} is predicted to pay for prompts whose steps yield more than "
        f"{first.tokens_per_step:.1f} tokens ({first.low:.1f} to {first.high:.1f}) of at most {first.most_tokens_per_step}"
    )
    if best > 1:
        least = rental.usd / (usd_per_million * (1 - 1 / best))
        sentence += f"; a run on Trn2 costs {rental.price}, paid back after {_millions(least)} output tokens at the earliest"
    return RentalDecision(advice="measure", sentence=f"{sentence}.")


def _names(found: Sequence[Prediction]) -> str:
    return listed([prediction.class_name for prediction in found])


def _speed(found: Sequence[Prediction]) -> str:
    """`1.52 to 1.87 times as fast [1.20, 6.03]`: likely values, and the range of all of them."""
    likely = sorted(prediction.speed_up for prediction in found)
    ends = dict.fromkeys(f"{value:.2f}" for value in (likely[0], likely[-1]))
    low, high = min(prediction.low for prediction in found), max(prediction.high for prediction in found)
    return f"{' to '.join(ends)} times as fast [{low:.2f}, {high:.2f}]"


def _millions(millions: float) -> str:
    return f"{millions:,.1f} million" if millions < 1000 else f"{millions / 1000:,.1f} billion"


def _months(months: float) -> str:
    if months < 2:
        days = max(1, round(months * 30))
        return "a day" if days == 1 else count(days, "day")
    return f"{months:.1f} months" if months < 24 else f"{months / 12:,.1f} years"
