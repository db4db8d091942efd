"""Simulated searches for a crossing whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from benchmark.analyse.search import Cell, Edge, Range, edge, next_load
from benchmark.plan import Load, Search, from_dict
from tests.benchmark.analyse.noise import Noise, heavy, log_normal, stalls

WITHIN = Range(low=1, high=64, whole=True)
GRID = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST_CELLS: int = Search(low=1, high=64).cells
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
    requests: int = 64
    """Of a listed cell: a search's cells are as many as the plan says."""
    gain_spread: float = 0.05
    request_spread: float = 0.1
    within: Range = WITHIN
    most_cells: int = MOST_CELLS

    def search(self, dice: random.Random, crossing: float) -> tuple[Edge, list[float]]:
        """One search to its end, and the loads of its cells in their order."""
        gains = [self.gain_spread * self.noise(dice) for _ in range(self.prompts)]
        values: dict[float, list[list[float]]] = {}
        loads: list[float] = []
        while len(loads) < self.most_cells and (load := next_load([self.cells(values, loads)], self.within)):
            height = self.shape(math.log(load / crossing))
            of_prompts = values.setdefault(load, [[] for _ in gains])
            first = sum(map(len, of_prompts))
            for index in range(first, first + requests_of(self.requests, load)):
                gain = height + gains[index % self.prompts]
                noise = self.request_spread * (self.noise(dice) - self.noise(dice))
                of_prompts[index % self.prompts].append(gain + noise)
            loads.append(load)
        return edge(self.cells(values, loads), self.within), loads

    def cells(self, values: Mapping[float, list[list[float]]], loads: list[float]) -> list[Cell]:
        """What is known of the curve."""
        found = []
        for load, of_prompts in values.items():
            count = sum(map(len, of_prompts))
            mean = sum(map(sum, of_prompts)) / count
            moves = {str(i): (sum(own) - len(own) * mean) / count for i, own in enumerate(of_prompts) if own}
            found.append(Cell(load, mean, {"c": moves}, loads.count(load)))
        return found


@cache
def requests_of(requests: int, load: float) -> int:
    """Those of one cell of a search whose plan has so many."""
    arms = [{"name": name, "url": "http://a/v1"} for name in ("plain", "spec")]
    made = from_dict(
        {
            "schema": 1,
            "experiment": "x",
            "model": "x",
            "baseline": "plain",
            "arms": arms,
            "requests": requests,
        }
        | {"max_tokens": 8, "search": {"low": WITHIN.low, "high": WITHIN.high}}
        | {"prompts": [{"id": "a", "class": "c", "prompt": "a"}]}
    )
    return made.cell(Load(concurrency=int(load))).requests


def figures(runs: int, seed: int) -> Iterator[tuple[str, bool]]:
    """A line for each kind of search, and whether it is within its limits."""
    yield f"\nsearch for a crossing, {runs} searches of each kind", True
    yield f"{'noise':12} {'shape':9} coverage  precise  within 10 % or 1  cells  requests", True
    grid = 64 * len(GRID)
    for (name, noise), (shape_name, shape) in product(NOISES.items(), SHAPES.items()):
        dice = random.Random(f"{seed}/search/{name}/{shape_name}")
        simulated = Simulated(shape=shape, noise=noise)
        covered, precise, right, cells, requests = [], 0, 0, [], 0
        for _ in range(runs):
            truth = math.exp(dice.uniform(math.log(3), math.log(32)))
            found, loads = simulated.search(dice, truth)
            cells.append(len(loads))
            requests += sum(requests_of(simulated.requests, load) for load in loads)
            if found.load is None or found.low is None or found.high is None:
                continue
            covered.append(found.low <= truth <= found.high)
            precise += found.precise
            right += found.precise and abs(found.load - truth) <= WITHIN.tolerance(truth)
        share, close = sum(covered) / max(len(covered), 1), right / max(precise, 1)
        fine = COVERAGE[0] <= share <= COVERAGE[1] and close >= PRECISE
        line_ = f"{name:12} {shape_name:9} {share:8.1%} {precise / runs:8.1%} {close:17.1%} {sum(cells) / runs:6.1f} {requests / runs / grid:9.1%}"
        yield line_, fine and max(cells) <= MOST_CELLS
    for name, noise in NOISES.items():
        dice = random.Random(f"{seed}/search/{name}/same")
        same = Simulated(shape=lambda x: 0.0, noise=noise, gain_spread=0.0)
        alarms = sum(same.search(dice, 8)[0].found == "crossing" for _ in range(runs)) / runs
        yield f"{name:12} A/A: a crossing reported in {alarms:.1%}", alarms <= FALSE_ALARMS
