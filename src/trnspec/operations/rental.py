"""Whether renting a Trn2 node pays: for which classes of prompts, what it costs, and when it has paid for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from trnspec.core.words import count, listed

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
    HEADINGS: ClassVar = ("class", "tok/step", "speed-up", "$/M tokens", "baseline $/M", "verdict")
    WORDS: ClassVar = (0, 5)
    NOTE: ClassVar = (
        "Range: the prompts' interval, where known, at the slowest and the fastest drafted step of its range. $/M: decoding "
        "alone at quoted prices, dated in `./trnspec check`; prompts and waiting come on top."
    )

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of a table."""
        usd_range = f"[{self.usd_per_million_low:.2f}, {self.usd_per_million_high:.2f}]"
        return (
            self.class_name,
            f"{self.tokens_per_step:.2f}",
            f"{self.speed_up:.2f} [{self.low:.2f}, {self.high:.2f}]",
            f"{self.usd_per_million:.2f} {usd_range}",
            f"{self.baseline_usd_per_million:.2f}",
            self.verdict,
        )

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
    HEADINGS: ClassVar = ("class", "break-even tok/step", "at most", "drafts accepted")
    WORDS: ClassVar = (0,)
    NOTE: ClassVar = (
        "Break-even: likely, and at the fastest and the slowest drafted step of its range. Drafts accepted: the chance of each "
        "draft, once those before it are right. Acceptance can be measured on a GPU (docs/forecast.md): --run DIR, --acceptance FILE."
    )

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of a table."""
        likely = f"{self.tokens_per_step:.1f} [{self.low:.1f}, {self.high:.1f}]"
        return self.class_name, likely, str(self.most_tokens_per_step), f"{self.accepted:.0%}"

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
    own = [one for one in predictions if one.class_name != WHOLE and one.share]
    sure, unsure, lost = (
        [one for one in own if one.verdict == verdict] for verdict in ("pays", "open", "does not pay")
    )
    chosen = sure or [one for one in unsure if one.speed_up > 1]
    known: Any = {"own": own, "sure": sure, "unsure": unsure, "lost": lost, "chosen": chosen}
    if not chosen:
        return RentalDecision(advice="do not rent", sentence=_sentence(rental, **known))
    share, before = sum(one.share for one in chosen), chosen[0].baseline_usd_per_million
    saved = sum((before - one.usd_per_million) * one.share for one in chosen) / share
    millions = rental.usd / saved
    months = millions * 1e6 / share / rental.tokens_per_month if rental.tokens_per_month else None
    known |= {"before": before, "after": before - saved, "million_tokens": millions, "months": months}
    return RentalDecision(
        advice="rent" if sure else "find out",
        sentence=_sentence(rental, **known, rest=[one for one in unsure if one not in chosen]),
        classes=tuple(one.class_name for one in chosen),
        repaid_after_million_tokens=millions,
        repaid_after_months=months,
    )


def without_acceptance(first: BreakEven, rental: Rental, usd_per_million: float) -> RentalDecision:
    """What has to be measured before anybody can decide; `usd_per_million` is what the baseline costs."""
    hopeless = first.most_tokens_per_step < first.low
    best = first.most_tokens_per_step / first.tokens_per_step
    least = rental.usd / (usd_per_million * (1 - 1 / best)) if best > 1 else None
    sentence = _sentence(rental, first=first, least=least)
    return RentalDecision(advice="do not rent" if hopeless else "measure", sentence=sentence)


def _sentence(rental: Rental, **known: Any) -> str:
    from jinja2 import Environment, FileSystemLoader

    template = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True
    )
    filters: dict[str, Any] = template.filters
    filters |= {
        "one": "{:.1f}".format,
        "two": "{:.2f}".format,
        "listed": lambda names: listed([*names]),
    }
    filters |= {"millions": _millions, "months": _months}
    price = f"${rental.usd:.2f} ({rental.hours:.2f} Trn2 hours)"
    return template.get_template("rental.txt.jinja").render(rental=rental, price=price, **known).strip()


def _millions(millions: float) -> str:
    return f"{millions:,.1f} million" if millions < 1000 else f"{millions / 1000:,.1f} billion"


def _months(months: float) -> str:
    if months < 2:
        days = max(1, round(months * 30))
        return "a day" if days == 1 else count(days, "day")
    return f"{months:.1f} months" if months < 24 else f"{months / 12:,.1f} years"
