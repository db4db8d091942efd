"""What a decision looks at over load, and how surely it is known between the loads that were measured.

The curve near a load is a local quadratic in log load, with weights that fall off with the distance (local regression,
Cleveland 1979, Journal of the American Statistical Association 74). That makes its height at a load a weighted sum of
the cells. What moves that sum are prompts, which all loads share, blocks, which are of one load alone (of requests at a rate they
are sets of arrivals that wait in one queue), and starts of the servers, which all loads share
(`benchmark.analyse.sources`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from benchmark.analyse.comparison import BAND, starts_differ
from benchmark.analyse.sources import (
    Key,
    Moves,
    Variance,
    added,
    between,
    blocks_known,
    by_block,
    by_prompt,
    by_start,
    joined,
    widest,
    within_block,
    within_start,
)
from benchmark.analyse.stats import CONFIDENCE, t_quantile

_CONFIDENCE = 0.986
"""One-sided, of each sign and each end of an interval. A search that ends once its interval is narrow ends too early where
chance made it so: 0.986 makes up for that, so that 95 % of intervals hold (`scripts/measure search` simulates it)."""
_OF_STARTS = (1 + CONFIDENCE) / 2
"""The same of several starts: the first one alone decided when to end."""
_WIDEST, _NARROWEST = 0.7, 0.2
"""Bandwidth of the local regression, in log load: a cell one bandwidth away counts for 0.6. The third nearest cell decides."""
_BENT = 0.7
"""How much of the difference between a parabola and a line through the same cells counts as error."""
_NEAR_STEPS = 64
"""Loads at which a curve is looked at for where it is close to 0."""


@dataclass(frozen=True)
class Cell:
    """A curve at one load. `moves`: by how much the pairs of each source move `value` away from the mean."""

    load: float
    value: float | None
    """None where too little was answered, or is known."""
    moves: Moves
    visits: int = 1
    """How often the load was measured: so much the curve's height counts in the fit."""
    failing: bool = True
    """Where `value` is None: whether requests failed there, and the curve ends below. Otherwise more answers would tell."""
    held: bool = True
    """Whether the load was held while it was measured: otherwise a speed-up near 1 is not judged."""
    drawn: bool = False
    """Whether its requests arrive at times that were drawn: then one block says nothing about chance."""


class _Judged(NamedTuple):
    sign: int
    """Beyond the band, above or below."""
    inside: bool
    """Within it."""
    side: int
    """Of 0."""


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
        """By load: 1 where Student's t is sure that the curve is above its band, -1 where it is below, else 0."""
        return [(load, one.sign) for load, one in zip(self.loads, self._judged, strict=True)]

    def same(self) -> list[float]:
        """Loads at which the curve is surely inside its band."""
        return [load for load, one in zip(self.loads, self._judged, strict=True) if one.inside]

    def unclear(self) -> list[float]:
        """Loads that cannot tell."""
        known = zip(self.loads, self._judged, strict=True)
        return [load for load, one in known if not one.sign and not one.inside]

    @cached_property
    def _judged(self) -> list[_Judged]:
        found = []
        for index, cell in enumerate(self.cells):
            value, half = self._combined([float(index == other) for other in range(len(self.cells))])
            (low, high), claims = BAND, cell.held or not starts_differ(value)
            sign = (value - half > high) - (value + half < low)
            inside, side = low <= value - half and value + half <= high, (value > half) - (value < -half)
            found.append(_Judged(sign, inside, side) if claims else _Judged(0, False, 0))
        return found

    def _shared(self, key: Key) -> list[tuple[list[list[float]], float]]:
        """Of units that loads share, the covariances of the cells' values, by stratum, each with its degrees of freedom."""
        sums: list[dict[Hashable, defaultdict[Hashable, float]]] = []
        for cell in self.cells:
            own: dict[Hashable, defaultdict[Hashable, float]] = {}
            for source, move in cell.moves.items():
                stratum, unit = key(source)
                own.setdefault(stratum, defaultdict(float))[unit] += move
            sums.append(own)
        found = []
        for stratum in dict.fromkeys(name for own in sums for name in own):
            rows: list[Mapping[Hashable, float]] = [own.get(stratum, {}) for own in sums]
            count = len({unit for row in rows for unit in row})
            if count > 1:
                scale = count / (count - 1)
                table = [
                    [scale * math.fsum(m * b[u] for u, m in a.items() if u in b) for b in rows] for a in rows
                ]
                found.append((table, count - 1.0))
        return found

    @cached_property
    def _of_prompts(self) -> list[tuple[list[list[float]], float]]:
        return self._shared(by_prompt)

    @cached_property
    def _of_starts(self) -> tuple[list[tuple[list[list[float]], float]], ...] | None:
        """Of starts, and of what prompts have within them; None where there is one."""
        if len({source.start for cell in self.cells for source in cell.moves}) < 2:
            return None
        return self._shared(by_start), self._shared(within_start)

    @cached_property
    def _of_blocks(self) -> list[tuple[Variance, Variance] | None]:
        """By cell, the variance of a visit over blocks, and within them; None where blocks say nothing."""
        found: list[tuple[Variance, Variance] | None] = []
        for cell in self.cells:
            known = blocks_known(cell.moves)
            parts = (between(cell.moves, key) for key in (by_block, within_block))
            blocks, within = ((cell.visits * variance, degrees) for variance, degrees in parts)
            found.append((blocks, within) if known else None)
        return found

    def _block_variance(self, weights: Sequence[float]) -> tuple[Variance, Variance] | None:
        """Of the weighted sum, from blocks and from what is within them: a visit of a load has the same at all loads, to which half
        counts each alike, half by its weight. None where no load tells."""
        known = [
            (abs(weight) + 1 / len(weights), own)
            for own, weight in zip(self._of_blocks, weights, strict=True)
            if own
        ]
        if not known:
            return None
        total = math.fsum(share for share, _ in known)
        visits = math.fsum(w**2 / count for w, count in zip(weights, self._visits, strict=True))
        blocks, within = (
            (
                visits * math.fsum(share * own[side][0] for share, own in known) / total,
                total**2 / math.fsum(share**2 / own[side][1] for share, own in known),
            )
            for side in (0, 1)
        )
        return blocks, within

    def _combined(self, weights: Sequence[float]) -> tuple[float, float]:
        """The weighted sum of the cells, and half the width of its interval."""
        value = sum(map(float.__mul__, weights, self._values))
        variance, degrees = self._variance(weights)
        if not variance or math.isinf(variance):
            return value, 0.0 if self._of_prompts and not variance else math.inf
        return value, t_quantile(self._confidence, round(degrees, 1)) * math.sqrt(variance)

    @property
    def _confidence(self) -> float:
        return _OF_STARTS if self._of_starts else _CONFIDENCE

    def _variance(self, weights: Sequence[float]) -> Variance:
        prompts = _weighted(self._of_prompts, weights)
        if self._of_starts:
            starts, within = (_weighted(tables, weights) for tables in self._of_starts)
            return widest(prompts, starts, within, self._confidence)
        if (blocks := self._block_variance(weights)) is not None:
            return joined(prompts, *blocks)
        return (math.inf, 1.0) if any(cell.drawn for cell in self.cells) else prompts

    def at(self, load: float) -> tuple[float, float]:
        """The height of the curve at a load, and half the width of its interval: with what the parabola's bend makes out,
        since where that matters the curve between the cells is a guess."""
        distances = [math.log(one / load) for one in self.loads]
        value, half = self._combined(_local(distances, self._visits, 3))
        straight = sum(map(float.__mul__, _local(distances, self._visits, 2), self._values))
        return value, math.hypot(half, _BENT * (value - straight))

    def near(self, crossing: float | None) -> tuple[float | None, float | None]:
        """From which load to which the curve runs inside its band: around a crossing, else the longest way. Two cells leave open how
        it runs between them."""
        (low, high), begin, end = BAND, *self.ends
        if len(self.cells) < 3 or not all(cell.held for cell in self.cells):
            return None, None
        grid = {begin * (end / begin) ** (step / _NEAR_STEPS) for step in range(_NEAR_STEPS + 1)}
        loads = sorted(grid | ({crossing} if crossing else set()))
        heights = [0.0 if load == crossing else self.at(load)[0] for load in loads]
        stretches: list[tuple[float, float]] = []
        for (one, above), (other, below) in pairwise(zip(loads, heights, strict=True)):
            if inside := _inside(above, below, low, high):
                start, stop = (one * (other / one) ** share for share in inside)
                if stretches and math.isclose(stretches[-1][1], start):
                    stretches[-1] = (stretches[-1][0], stop)
                else:
                    stretches.append((start, stop))
        if crossing:
            stretches = [
                one for one in stretches if one[0] <= crossing * 1.0001 and crossing <= one[1] * 1.0001
            ]
        return max(stretches, key=lambda one: one[1] / one[0], default=(None, None))

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest load."""
        return (self.loads[0], self.loads[-1]) if self.loads else (0.0, 0.0)

    def change(self) -> tuple[int, int, int, bool] | None:
        """The two cells between which the curve first surely changes from one side of 0 to the other, on which side it was, and
        whether it changes again; on one of both sides it is somewhere beyond its band."""
        runs: list[list[tuple[int, int, int]]] = []
        for index, one in enumerate(self._judged):
            if one.side and runs and runs[-1][-1][1] == one.side:
                runs[-1].append((index, one.side, one.sign))
            elif one.side:
                runs.append([(index, one.side, one.sign)])
        changes = [(a, b) for a, b in pairwise(runs) if any(sign for *_, sign in (*a, *b))]
        if not changes:
            return None
        before, after = changes[0]
        return before[-1][0], after[0][0], before[-1][1], len(changes) > 1


def _weighted(tables: Sequence[tuple[list[list[float]], float]], weights: Sequence[float]) -> Variance:
    """The variance of a weighted sum of values with these covariances."""
    parts = []
    for table, degrees in tables:
        rows = (sum(map(float.__mul__, weights, row)) for row in table)
        parts.append((max(0.0, sum(map(float.__mul__, weights, rows))), degrees))
    return added(parts)


def _inside(one: float, other: float, low: float, high: float) -> tuple[float, float] | None:
    """From which share of the way to which a line from height `one` to `other` lies between two heights; None where nowhere."""
    if one == other:
        return (0.0, 1.0) if low <= one <= high else None
    first, last = sorted(((low - one) / (other - one), (high - one) / (other - one)))
    first, last = max(first, 0.0), min(last, 1.0)
    return (first, last) if first < last else None


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
