"""Simulated searches for a crossing whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from benchmark.analyse.search import MOST_CELLS, Cell, Edge, Range, edge, next_load
from tests.benchmark.analyse.noise import Noise, heavy, log_normal, stalls

WITHIN = Range(low=1, high=64, whole=True)
COVERAGE = (0.93, 0.97)
FALSE_ALARMS = 0.05
PRECISE = 0.95
"""The share of quiet searches that must end within 10 % or one request of the truth."""
NOISES = {"log-normal": log_normal, "heavy tails": heavy, "stalls": stalls}

Shape = Callable[[float], float]
"""The logarithm of the speed-up, by log(load / crossing)."""


def line(x: float) -> float:
    return -0.25 * x


def roofline(x: float) -> float:
    """Steps of which one kind is slower by a constant, the other by each request: 20 + n / 10 and 12 + 0.6 n ms."""
    n = 16 * math.exp(x)
    return math.log((20 + 0.1 * n) / (12 + 0.6 * n))


def bend(x: float) -> float:
    """Free up to half of the crossing's load, then a cost for each request."""
    return 0.5 - 0.5 * max(0.0, x / math.log(2) + 1)


SHAPES: dict[str, Shape] = {"line": line, "roofline": roofline, "bend": bend}


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Prompts differ in their gain, at every load alike; requests differ beside that."""

    shape: Shape
    noise: Noise
    prompts: int = 16
    requests: int = 32
    gain_spread: float = 0.05
    request_spread: float = 0.1
    within: Range = WITHIN

    def search(self, dice: random.Random, crossing: float) -> tuple[Edge, list[Cell]]:
        """One search to its end."""
        gains = [self.gain_spread * self.noise(dice) for _ in range(self.prompts)]
        cells: list[Cell] = []
        while len(cells) < MOST_CELLS and (load := next_load([cells], self.within)) is not None:
            cells.append(self._cell(dice, load, gains, crossing))
        return edge(cells, self.within), cells

    def _cell(self, dice: random.Random, load: float, gains: list[float], crossing: float) -> Cell:
        height, each = self.shape(math.log(load / crossing)), self.requests // self.prompts
        spread = self.request_spread
        values = [
            height
            + gain
            + math.fsum(spread * (self.noise(dice) - self.noise(dice)) for _ in range(each)) / each
            for gain in gains
        ]
        mean = math.fsum(values) / len(values)
        return Cell(load, mean, {"c": {str(i): (v - mean) / len(values) for i, v in enumerate(values)}})


def figures(runs: int, seed: int) -> Iterator[tuple[str, bool]]:
    """A line for each kind of search, and whether it is within its limits."""
    yield f"\nsearch for a crossing, {runs} searches of each kind", True
    yield f"{'noise':12} {'shape':9} coverage  precise  within 10 % or 1  cells  A/A reported", True
    for (name, noise), (shape_name, shape) in product(NOISES.items(), SHAPES.items()):
        dice = random.Random(f"{seed}/search/{name}/{shape_name}")
        simulated = Simulated(shape=shape, noise=noise)
        covered, precise, right, cells = [], 0, 0, []
        for _ in range(runs):
            truth = math.exp(dice.uniform(math.log(3), math.log(32)))
            found, measured = simulated.search(dice, truth)
            cells.append(len(measured))
            if found.load is None or found.low is None or found.high is None:
                continue
            covered.append(found.low <= truth <= found.high)
            precise += found.precise
            right += found.precise and abs(found.load - truth) <= WITHIN.tolerance(truth)
        same = Simulated(shape=lambda x: 0.0, noise=noise, gain_spread=0.0)
        alarms = sum(same.search(dice, 8)[0].found == "crossing" for _ in range(runs)) / runs
        share, close = sum(covered) / max(len(covered), 1), right / max(precise, 1)
        fine = COVERAGE[0] <= share <= COVERAGE[1] and alarms <= FALSE_ALARMS and close >= PRECISE
        line_ = f"{name:12} {shape_name:9} {share:8.1%} {precise / runs:8.1%} {close:17.1%} {sum(cells) / runs:6.1f} {alarms:13.1%}"
        yield line_, fine and max(cells) <= MOST_CELLS
