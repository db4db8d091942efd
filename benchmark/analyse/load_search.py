"""The load up to which a treatment pays or an objective is met, and the load to measure next, from the cells measured so far.

A curve is the logarithm of the speed-up of a treatment as a function of load. Near a load it is fitted as a quadratic in log load, with
weights that decrease with the distance (local regression, Cleveland 1979, Journal of the American Statistical Association 74), so its
height is a weighted sum of the cells. Sources of variation of that sum are prompts and starts of the servers, which all loads share, and
blocks, which belong to one load (for requests at a rate, they are sets of arrivals that wait in one queue). The interval of a crossing
contains every load at which the height is statistically equal to 0 (Fieller 1954, Journal of the Royal Statistical Society B 16).

The ends of the range are measured first. Then follows the middle, if the ends agree, or the point where a line between them crosses 0.
Each later cell is measured where the curve is expected to cross 0. A load without a clear sign is measured again. For an objective, the
middle is measured between the highest load at which it is met and the lowest at which it is missed. A load with enough prompts is not
measured again: repeating until the result is "met" would make "met" wrong in more than 5 % of runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from operator import mul
from typing import Any, Literal, NamedTuple

from benchmark.analyse import stats
from benchmark.analyse.comparison import BAND, starts_differ

CurveKind = Literal["crossing", "always", "never", "while answered", "not shown"]
PRECISION = 0.1
"""A crossing is precise if its interval is within this share of it, or within one request."""
_CONFIDENCE = 0.986
"""One-sided, for each sign and each end of an interval. A search ends when its interval is narrow, which can happen too early by chance.
0.986 compensates for that, so that 95 % of intervals contain the truth (`scripts/measure search` simulates it)."""
_OF_STARTS = (1 + stats.CONFIDENCE) / 2
"""The confidence with several starts. Only the first start decided when the search ends."""
_MAX_BANDWIDTH, _MIN_BANDWIDTH = 0.7, 0.2
"""Limits for the bandwidth of the local regression, in log load. The bandwidth is the distance of the third nearest cell; a cell at
that distance has the weight 0.6."""
_CURVATURE_SHARE = 0.7
"""The share of the difference between a parabola and a line through the same cells that counts as error."""
_NEAR_STEPS, _STEPS = 64, 16
"""The number of steps at which a curve is evaluated: over its whole range, and between the two cells around a crossing."""
_SPREAD = (1.0, 1.12, 1 / 1.12, 1.25, 1 / 1.25, 1.4, 1 / 1.4, 1.6, 1 / 1.6, 1.8, 1 / 1.8)
"""The loads of cells around a crossing, as multiples of it."""
_MAX_VISITS, _MAX_PROBES = 4, 8
"""The maximum number of cells at one load, and of cells in total for a curve whose cells do not have enough answers."""


@dataclass(frozen=True)
class Cell:
    """A point of a curve. `moves` is how much the pairs of each source move `value` away from the mean."""

    load: float
    value: float | None
    """None if there are too few answers."""
    moves: stats.Moves
    visits: int = 1
    """How often the load was measured; the weight of the cell in the fit."""
    failing: bool = True
    """If `value` is None: whether requests failed there, so that the curve ends below this load. Otherwise more answers are needed."""
    held: bool = True
    """Whether the load was held constant during measurement. If not, a speed-up near 1 is not judged."""
    drawn: bool = False
    """Whether arrival times are random. Then one block does not show the variation."""


@dataclass(frozen=True, kw_only=True)
class Range:
    low: float
    high: float
    whole: bool
    """Whether loads are whole numbers: requests in flight are, rates are not."""

    def near(self, load: float) -> float:
        """The nearest load that can be measured: a whole number, or a rate with three digits."""
        inside = min(max(load, self.low), self.high)
        return float(round(inside)) if self.whole else float(f"{inside:.3g}")

    def tolerance(self, load: float) -> float:
        """The tolerated error of a crossing at this load."""
        return max(PRECISION * load, 1.0) if self.whole else PRECISION * load


@dataclass(frozen=True, kw_only=True)
class Edge:
    """The load up to which (if `rising`: from which) a curve is above 0. `while answered` means that it is above 0 at each load up to
    `load` = `low`, and that requests failed at `failing` = `high`."""

    found: CurveKind
    load: float | None = None
    low: float | None = None
    high: float | None = None
    precise: bool = False
    """Whether the interval is narrow enough, and a cell is near the crossing."""
    rising: bool = False
    more: bool = False
    """Whether the curve crosses 0 again at a higher load."""
    failing: float | None = None
    """The lowest load at which requests failed."""
    signs: tuple[tuple[float, int], ...] = ()
    """(load, sign) for each measured load below `failing`: 1 if the curve is surely above the band of no difference, -1 if surely below, else 0."""
    same: tuple[float, ...] = ()
    """The loads with sign 0 at which the curve is surely inside the band."""
    near_low: float | None = None
    near_high: float | None = None
    """The range of measured loads in which the curve is inside the band; for a crossing, the range around it."""


class _Sides(NamedTuple):
    """Whether a curve is surely outside of the band (1 above, -1 below), surely inside it, and on which side of 0 it surely is."""

    sign: int
    inside: bool
    side: int


class Curve:
    """The cells of one curve, by load. A load at which requests failed ends it below."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.failing = min((c.load for c in cells if c.value is None and c.failing), default=math.inf)
        ordered = sorted(cells, key=lambda cell: cell.load)
        self.cells = [c for c in ordered if c.value is not None and c.load < self.failing]
        self.loads = [cell.load for cell in self.cells]
        self.ends = (self.loads[0], self.loads[-1]) if self.loads else (0.0, 0.0)
        self._values = [cell.value or 0.0 for cell in self.cells]
        self._visits = [cell.visits for cell in self.cells]
        self._starts = any(stats.several_starts(cell.moves) for cell in self.cells)
        self._covariances: dict[str, list[tuple[Any, float]]] = {}

    @cached_property
    def judged(self) -> dict[float, _Sides]:
        """For each load, the sides of the band and of 0 on which the curve surely is."""
        rows = {}
        for index, cell in enumerate(self.cells):
            value, half = self._combined([float(index == other) for other in range(len(self.cells))])
            (low, high), claims = BAND, cell.held or not starts_differ(value)
            sign = (value - half > high) - (value + half < low)
            inside, side = low <= value - half and value + half <= high, (value > half) - (value < -half)
            rows[cell.load] = _Sides(sign, inside, side) if claims else _Sides(0, False, 0)
        return rows

    def _between(self, units: str, weights: Sequence[float]) -> stats.Variance:
        """The variance of a weighted sum of the cells' values between units that loads share."""
        if units not in self._covariances:
            self._covariances[units] = list(self._tables(units))
        known = self._covariances[units]
        return stats.added(
            [(max(0.0, float(weights @ table @ weights)), degrees) for table, degrees in known]
        )

    def _tables(self, units: str) -> Iterator[tuple[Any, float]]:
        """Covariances of the cells' values, a matrix of numpy for each stratum, with its degrees of freedom."""
        import numpy as np

        strata: dict[Hashable, dict[Hashable, Any]] = {}
        for index, cell in enumerate(self.cells):
            for source, move in cell.moves.items():
                stratum, unit = stats.UNITS[units](source)
                own = strata.setdefault(stratum, {})
                own.setdefault(unit, np.zeros(len(self.cells)))[index] += move
        for own in strata.values():
            if (count := len(own)) > 1:
                moves = np.array(list(own.values()))
                yield count / (count - 1) * (moves.T @ moves), count - 1.0

    @cached_property
    def _of_blocks(self) -> dict[int, dict[str, stats.Variance]]:
        """The variances between blocks and within them, by index of each cell whose blocks are known."""
        units = ("blocks", "prompts in blocks")
        known = [
            (index, cell.moves) for index, cell in enumerate(self.cells) if stats.blocks_known(cell.moves)
        ]
        return {index: {unit: stats.between(moves, unit) for unit in units} for index, moves in known}

    def _between_blocks(self, units: str, weights: Sequence[float]) -> stats.Variance:
        """The variance of the weighted sum. One visit has the same variance at all loads. It is estimated half with equal weights of the
        loads, half with their weights in the sum."""
        shares = {index: abs(weights[index]) + 1 / len(weights) for index in self._of_blocks}
        total, variance, doubt = math.fsum(shares.values()), 0.0, 0.0
        for index, share in shares.items():
            of_cell, degrees = self._of_blocks[index][units]
            variance += share * self._visits[index] * of_cell / total
            doubt += share**2 / degrees
        return variance * math.fsum(
            w**2 / n for w, n in zip(weights, self._visits, strict=True)
        ), total**2 / doubt

    def _combined(self, weights: Sequence[float]) -> tuple[float, float]:
        """The weighted sum of the cells, and half the width of its interval."""
        value = float(sum(map(mul, weights, self._values)))
        variance, degrees = prompts = self._between("prompts", weights)
        if self._starts:
            starts, within = (self._between(units, weights) for units in ("starts", "prompts in starts"))
            variance, degrees = stats.widest(prompts, starts, within, _OF_STARTS)
        elif self._of_blocks:
            blocks, within = (
                self._between_blocks(units, weights) for units in ("blocks", "prompts in blocks")
            )
            variance, degrees = stats.joined(prompts, blocks, within)
        elif any(cell.drawn for cell in self.cells):
            variance = math.inf
        if not variance or math.isinf(variance):
            return value, 0.0 if self._covariances["prompts"] and not variance else math.inf
        confidence = _OF_STARTS if self._starts else _CONFIDENCE
        return value, stats.t_quantile(confidence, round(degrees, 1)) * math.sqrt(variance)

    def at(self, load: float) -> tuple[float, float]:
        """The height of the curve at a load, and half the width of its interval. The interval includes the effect of the curvature, because the
        shape between the cells is only a guess."""
        distances = [math.log(measured / load) for measured in self.loads]
        value, half = self._combined(_local(distances, self._visits, 3))
        straight = sum(map(mul, _local(distances, self._visits, 2), self._values))
        return value, math.hypot(half, _CURVATURE_SHARE * (value - straight))

    def near(self, crossing: float | None) -> tuple[float | None, float | None]:
        """The range of loads in which the curve is inside the band: around a crossing, or else the longest one. With two cells it is
        unknown."""
        if len(self.cells) < 3 or not all(cell.held for cell in self.cells):
            return None, None
        loads = sorted({*_grid(*self.ends, _NEAR_STEPS), *([crossing] if crossing else [])})
        heights = [0.0 if load == crossing else self.at(load)[0] for load in loads]
        stretches: list[tuple[float, float]] = []
        for (one, height), (other, next_height) in pairwise(zip(loads, heights, strict=True)):
            if inside := _inside(height, next_height):
                start, stop = (one * (other / one) ** share for share in inside)
                if stretches and math.isclose(stretches[-1][1], start):
                    start, _ = stretches.pop()
                stretches.append((start, stop))
        if crossing:
            stretches = [s for s in stretches if s[0] <= crossing * 1.0001 and crossing <= s[1] * 1.0001]
        return max(stretches, key=lambda stretch: stretch[1] / stretch[0], default=(None, None))

    def change(self) -> tuple[int, int, int, bool] | None:
        """The first sure change of sign: the indices of the two cells around it, the side before it, and whether there is another change. On at
        least one side the curve is outside of the band at some load. None without a change."""
        sure = ((index, judged) for index, judged in enumerate(self.judged.values()) if judged.side)
        runs = [list(own) for _, own in groupby(sure, key=lambda one: one[1].side)]
        changes = [(a, b) for a, b in pairwise(runs) if any(judged.sign for _, judged in (*a, *b))]
        if not changes:
            return None
        before, after = changes[0]
        return before[-1][0], after[0][0], before[-1][1].side, len(changes) > 1


def _grid(low: float, high: float, steps: int) -> list[float]:
    return [low * (high / low) ** (step / steps) for step in range(steps + 1)]


def _inside(height: float, other: float) -> tuple[float, float] | None:
    """The part of a line from `height` to `other` that is in the band, as two shares of its length; None if no part is."""
    low, high = BAND
    if height == other:
        return (0.0, 1.0) if low <= height <= high else None
    first, last = sorted(((low - height) / (other - height), (high - height) / (other - height)))
    first, last = max(first, 0.0), min(last, 1.0)
    return (first, last) if first < last else None


def _local(distances: Sequence[float], visits: Sequence[int], size: int) -> Any:
    """The weight of each cell in the height at distance 0 of a parabola (`size` 3) or a line (`size` 2). With two cells it is always a
    line."""
    import numpy as np

    away, size = np.array(distances), min(size, len(distances))
    bandwidth = np.clip(np.sort(np.abs(away))[min(3, len(away)) - 1], _MIN_BANDWIDTH, _MAX_BANDWIDTH)
    kernel = np.array(visits) * (np.exp(-0.5 * (away / bandwidth) ** 2) + 1e-9)
    powers = away[:, None] ** np.arange(size)
    return kernel * (powers @ np.linalg.solve((powers.T * kernel) @ powers, np.eye(size)[0]))


def edge(cells: Sequence[Cell], within: Range) -> Edge:
    """The crossing of a curve, or its sign at all loads."""
    curve = Curve(cells)
    failing = None if math.isinf(curve.failing) else curve.failing
    signs = tuple((load, judged.sign) for load, judged in curve.judged.items())
    same = tuple(load for load, judged in curve.judged.items() if judged.inside)
    known: dict[str, Any] = {"failing": failing, "signs": signs, "same": same}
    if (change := curve.change()) is None:
        found, last = _everywhere(signs), curve.ends[1]
        if failing is not None and found == "always":
            return Edge(found="while answered", load=last, low=last, high=failing, **known)
        if len(curve.cells) <= (failing is None) or found == "not shown":
            low, high = curve.near(None)
            return Edge(found="not shown", near_low=low, near_high=high, **known)
        return Edge(found=found, **known)
    left, right, side, more = change
    rising = curve.at(curve.loads[left])[0] < 0 and side < 0
    load, begin, end = _crossing(curve, left, right, rising)
    if len(curve.cells) < 3:  # the shape between two cells is unknown
        begin, end = curve.loads[left], curve.loads[right]
    tolerance, (low, high) = within.tolerance(load), curve.near(load)
    close = any(abs(measured - load) <= tolerance / 2 for measured in curve.loads)
    return Edge(
        found="crossing",
        load=load,
        low=max(begin, within.low),
        high=min(end, within.high),
        precise=close and max(end - load, load - begin) <= tolerance,
        rising=rising,
        more=more,
        near_low=low,
        near_high=high,
        **known,
    )


def _everywhere(signs: Iterable[tuple[float, int]]) -> CurveKind:
    words: dict[frozenset[int], CurveKind] = {frozenset({1}): "always", frozenset({-1}): "never"}
    return words.get(frozenset(sign for _, sign in signs), "not shown")


def _crossing(curve: Curve, left: int, right: int, rising: bool) -> tuple[float, float, float]:
    """Where the curve crosses 0 between two cells, and the loads around it that are statistically equal to it."""
    sign = -1.0 if rising else 1.0
    grid = _grid(curve.loads[left], curve.loads[right], _STEPS)
    heights = [(sign * value, half) for value, half in map(curve.at, grid)]
    lowest, highest = [value - half for value, half in heights], [value + half for value, half in heights]
    # The fit may cross 0 at a cell itself. Then the side of the cell counts.
    first = next((i for i in range(1, _STEPS + 1) if heights[i][0] <= 0), _STEPS)
    load = _between(grid[first - 1], grid[first], heights[first - 1][0], heights[first][0])
    low, high = grid[0], grid[-1]
    if (index := next((i for i in range(first - 1, -1, -1) if lowest[i] > 0), None)) is not None:
        low = _between(grid[index], grid[index + 1], lowest[index], lowest[index + 1])
    if (index := next((i for i in range(first, _STEPS + 1) if highest[i] < 0), None)) is not None:
        high = _between(grid[index - 1], grid[index], highest[index - 1], highest[index])
    return load, min(low, load), max(high, load)


def _between(one: float, other: float, above: float, below: float) -> float:
    """The load at which a line in log load from `above` 0 to `below` 0 crosses 0; the middle if it does not."""
    share = above / (above - below) if above > 0 >= below else 0.5
    return one * math.exp(math.log(other / one) * share)


def next_load(curves: Sequence[Sequence[Cell]], within: Range) -> float | None:
    """The load to measure next for the first curve that is not precise yet; None if all are."""
    return next((load for cells in curves if (load := _wanted(cells, within)) is not None), None)


def _wanted(cells: Sequence[Cell], within: Range) -> float | None:
    curve, measured = Curve(cells), {cell.load: cell.visits for cell in cells}
    for end in (within.low, within.high):
        if end not in measured:
            return end
    if curve.failing <= within.low:
        return None
    if curve.cells and not math.isinf(curve.failing):
        # Add an end between the answered and the failing loads, if they are far apart.
        middle = within.near(math.sqrt(curve.ends[1] * curve.failing))
        if curve.failing > 2 * curve.ends[1] and middle not in measured:
            return middle
        within = replace(within, high=curve.ends[1])
    again = [load for load, judged in curve.judged.items() if not judged.sign and not judged.inside]
    if curve.change() is None:
        if (middle := within.near(math.sqrt(within.low * within.high))) not in measured:
            return middle
        if again:
            return _least_measured(again, measured)
        unknown = (load for load in sorted(measured) if load not in curve.loads and load < curve.failing)
        return _least_measured(unknown, measured) if sum(measured.values()) < _MAX_PROBES else None
    known = edge(cells, within)
    if known.precise:  # an end without a clear sign may hide another crossing
        return _least_measured((load for load in again if load in curve.ends), measured)
    return _least_measured((within.near((known.load or 0.0) * by) for by in _SPREAD), measured)


@dataclass(frozen=True)
class ObjectiveAt:
    """The objective of an arm at a load: `sign` is 1 if it is met, -1 if it is missed, 0 if unknown. `again` is whether another cell would
    add prompts that are needed for a result."""

    load: float
    sign: int
    again: bool
    visits: int = 1


def next_of_objective(known: Sequence[ObjectiveAt], within: Range) -> float | None:
    """The load to measure next for an objective; None if another cell does not help."""
    visits = {at.load: at.visits for at in known}
    for end in (within.low, within.high):
        if end not in visits:
            return end
    if again := _least_measured((at.load for at in known if at.again), visits):
        return again
    gaps = [
        (b.load / a.load, math.sqrt(a.load * b.load), b.load, a.load)
        for a, b in pairwise(_around(known))
        if (a.sign, b.sign) != (0, 0)
    ]
    _, middle, high, low = max(gaps, default=(1.0, 1.0, 1.0, 1.0))
    far = max(high - middle, middle - low) > within.tolerance(middle)
    return within.near(middle) if far and within.near(middle) not in visits else None


def _around(known: Sequence[ObjectiveAt]) -> list[ObjectiveAt]:
    """The loads from the highest at which an objective is met to the lowest at which it is missed."""
    missed = min((at.load for at in known if at.sign < 0), default=0.0)
    met = max((at.load for at in known if at.sign > 0 and at.load < missed), default=None)
    if met is None:
        return []
    return sorted((at for at in known if met <= at.load <= missed), key=lambda at: at.load)


def edge_of_objective(known: Sequence[ObjectiveAt], within: Range, failing: float | None) -> Edge:
    """The load up to which an objective is met, between a load that meets it and one that misses it."""
    signs = tuple((at.load, at.sign) for at in sorted(known, key=lambda at: at.load))
    if not (between := _around(known)):
        return Edge(found=_everywhere(signs), failing=failing, signs=signs)
    low, high = between[0].load, between[-1].load
    load = math.sqrt(low * high)
    return Edge(
        found="crossing",
        load=load,
        low=low,
        high=high,
        precise=max(high - load, load - low) <= within.tolerance(load),
        more=any(at.sign > 0 and at.load > high for at in known),
        failing=failing,
        signs=signs,
    )


def _least_measured(loads: Iterable[float], visits: Mapping[float, int]) -> float | None:
    """The load that was measured least often (of equals the first); None if all were measured often enough."""
    able = [load for load in loads if visits.get(load, 0) < _MAX_VISITS]
    return min(able, key=lambda load: visits.get(load, 0), default=None)
