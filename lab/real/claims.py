"""What a run of the lab must show, judged from its results alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, Literal

from core.words import count
from lab.real.probe import Agreement

TOKENS_PER_STEP = 5.0
"""Out of 8, in at least one structured class."""
SPEED_UP = 1.5
"""Below the interval of that class."""
OPEN_ENDED = "open-ended"
OPEN_ENDED_SPEED_UP = 1.1
EQUAL = 0.99
EQUAL_PAIRS = 100
EQUAL_PAIRS_SHORT = 40
AGREEMENT = 0.01
ADVICE = 0.10
ADVISED = (3, 5, 7)
Scope = Literal["whole", "short", "machinery"]
NOT_BROKEN = 0.3
"""A speed-up below which something is wrong, however busy the machine."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The arms that share the better draft, by window."""

    baseline: str
    arms: Mapping[int, str]

    @property
    def main(self) -> str:
        """The arm of the published window of 7, or the nearest there is."""
        return self.arms[min(self.arms, key=lambda k: (abs(k - 7), k))]

    @property
    def widest(self) -> str:
        """The arm that advice is taken from."""
        return self.arms[max(self.arms)]

    @property
    def narrowest(self) -> str:
        """The arm whose step times join it."""
        return self.arms[min(self.arms)]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement, and whether this run supports it."""

    text: str
    met: bool
    found: str


def judge(
    summary: Mapping[str, Any],
    sweep: Sweep,
    agreements: Sequence[Agreement],
    advice: Mapping[str, Any] | None,
    *,
    scope: Scope,
) -> list[Claim]:
    """Every claim of a whole run; of a `short` one, which judges nothing that a busy machine decides; or of the
    `machinery` alone, where the models are not the lab's and their acceptance is not known."""
    claims = [_answered(summary), _agree(agreements)]
    if scope == "machinery":
        return claims
    claims[1:1] = [_accepted(summary, sweep), _equal(summary, sweep, short=scope == "short")]
    if scope == "short":
        return [*claims, _not_broken(summary, sweep)]
    return [*claims, _faster(summary, sweep), _open_ended(summary, sweep), *_advised(summary, sweep, advice)]


def measured(summary: Mapping[str, Any], sweep: Sweep, arm: str) -> dict[str, Mapping[str, Any]]:
    """By class, the comparison of the arm's time per output token with the sweep's baseline's."""
    return {
        found["class"]: found
        for found in summary["comparisons"]
        if (found["baseline"], found["treatment"], found["metric"]) == (sweep.baseline, arm, "tpot_s")
        and found["ratio"]
    }


def advised_and_measured(
    summary: Mapping[str, Any], sweep: Sweep, advice: Mapping[str, Any], k: int
) -> tuple[float, float]:
    """Speed-ups of a window of `k`, as geometric means over the classes that have both."""
    seen = measured(summary, sweep, sweep.arms[k])
    told = {
        cell["class"]: next(row["speed_up"] for row in cell["by_k"] if row["k"] == k)
        for cell in advice["cells"]
        if cell["arm"] == sweep.widest and cell["class"] in seen
    }
    return geometric_mean(told.values()), geometric_mean(seen[name]["ratio"] for name in told)


def _answered(summary: Mapping[str, Any]) -> Claim:
    arms = [arm["name"] for arm in summary["run"]["arms"]]
    wrong = [f"{c['arm']} {c['class']}" for c in summary["cells"] if c["errors"] or not c["n"]]
    found = f"{count(len(arms), 'arm')}, {sum(cell['n'] for cell in summary['cells'])} answers"
    return Claim(
        text="every arm answers every request",
        met=summary["run"]["complete"] and not wrong,
        found=f"{found}, errors in {', '.join(wrong) or 'none'}",
    )


def _cells(summary: Mapping[str, Any], arm: str) -> dict[str, Mapping[str, Any]]:
    return {cell["class"]: cell for cell in summary["cells"] if cell["arm"] == arm}


def _structured(summary: Mapping[str, Any], arm: str) -> dict[str, float]:
    """Tokens per step of every structured class, most first."""
    lengths = {
        name: cell["acceptance_length"] or 0.0
        for name, cell in _cells(summary, arm).items()
        if name != OPEN_ENDED
    }
    return dict(sorted(lengths.items(), key=lambda item: -item[1]))


def _accepted(summary: Mapping[str, Any], sweep: Sweep) -> Claim:
    lengths = _structured(summary, sweep.main)
    return Claim(
        text=f"a structured class yields at least {TOKENS_PER_STEP:g} tokens a step of 8 at most",
        met=max(lengths.values(), default=0.0) >= TOKENS_PER_STEP,
        found=", ".join(f"{name} {length:.2f}" for name, length in lengths.items()),
    )


def _faster(summary: Mapping[str, Any], sweep: Sweep) -> Claim:
    ratios = measured(summary, sweep, sweep.main)
    lengths = _structured(summary, sweep.main)
    lows = {name: ratios[name]["ci_low"] or 0.0 for name in lengths if name in ratios}
    return Claim(
        text=f"such a class is faster by more than {SPEED_UP:g} at the lower bound of its interval",
        met=any(low > SPEED_UP and lengths[name] >= TOKENS_PER_STEP for name, low in lows.items()),
        found=", ".join(f"{name} {low:.2f}" for name, low in lows.items()),
    )


def _open_ended(summary: Mapping[str, Any], sweep: Sweep) -> Claim:
    found = measured(summary, sweep, sweep.main).get(OPEN_ENDED)
    low = found["ci_low"] if found else None
    return Claim(
        text=f"open-ended prompts gain nothing: their interval includes or lies below {OPEN_ENDED_SPEED_UP:g}",
        met=low is not None and low <= OPEN_ENDED_SPEED_UP,
        found="not measured" if low is None or found is None else f"{low:.2f} to {found['ci_high']:.2f}",
    )


def _equal(summary: Mapping[str, Any], sweep: Sweep, *, short: bool) -> Claim:
    known = [cell["output_equality"] for cell in _cells(summary, sweep.main).values()]
    pairs = sum(one["n_pairs"] for one in known if one)
    equal = sum(one["equal"] for one in known if one)
    faults = sum(one.get("faults") or 0 for one in known if one)
    least = EQUAL_PAIRS_SHORT if short else EQUAL_PAIRS
    return Claim(
        text=f"greedy answers are the same with and without a draft: {EQUAL:.0%} of at least {least} pairs",
        met=pairs >= least and equal >= EQUAL * pairs and not faults,
        found=f"{equal} of {pairs} pairs with {sweep.main}" + (f", {faults} faults" if faults else ""),
    )


def _agree(agreements: Sequence[Agreement]) -> Claim:
    worst = max((one.difference for one in agreements), default=math.inf)
    return Claim(
        text=f"vLLM's counters and the streamed chunks give the same tokens per step within {AGREEMENT:.0%}",
        met=worst <= AGREEMENT,
        found=", ".join(
            f"{one.arm} {one.counted:.3f} and {one.streamed:.3f} in {one.steps_counted} steps"
            for one in agreements
        ),
    )


def _not_broken(summary: Mapping[str, Any], sweep: Sweep) -> Claim:
    ratios = {name: found["ratio"] for name, found in measured(summary, sweep, sweep.main).items()}
    best = max(ratios.values(), default=0.0)
    return Claim(
        text=f"the best class is not slower than {NOT_BROKEN:g} of plain decoding",
        met=best > NOT_BROKEN,
        found=", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()),
    )


def _advised(summary: Mapping[str, Any], sweep: Sweep, advice: Mapping[str, Any] | None) -> Iterator[Claim]:
    for k in ADVISED:
        text = f"advice from {sweep.widest} predicts k = {k} within {ADVICE:.0%}, mean over classes"
        if advice is None or k not in sweep.arms:
            yield Claim(text=text, met=False, found="not measured")
            continue
        one, other = advised_and_measured(summary, sweep, advice, k)
        yield Claim(
            text=text,
            met=abs(one / other - 1) <= ADVICE,
            found=f"advised {one:.2f}, measured {other:.2f}: {one / other - 1:+.1%}",
        )
