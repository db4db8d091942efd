"""How much faster a treatment is, as one number with its certainty, and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.analyse.comparison import VERDICT_WORDS
from core.words import listed

USD = ("usd_before", "usd_after")
IN_THIS_START = " in this start of the servers"
"""What follows a verdict that another start might not give."""
_MOST_NAMES = 6


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A treatment against a baseline, in one class or (None) over the mix.

    `family` is the arm's name without its window (0: plain decoding), which a line over windows joins; a batch has its own. Times are geometric
    means over the pairs, so that before over after is the ratio. Dollars are per million output tokens, prompts and
    waiting included. `prompts_to_tell` a class would show on which side of the nearer end of the band of no difference this is, four
    times out of five; None where something is shown.
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


def dollars(gains: Sequence[Gain]) -> str:
    """What a million output tokens cost before and after."""
    before, after = (mean(gains, side) for side in USD)
    return f", {money(before)} -> {money(after)} per million output tokens" if before and after else ""


def parts(gains: Sequence[Gain]) -> str:
    """Classes by verdict: `2.35 to 2.94 times faster for json and code; no clear difference for open-ended`."""
    ordered = sorted(gains, key=lambda gain: gain.ratio or 0)
    found = {word: [gain for gain in ordered if gain.verdict == word] for word in VERDICT_WORDS.values()}
    return "; ".join(f"{_speed(word, of_it)} for {names(of_it)}" for word, of_it in found.items() if of_it)


def _speed(verdict: str, gains: Sequence[Gain]) -> str:
    ends = dict.fromkeys(f"{gain.ratio:.2f}" for gain in (gains[0], gains[-1]) if gain.ratio)
    words = {"faster": "times faster", "slower": "times as fast"}
    where = IN_THIS_START if any(gain.one_start for gain in gains) else ""
    return f"{' to '.join(ends)} {words[verdict]}{where}" if verdict in words else verdict


def times(gain: Gain) -> str:
    """`1.08 times faster in this start of the servers`."""
    way = "faster" if gain.verdict == "faster" else "as fast"
    return f"{gain.ratio:.2f} times {way}{IN_THIS_START * gain.one_start}"


def with_verdict(gain: Gain) -> str:
    """`1.06 times as fast (no clear difference)`."""
    return times(gain) + (f" ({gain.verdict})" if gain.verdict != "faster" else "")


def sure(gain: Gain) -> str:
    """How much faster, with the interval."""
    return f"{times(gain)}{interval(gain.low, gain.high)}"


def interval(low: float | None, high: float | None) -> str:
    """What follows a ratio; nothing where it is not known."""
    return "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"


def mean(gains: Sequence[Gain], what: str) -> float | None:
    """Of one number over gains; None where one is not known."""
    values = [getattr(gain, what) for gain in gains]
    return math.fsum(values) / len(values) if values and None not in values else None


def names(gains: Sequence[Gain]) -> str:
    """Their classes."""
    return listed([gain.class_ or "all classes" for gain in gains], most=_MOST_NAMES)


def named(gain: Gain, more: str = "") -> str:
    """An arm with its window, and what else belongs in the brackets."""
    inside = "; ".join(filter(None, (f"window {gain.window}" if gain.window else "", more)))
    return f"{gain.arm} ({inside})" if inside else gain.arm


def money(usd: float) -> str:
    """Dollars, with cents or, below a tenth of a dollar, with three significant digits."""
    return f"${usd:,.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.3g}"
