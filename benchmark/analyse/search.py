"""Which load to measure next, and up to which load something holds: a pure function of the cells measured so far.

A curve is what a decision looks at over load: the logarithm of the treatment's speed-up. It pays where it is beyond 1.05 and
costs where it is below 0.95, as in every verdict (`benchmark.analyse.comparison`). The ends of the range are measured first, then the middle where they
agree, or the place where a line between them crosses 0; from there on each cell goes where the curve is expected to cross. Cells
are small: a load that cannot tell is measured again, and what is clear takes no more than one.

An objective is met or missed at a load, or the load cannot tell (`benchmark.analyse.outcomes`). Between the highest load at which
it is met and the lowest at which it is missed the middle is measured next. A load with enough prompts is not measured
again in order to tell: looking at chance until it agrees would make "met" wrong more often than in 5 % of runs.

The interval of a crossing holds every load at which Student's t does not tell the height of the curve from 0 (Fieller 1954,
Journal of the Royal Statistical Society B 16).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from benchmark.analyse.curve import Cell, Curve

Found = Literal["crossing", "always", "never", "while answered", "not shown"]
PRECISION = 0.1
"""A crossing is known where its interval is within this share of it, or within one request."""
_STEPS = 16
"""Loads between the cells beside a crossing at which the curve is looked at."""
_SPREAD = (1.0, 1.12, 1 / 1.12, 1.25, 1 / 1.25, 1.4, 1 / 1.4, 1.6, 1 / 1.6, 1.8, 1 / 1.8)
"""Where cells around a crossing go, as multiples of it."""
_MOST_VISITS = 4
"""Cells at one load."""
_PROBES = 8
"""Cells after which a curve is given up where more answers would tell, and do not come."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """The loads that may be measured."""

    low: float
    high: float
    whole: bool
    """Requests at once are whole numbers, rates are not."""

    def near(self, load: float) -> float:
        """The load that can be measured next to it: rates to three digits."""
        inside = min(max(load, self.low), self.high)
        return float(round(inside)) if self.whole else float(f"{inside:.3g}")

    def tolerance(self, load: float) -> float:
        """How far from the truth a crossing there may be."""
        return max(PRECISION * load, 1.0) if self.whole else PRECISION * load


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Up to which load a curve is above 0; where `rising`, from which load on. It is `while answered` where it is above 0 at
    each load up to `load` = `low`, and requests failed at `failing` = `high`."""

    found: Found
    load: float | None = None
    low: float | None = None
    high: float | None = None
    precise: bool = False
    """Whether the interval is as narrow as was asked for, and a cell close by."""
    rising: bool = False
    more: bool = False
    """Whether the curve crosses 0 again at a higher load."""
    failing: float | None = None
    """The lowest load at which requests failed."""
    signs: tuple[tuple[float, int], ...] = ()
    """By measured load below that: 1 where it is surely above the band of no difference, -1 where it is surely below, else 0."""
    same: tuple[float, ...] = ()
    """Of the loads with 0 those where it is surely inside the band."""
    near_low: float | None = None
    near_high: float | None = None
    """From which load to which the curve runs inside the band, as far as it was measured; of a crossing, around it."""


def edge(cells: Sequence[Cell], within: Range) -> Edge:
    """What is known of a curve."""
    curve = Curve(cells)
    by_load, same = tuple(curve.signs()), tuple(curve.same())
    signs = {sign for _, sign in by_load}
    failing = None if math.isinf(curve.failing) else curve.failing
    if (change := curve.change()) is None:
        words: dict[frozenset[int], Found] = {frozenset({1}): "always", frozenset({-1}): "never"}
        if failing is not None and signs == {1}:
            last = curve.loads[-1]
            return Edge(
                found="while answered", load=last, low=last, high=failing, failing=failing, signs=by_load
            )
        enough = len(curve.cells) > 1 or (failing is not None and bool(curve.cells))
        found = words.get(frozenset(signs), "not shown") if enough else "not shown"
        near_low, near_high = curve.near(None) if found == "not shown" else (None, None)
        return Edge(
            found=found, failing=failing, signs=by_load, same=same, near_low=near_low, near_high=near_high
        )
    left, right, side, more = change
    rising = curve.at(curve.loads[left])[0] < 0 and side < 0
    load, low, high = _crossing(curve, left, right, rising)
    if len(curve.cells) < 3:  # nothing tells how the curve runs between them
        low, high = curve.loads[left], curve.loads[right]
    near_low, near_high = curve.near(load)
    tolerance = within.tolerance(load)
    close = any(abs(one - load) <= tolerance / 2 for one in curve.loads)
    precise = close and max(high - load, load - low) <= tolerance
    return Edge(
        found="crossing",
        load=load,
        low=max(low, within.low),
        high=min(high, within.high),
        precise=precise,
        rising=rising,
        more=more,
        failing=failing,
        signs=by_load,
        same=same,
        near_low=near_low,
        near_high=near_high,
    )


def _crossing(curve: Curve, left: int, right: int, rising: bool) -> tuple[float, float, float]:
    """Where the curve crosses 0 between two cells, and the loads around it that are not told from that."""
    begin, end = curve.loads[left], curve.loads[right]
    sign = -1.0 if rising else 1.0
    grid = [begin * (end / begin) ** (step / _STEPS) for step in range(_STEPS + 1)]
    heights = [(sign * value, half) for value, half in map(curve.at, grid)]
    # The fit may pass over 0 at a cell itself: then the cell's own side of it counts.
    first = next((i for i in range(1, _STEPS + 1) if heights[i][0] <= 0), _STEPS)
    load = _between(grid[first - 1], grid[first], heights[first - 1][0], heights[first][0])
    low, high = grid[0], grid[-1]
    for index in range(first - 1, -1, -1):
        if (margin := heights[index][0] - heights[index][1]) > 0:
            beyond = heights[index + 1][0] - heights[index + 1][1]
            low = _between(grid[index], grid[index + 1], margin, beyond)
            break
    for index in range(first, _STEPS + 1):
        if (margin := sum(heights[index])) < 0:
            high = _between(grid[index - 1], grid[index], sum(heights[index - 1]), margin)
            break
    return load, min(low, load), max(high, load)


def _between(one: float, other: float, above: float, below: float) -> float:
    """Where a line in log load from `above` 0 at one load to `below` 0 at another crosses it; their middle where it does not."""
    share = above / (above - below) if above > 0 >= below else 0.5
    return one * math.exp(math.log(other / one) * share)


def next_load(curves: Sequence[Sequence[Cell]], within: Range) -> float | None:
    """The load to measure next for the first curve that is not known yet; None where all are."""
    return next((load for cells in curves if (load := _wanted(cells, within)) is not None), None)


def _wanted(cells: Sequence[Cell], within: Range) -> float | None:
    curve, measured = Curve(cells), {cell.load: cell.visits for cell in cells}
    for end in (within.low, within.high):
        if end not in measured:
            return end
    if curve.failing <= within.low:
        return None
    if curve.cells and not math.isinf(curve.failing):
        # One more end, between what was answered and what was not, as long as they are far apart.
        middle = within.near(math.sqrt(curve.loads[-1] * curve.failing))
        if curve.failing > 2 * curve.loads[-1] and middle not in measured:
            return middle
        within = replace(within, high=curve.loads[-1])
    again = [load for load in curve.unclear() if load < curve.failing]
    if curve.change() is None:
        middle = within.near(math.sqrt(within.low * within.high))
        if middle not in measured:
            return middle
        if again:
            return _least(again, measured)
        known = set(curve.loads)
        unknown = (load for load in sorted(measured) if load not in known and load < curve.failing)
        return _least(unknown, measured) if sum(measured.values()) < _PROBES else None
    found = edge(cells, within)
    if found.load is None:
        return None
    if found.precise:  # what an end cannot tell may be another crossing
        return _least((load for load in again if load in curve.ends), measured)
    return _least((within.near(found.load * by) for by in _SPREAD), measured)


@dataclass(frozen=True)
class Standing:
    """What is known of an arm's objective at a load."""

    load: float
    sign: int
    """1 where it is met, -1 where it is missed, 0 where the load cannot tell."""
    again: bool
    """Whether another cell brings prompts without which nothing can be told."""
    visits: int = 1


def next_of_objective(known: Sequence[Standing], within: Range) -> float | None:
    """The load to measure next for an objective; None where it is known as well as it can be."""
    visits = {one.load: one.visits for one in known}
    for end in (within.low, within.high):
        if end not in visits:
            return end
    if again := _least((one.load for one in known if one.again), visits):
        return again
    gaps = [
        (b.load / a.load, math.sqrt(a.load * b.load), b.load, a.load)
        for a, b in pairwise(_around(known))
        if (a.sign, b.sign) != (0, 0)
    ]
    _, middle, high, low = max(gaps, default=(1.0, 1.0, 1.0, 1.0))
    far = max(high - middle, middle - low) > within.tolerance(middle)
    return within.near(middle) if far and within.near(middle) not in visits else None


def _around(known: Sequence[Standing]) -> list[Standing]:
    """From the highest load at which an objective is met below the lowest at which it is missed, to that."""
    missed = min((one.load for one in known if one.sign < 0), default=None)
    met = max((one.load for one in known if one.sign > 0 and missed and one.load < missed), default=None)
    if met is None or missed is None:
        return []
    return sorted((one for one in known if met <= one.load <= missed), key=lambda one: one.load)


def edge_of_objective(known: Sequence[Standing], within: Range, failing: float | None) -> Edge:
    """Up to which load an objective is met: between the two loads that say so."""
    signs = tuple((one.load, one.sign) for one in sorted(known, key=lambda one: one.load))
    if between := _around(known):
        low, high = between[0].load, between[-1].load
        load = math.sqrt(low * high)
        precise = max(high - load, load - low) <= within.tolerance(load)
        more = any(one.sign > 0 and one.load > high for one in known)
        return Edge(
            found="crossing",
            load=load,
            low=low,
            high=high,
            precise=precise,
            more=more,
            failing=failing,
            signs=signs,
        )
    words: dict[frozenset[int], Found] = {frozenset({1}): "always", frozenset({-1}): "never"}
    return Edge(
        found=words.get(frozenset(sign for _, sign in signs), "not shown"), failing=failing, signs=signs
    )


def _least(loads: Iterable[float], visits: Mapping[float, int]) -> float | None:
    """The load that was measured least often, the first of equals; None where all were measured often enough."""
    able = [load for load in loads if visits.get(load, 0) < _MOST_VISITS]
    return min(able, key=lambda load: visits.get(load, 0), default=None)
