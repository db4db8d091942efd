"""Which load to measure next, and up to which load something holds: a pure function of the cells measured so far.

A curve is what a decision looks at over load: the logarithm of the treatment's speed-up, or of the objective over what an
arm needs. Above 0 it pays, or holds. The ends of the range are measured first, then the middle where they agree, or
the place where a line between them crosses 0; from there on each cell goes where the curve is expected to cross. Cells
are small: a load whose sign is not sure is measured again, and what is clear takes no more than one.

The curve near a load is a local quadratic in log load, with weights that fall off with the distance (local regression,
Cleveland 1979, Journal of the American Statistical Association 74). That makes its height at a load a weighted sum of
the cells, and as cells share their prompts, prompts are the independent units of that sum too. Requests at a rate arrive
at times that were drawn, and all requests of a draw wait in the same queue: the draws are units of their own, which no two
cells share. The interval of a crossing holds every load at which Student's t does not tell the height from 0 (Fieller 1954,
Journal of the Royal Statistical Society B 16).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

from benchmark.analyse.stats import t_quantile

Found = Literal["crossing", "always", "never", "while answered", "not shown"]
PRECISION = 0.1
"""A crossing is known where its interval is within this share of it, or within one request."""
_CONFIDENCE = 0.986
"""One-sided, of each sign and each end of an interval. A search that ends once its interval is narrow ends too early where
chance made it so: 0.986 makes up for that, so that 95 % of intervals hold (`scripts/measure search` simulates it)."""
_WIDEST, _NARROWEST = 0.7, 0.2
"""Bandwidth of the local regression, in log load: a cell one bandwidth away counts for 0.6. The third nearest cell decides."""
_BENT = 0.7
"""How much of the difference between a parabola and a line through the same cells counts as error."""
_STEPS = 16
"""Loads between the cells beside a crossing at which the curve is looked at."""
_SPREAD = (1.0, 1.12, 1 / 1.12, 1.25, 1 / 1.25, 1.4, 1 / 1.4, 1.6, 1 / 1.6, 1.8, 1 / 1.8)
"""Where cells around a crossing go, as multiples of it."""
_MOST_VISITS = 4
"""Cells at one load."""
_PROBES = 8
"""Cells after which a curve whose sign is not sure is given up."""


@dataclass(frozen=True)
class Cell:
    """A curve at one load. `moves`: by class and prompt, by how much that prompt alone moves `value` away from the mean."""

    load: float
    value: float | None
    """None where too little was answered, or is known."""
    moves: Mapping[str, Mapping[str, float]]
    visits: int = 1
    """How often the load was measured: so much the curve's height counts in the fit."""
    failing: bool = True
    """Where `value` is None: whether requests failed there, and the curve ends below. Otherwise more answers would tell."""
    draws: Mapping[str, Mapping[str, float]] | None = None
    """Of requests at a rate, by class (of a replay, of all together) and set of arrivals drawn together, by how much that set
    alone moves `value`; None where nothing is drawn."""


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
    """By measured load below that: 1 where it is surely above 0, -1 where it is surely below, else 0."""


class Curve:
    """The cells of one curve, by load. A load at which requests failed ends it below."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.failing = min((c.load for c in cells if c.value is None and c.failing), default=math.inf)
        ordered = sorted(cells, key=lambda cell: cell.load)
        self.cells = [c for c in ordered if c.value is not None and c.load < self.failing]
        self.loads = [cell.load for cell in self.cells]
        self._values = [cell.value or 0.0 for cell in self.cells]
        self._visits = [cell.visits for cell in self.cells]

    def signs(self) -> list[tuple[float, int]]:
        """By load: 1 or -1 where Student's t is sure of it, else 0."""
        found = []
        for index, cell in enumerate(self.cells):
            weights = [float(index == other) for other in range(len(self.cells))]
            found.append((cell.load, self._sign(*self._combined(weights))))
        return found

    @staticmethod
    def _sign(value: float, half: float) -> int:
        return (value > half) - (value < -half)

    @cached_property
    def _covariances(self) -> list[tuple[list[list[float]], int]]:
        """Of the cells' values, by class, each with its degrees of freedom."""
        found = []
        for class_ in dict.fromkeys(name for cell in self.cells for name in cell.moves):
            own = [cell.moves.get(class_, {}) for cell in self.cells]
            prompts = len({prompt for of_cell in own for prompt in of_cell})
            if prompts > 1:
                scale = prompts / (prompts - 1)
                table = [
                    [scale * math.fsum(m * b[p] for p, m in a.items() if p in b) for b in own] for a in own
                ]
                found.append((table, prompts - 1))
        return found

    def _of_draws(self, weights: Sequence[float]) -> tuple[float, float]:
        """Variance of the weighted sum from the arrivals that were drawn, and its degrees of freedom: a visit of a load has the same
        at all loads, to which half counts each alike, half by its weight. Infinite where no load has two sets of arrivals."""
        drawn = [cell for cell in self.cells if cell.draws is not None]
        if not drawn:
            return 0.0, 1.0
        known = []
        for cell, weight in zip(self.cells, weights, strict=True):
            several = [list(own.values()) for own in (cell.draws or {}).values() if len(own) > 1]
            if several:
                parts = [
                    (len(own) / (len(own) - 1) * math.fsum(one**2 for one in own), len(own) - 1)
                    for own in several
                ]
                known.append((abs(weight) + 1 / len(weights), *_added(parts, cell.visits)))
        if not known:
            return math.inf, 1.0
        total = math.fsum(share for share, _, _ in known)
        each = math.fsum(share * variance for share, variance, _ in known) / total
        degrees_all = total**2 / math.fsum(share**2 / degrees for share, _, degrees in known)
        visits = zip(weights, self._visits, strict=True)
        return each * math.fsum(weight**2 / count for weight, count in visits), degrees_all

    def _combined(self, weights: Sequence[float]) -> tuple[float, float]:
        """The weighted sum of the cells, and half the width of its interval."""
        value = sum(map(float.__mul__, weights, self._values))
        parts: list[tuple[float, float]] = []
        for table, degrees in self._covariances:
            rows = (sum(map(float.__mul__, weights, row)) for row in table)
            parts.append((max(0.0, sum(map(float.__mul__, weights, rows))), degrees))
        parts.append(self._of_draws(weights))
        variance, degrees_all = _added(parts)
        if not variance or math.isinf(variance):
            return value, 0.0 if self._covariances and not variance else math.inf
        return value, t_quantile(_CONFIDENCE, round(degrees_all, 1)) * math.sqrt(variance)

    def at(self, load: float) -> tuple[float, float]:
        """The height of the curve at a load, and half the width of its interval: with what the parabola's bend makes out,
        since where that matters the curve between the cells is a guess."""
        distances = [math.log(one / load) for one in self.loads]
        value, half = self._combined(_local(distances, self._visits, 3))
        straight = sum(map(float.__mul__, _local(distances, self._visits, 2), self._values))
        return value, math.hypot(half, _BENT * (value - straight))

    def change(self) -> tuple[int, int, bool] | None:
        """The two cells between which a sure sign first changes, and whether it changes again."""
        sure = [(index, sign) for index, (_, sign) in enumerate(self.signs()) if sign]
        changes = [(a, b) for (a, one), (b, other) in pairwise(sure) if one != other]
        return (*changes[0], len(changes) > 1) if changes else None


def _added(parts: Sequence[tuple[float, float]], times: int = 1) -> tuple[float, float]:
    """The sum of variances and their degrees of freedom (Satterthwaite), so many times."""
    variance = math.fsum(part for part, _ in parts)
    if not variance or math.isinf(variance):
        return variance, sum(degrees for _, degrees in parts)
    return times * variance, variance**2 / math.fsum(part**2 / degrees for part, degrees in parts)


def edge(cells: Sequence[Cell], within: Range) -> Edge:
    """What is known of a curve."""
    curve = Curve(cells)
    by_load = tuple(curve.signs())
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
        return Edge(found=found, failing=failing, signs=by_load)
    left, right, more = change
    rising = curve.at(curve.loads[left])[0] < 0 and curve.signs()[left][1] < 0
    load, low, high = _crossing(curve, left, right, rising)
    if len(curve.cells) < 3:  # nothing tells how the curve runs between them
        low, high = curve.loads[left], curve.loads[right]
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


def _local(distances: Sequence[float], visits: Sequence[int], size: int) -> list[float]:
    """The weight of each cell in the height at distance 0 of a parabola (`size` 3) or a line (2); the line of both where
    there are two cells."""
    size = min(size, len(distances))
    bandwidth = min(max(sorted(map(abs, distances))[min(3, len(distances)) - 1], _NARROWEST), _WIDEST)
    kernel = [
        n * (math.exp(-0.5 * (d / bandwidth) ** 2) + 1e-9) for n, d in zip(visits, distances, strict=True)
    ]
    powers, moments = list(kernel), [sum(kernel)]
    for _ in range(2 * size - 2):
        powers = list(map(float.__mul__, powers, distances))
        moments.append(sum(powers))
    first = _solved([moments[row : row + size] for row in range(size)])
    return [
        k * sum(c * d**power for power, c in enumerate(first)) for k, d in zip(kernel, distances, strict=True)
    ]


def _solved(matrix: list[list[float]]) -> list[float]:
    """The x of `matrix` x = (1, 0, ...), by elimination with pivots."""
    size = len(matrix)
    rows = [[*row, float(index == 0)] for index, row in enumerate(matrix)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for index in range(size):
            if index != column:
                factor = rows[index][column] / rows[column][column]
                rows[index] = [a - factor * b for a, b in zip(rows[index], rows[column], strict=True)]
    return [rows[index][size] / rows[index][index] for index in range(size)]


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
        between = within.near(math.sqrt(curve.loads[-1] * curve.failing))
        if curve.failing > 2 * curve.loads[-1] and between not in measured:
            return between
        within = replace(within, high=curve.loads[-1])
    change = curve.change()
    if change is None:
        middle = within.near(math.sqrt(within.low * within.high))
        if middle not in measured:
            return middle
        sure = {load for load, sign in curve.signs() if sign}
        again = (load for load in sorted(measured) if load not in sure and load < curve.failing)
        return _least(again, measured) if sum(measured.values()) < _PROBES else None
    found = edge(cells, within)
    if found.precise or found.load is None:
        return None
    return _least((within.near(found.load * by) for by in _SPREAD), measured)


def _least(loads: Iterable[float], visits: Mapping[float, int]) -> float | None:
    """The load that was measured least often, the first of equals; None where all were measured often enough."""
    able = [load for load in loads if visits.get(load, 0) < _MOST_VISITS]
    return min(able, key=lambda load: visits.get(load, 0), default=None)
