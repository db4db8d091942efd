"""Simulated searches for a crossing whose truth is known."""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, chain, product

from benchmark.analyse.load_search import Cell, Edge, Range, edge, next_load
from benchmark.analyse.stats import Source, mean_of
from benchmark.cell_size import SETS_REPEATED
from benchmark.measure.schedule import set_sizes
from benchmark.plan import Load, Search, from_dict
from tests.benchmark.analyse import noise as simulation
from tests.benchmark.analyse.noise import NOISES, Figures, Measurement, Noise, log_normal
from tests.benchmark.conftest import plan_content

WITHIN = Range(low=1, high=64, whole=True)
GRID = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST_CELLS: int = Search(low=1, high=64).cells
PRECISE = 0.95
"""The share of quiet searches that must end within 10 % or one request of the truth, but for two standard errors: with flat
curves and much noise few end quietly."""

Shape = Callable[[float], float]
"""The logarithm of the speed-up, by log(load / crossing)."""
Heights = Callable[[random.Random, float, float, int], Sequence[float]]
"""The logarithms of the speed-ups of a set of so many requests at a load, with the crossing at another."""


def roofline(x: float) -> float:
    """Steps of which one kind is slower by a constant, the other by each request: 20 + n / 10 and 12 + 0.6 n ms."""
    n = 16 * math.exp(x)
    return math.log((20 + 0.1 * n) / (12 + 0.6 * n))


SHAPES: dict[str, Shape] = {
    "line": lambda x: -0.25 * x,
    "roofline": roofline,
    "bend": lambda x: 0.5 - 0.5 * max(0.0, x / math.log(2) + 1),
}
"""The bend is free up to half of the crossing's load, then has a cost for each request."""


@dataclass(frozen=True, kw_only=True)
class Simulated(Measurement):
    """Pairs at every load of a search. At a rate each set of arrivals differs as well, by its `heights`."""

    heights: Heights
    speed_up_spread: float = 0.05
    within: Range = WITHIN

    def search(self, dice: random.Random, crossing: float) -> tuple[Edge, list[float]]:
        """One search to its end, and the loads of its cells in their order. Later starts measure the cells of the first again."""
        gains, of_start = self.effects(dice)
        sets: dict[float, list[list[tuple[Source, float]]]] = {}
        loads: list[float] = []

        def measure(load: float, start: int) -> None:
            of_load = sets.setdefault(load, [])
            for size in self.sizes(load):
                heights = [of_start[start] + height for height in self.heights(dice, load, crossing, size)]
                source = Source("c", "", "c", str(len(of_load)), start + 1)
                of_load.append(list(self.pairs(dice, gains, heights, sum(map(len, of_load)), source)))

        def cells() -> list[Cell]:
            known = ((load, mean_of(list(chain.from_iterable(of_load)))) for load, of_load in sets.items())
            drawn = not self.within.whole
            return [Cell(load, *mean, loads.count(load), drawn=drawn) for load, mean in known]

        maximum = max(MOST_CELLS // self.starts, 2)
        while len(loads) < maximum and (load := next_load([cells()], self.within)):
            measure(load, 0)
            loads.append(load)
        for start, load in product(range(1, self.starts), loads):
            measure(load, start)
        return edge(cells(), self.within), loads * self.starts

    def sizes(self, load: float) -> list[int]:
        """Requests of each set of a cell under one start."""
        whole = sizes(self.requests, load, self.within.whole)
        return whole if self.starts == 1 else whole[:SETS_REPEATED]


def of_shape(shape: Shape, draw_spread: float = 0.0) -> Heights:
    """All requests of a set at the height of a shape, which the draw of their arrivals moves."""

    def heights(dice: random.Random, load: float, crossing: float, size: int) -> list[float]:
        drawn = draw_spread * dice.gauss(0, 1) if draw_spread else 0.0
        return [shape(math.log(load / crossing)) + drawn] * size

    return heights


@dataclass(frozen=True)
class Server:
    """Answers of `steps` steps after the first, each of `base_s` and `each_s` for every request under way."""

    base_s: float
    each_s: float
    steps: int
    first_s: float = 0.02

    def step_s(self, under_way: int) -> float:
        return self.base_s + self.each_s * under_way

    def log_spans(self, arrivals_s: Sequence[float]) -> list[float]:
        """Of each request, the logarithm of the seconds from its first chunk to its last."""
        events = [(at_s, index, -1) for index, at_s in enumerate(arrivals_s)]
        heapq.heapify(events)
        first_s, spans, under_way = dict[int, float](), [0.0] * len(arrivals_s), 0
        while events:
            now, index, step = heapq.heappop(events)
            if step < 0:
                under_way += 1
                heapq.heappush(events, (now + self.first_s, index, 0))
            elif step == self.steps:
                under_way -= 1
                spans[index] = math.log(now - first_s[index])
            else:
                first_s.setdefault(index, now)
                heapq.heappush(events, (now + self.step_s(under_way), index, step + 1))
        return spans


PLAIN = Server(0.020, 0.0001, 36)
DRAFTING = {
    "from 12": Server(0.054, 0.00405, 8),
    "from 20": Server(0.054, 0.0027, 8),
    "from 26": Server(0.063, 0.0018, 8),
}
"""By about the rate at which it is no longer faster than PLAIN."""


def queued(drafting: Server) -> Heights:
    """The logarithms of the speed-ups over PLAIN in two queues with the same arrivals: by chance, and so many in the time that the
    rate has for them, as the client sends them."""

    def heights(dice: random.Random, load: float, crossing: float, size: int) -> list[float]:
        drawn = [dice.expovariate(1.0) for _ in range(size)]
        arrivals_s = [size / load / sum(drawn) * at for at in accumulate(drawn)]
        spans = zip(PLAIN.log_spans(arrivals_s), drafting.log_spans(arrivals_s), strict=True)
        return [before - after for before, after in spans]

    return heights


def crossing_of(heights: Heights, size: int) -> float:
    """The rate at which the mean over many draws is 0: the requests under way of a short set are not those of an endless one."""
    low, high = 4.0, 64.0
    for _ in range(12):
        middle, dice = math.sqrt(low * high), random.Random(size)
        mean = sum(sum(heights(dice, middle, 0.0, size)) for _ in range(-(-10_000 // size)))
        low, high = (middle, high) if mean > 0 else (low, middle)
    return math.sqrt(low * high)


@cache
def sizes(requests: int, load: float, whole: bool = True) -> list[int]:
    """The sets of one cell of a search whose plan has so many requests."""
    search = {"low": WITHIN.low, "high": WITHIN.high, "by": "concurrency" if whole else "rate"}
    prompts = [{"id": f"c-{i}", "class": "c", "prompt": f"Prompt {i}"} for i in range(16)]
    made = from_dict(plan_content(requests=requests, concurrency=[], search=search, prompts=prompts))
    at = Load(concurrency=int(load)) if whole else Load(rate_per_s=load)
    return set_sizes(made.cell(at), at)


def at_a_rate(heights: Heights, noise: Noise) -> Simulated:
    """Searches of a rate, with cells of two sets of 64 requests."""
    within = Range(low=4, high=64, whole=False)
    made = Simulated(heights=heights, noise=noise, requests=8 * 64, within=within)
    return replace(made, speed_up_spread=0.02, request_spread=0.05)


def figures(runs: int, seed: int) -> Figures:
    """A line for each kind of search."""
    yield f"\nsearch for a crossing, {runs} searches of each kind", True
    yield f"{'':22} coverage  precise  within 10 % or 1  cells  requests", True
    kinds: dict[str, Simulated] = {}
    for (name, noise), (shape_name, shape) in product(NOISES.items(), SHAPES.items()):
        kinds[f"{name}, {shape_name}"] = Simulated(heights=of_shape(shape), noise=noise)
        kinds[f"rate, {name}, {shape_name}"] = at_a_rate(of_shape(shape, 0.02), noise)
    for shape_name, shape in SHAPES.items():
        kinds[f"blocks, {shape_name}"] = Simulated(heights=of_shape(shape, 0.02), noise=log_normal)
    for starts in (2, 3):
        one = Simulated(heights=of_shape(roofline, 0.01), noise=log_normal)
        kinds[f"{starts} starts, roofline"] = replace(one, starts=starts, start_spread=0.02)
    for name, kind in kinds.items():
        yield judged(name, kind, runs, seed)
    for name, server in DRAFTING.items():
        kind = at_a_rate(queued(server), log_normal)
        truth = crossing_of(kind.heights, kind.sizes(20.0)[0])
        yield judged(f"two queues, {name}", kind, runs, seed, truth)
    flat = of_shape(lambda x: 0.0, 0.02)
    for (name, noise), rate in product(NOISES.items(), (False, True)):
        same = at_a_rate(flat, noise) if rate else Simulated(heights=flat, noise=noise)
        same, dice = replace(same, speed_up_spread=0.0), random.Random(f"{seed}/search/{rate}/{name}/same")
        alarms = sum(same.search(dice, 8)[0].found == "crossing" for _ in range(runs)) / runs
        yield (
            f"{'rate, ' * rate}{name}: A/A: a crossing reported in {alarms:.1%}",
            alarms <= simulation.FALSE_ALARMS[1],
        )


def judged(name: str, kind: Simulated, runs: int, seed: int, truth: float | None = None) -> tuple[str, bool]:
    """With the crossing at `truth`, or anywhere from half above the lowest load on to half of the highest."""
    dice, within = random.Random(f"{seed}/search/{name}"), kind.within
    covered, precise, right, cells, requests = list[bool](), 0, 0, list[int](), 0
    for _ in range(runs):
        crossing = truth or math.exp(dice.uniform(math.log(max(3, 1.5 * within.low)), math.log(32)))
        found, loads = kind.search(dice, crossing)
        cells.append(len(loads))
        requests += sum(sum(kind.sizes(load)) for load in loads)
        if found.load is None or found.low is None or found.high is None:
            continue
        covered.append(found.low <= crossing <= found.high)
        precise += found.precise
        right += found.precise and abs(found.load - crossing) <= within.tolerance(crossing)
    # Few starts tell little of how starts differ: then an interval that holds is wide.
    maximum = simulation.COVERAGE[1] if kind.starts == 1 else 1.0
    share, close = sum(covered) / max(len(covered), 1), right / max(precise, 1)
    grid = sum(sum(sizes(kind.requests, load, within.whole)) for load in GRID)
    chance = 2 * math.sqrt(PRECISE * (1 - PRECISE) / max(precise, 1))
    fine = (
        simulation.meets(sum(covered), len(covered), (simulation.COVERAGE[0], maximum))
        and close >= PRECISE - chance
    )
    columns = f"{share:6.1%} {precise / runs:8.1%} {close:17.1%} {sum(cells) / runs:6.1f}"
    return f"{name:26}{columns} {requests / runs / grid:9.1%}", fine and max(cells) <= MOST_CELLS


if __name__ == "__main__":
    sys.exit(simulation.figures(__doc__, {"search": figures}, 1000))
