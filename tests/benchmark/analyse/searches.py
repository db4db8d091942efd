"""Simulated searches for a crossing whose truth is known."""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, product

from benchmark.analyse.load_search import Cell, Edge, Range, edge, next_load
from benchmark.analyse.stats import Source, mean_of
from benchmark.cell_size import SETS_A_START
from benchmark.measure.schedule import set_sizes
from benchmark.plan import Load, Search, from_dict
from tests.benchmark.analyse.noise import NOISES, Noise, log_normal, may_be_within, shown
from tests.benchmark.conftest import plan_content

WITHIN = Range(low=1, high=64, whole=True)
GRID = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MOST_CELLS: int = Search(low=1, high=64).cells
COVERAGE = (0.93, 0.97)
FALSE_ALARMS = 0.05
PRECISE = 0.95
"""The share of quiet searches that must end within 10 % or one request of the truth, but for two standard errors: with flat
curves and much noise few end quietly."""

Shape = Callable[[float], float]
"""The logarithm of the speed-up, by log(load / crossing)."""
Heights = Callable[[random.Random, float, float, int], Sequence[float]]
"""The logarithms of the speed-ups of a set of so many requests at a load, with the crossing at another."""


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
    """Prompts differ in their gain, at every load alike; requests differ beside that; and at a rate each set of arrivals does."""

    heights: Heights
    noise: Noise
    prompts: int = 16
    requests: int = 64
    """Of a listed cell: a search's cells are as many as the plan says."""
    gain_spread: float = 0.05
    request_spread: float = 0.1
    within: Range = WITHIN
    most_cells: int = MOST_CELLS
    starts: int = 1
    start_spread: float = 0.0
    """What all that one start of the servers answers shares."""

    def search(self, dice: random.Random, crossing: float) -> tuple[Edge, list[float]]:
        """One search to its end, and the loads of its cells in their order. Later starts measure the cells of the first again."""
        gains = [self.gain_spread * self.noise(dice) for _ in range(self.prompts)]
        of_start = [self.start_spread * dice.gauss(0, 1) for _ in range(self.starts)]
        sets: dict[float, list[tuple[int, list[float]]]] = {}
        loads: list[float] = []

        def measure(load: float, start: int) -> None:
            of_load = sets.setdefault(load, [])
            first = sum(len(values) for _, values in of_load)
            for size in self.sizes(load):
                values = []
                for index, height in enumerate(self.heights(dice, load, crossing, size), start=first):
                    noise = self.request_spread * (self.noise(dice) - self.noise(dice))
                    values.append(height + of_start[start] + gains[index % self.prompts] + noise)
                of_load.append((start + 1, values))
                first += size

        most = max(self.most_cells // self.starts, 2)
        while len(loads) < most and (load := next_load([self.cells(sets, loads)], self.within)):
            measure(load, 0)
            loads.append(load)
        for start, load in product(range(1, self.starts), loads):
            measure(load, start)
        return edge(self.cells(sets, loads), self.within), loads * self.starts

    def sizes(self, load: float) -> list[int]:
        """Requests of each set of a cell under one start."""
        whole = sizes(self.requests, load, self.within.whole)
        return whole if self.starts == 1 else whole[:SETS_A_START]

    def cells(self, sets: Mapping[float, list[tuple[int, list[float]]]], loads: list[float]) -> list[Cell]:
        """What is known of the curve."""
        found = []
        for load, of_load in sets.items():
            values, at = [], 0
            for number, (start, own) in enumerate(of_load):
                for value in own:
                    source = Source("c", str(at % self.prompts), "c", str(number), start)
                    values.append((source, value))
                    at += 1
            mean, moves = mean_of(values)
            found.append(Cell(load, mean, moves, loads.count(load), drawn=not self.within.whole))
        return found


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


def queued(plain: Server, drafting: Server) -> Heights:
    """The logarithms of the speed-ups in two queues with the same arrivals."""

    def heights(dice: random.Random, load: float, crossing: float, size: int) -> list[float]:
        arrivals_s = drawn_arrivals_s(dice, load, size)
        spans = zip(plain.log_spans(arrivals_s), drafting.log_spans(arrivals_s), strict=True)
        return [before - after for before, after in spans]

    return heights


def drawn_arrivals_s(dice: random.Random, rate: float, size: int) -> list[float]:
    """As the client sends them: by chance, and so many in the time that the rate has for them."""
    drawn = [dice.expovariate(1.0) for _ in range(size)]
    return [size / rate / sum(drawn) * at for at in accumulate(drawn)]


def crossing_of(heights: Heights, size: int, low: float = 4, high: float = 64, *, skip: int = 0) -> float:
    """The rate at which the mean over many draws is 0: the requests under way of a short set are not those of an endless one, which
    the first `skip` of each draw are left out for."""
    for _ in range(12):
        middle, dice = math.sqrt(low * high), random.Random(size)
        draws = -(-10_000 // size)
        mean = sum(sum(heights(dice, middle, 0.0, size)[skip:]) for _ in range(draws))
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


def figures(runs: int, seed: int) -> Iterator[tuple[str, bool]]:
    """A line for each kind of search, and whether it is within its limits."""
    yield f"\nsearch for a crossing, {runs} searches of each kind", True
    yield f"{'':22} coverage  precise  within 10 % or 1  cells  requests", True
    for (name, noise), (shape_name, shape) in product(NOISES.items(), SHAPES.items()):
        closed = Simulated(heights=of_shape(shape), noise=noise)
        yield _judged(f"{name}, {shape_name}", closed, runs, seed)
    for shape_name, shape in SHAPES.items():
        blocks = Simulated(heights=of_shape(shape, 0.02), noise=log_normal)
        yield _judged(f"blocks, {shape_name}", blocks, runs, seed)
    for starts in (2, 3):
        several = Simulated(
            heights=of_shape(roofline, 0.01), noise=log_normal, starts=starts, start_spread=0.02
        )
        yield _judged(f"{starts} starts, roofline", several, runs, seed)
    for (name, noise), (shape_name, shape) in product(NOISES.items(), SHAPES.items()):
        yield _judged(f"rate, {name}, {shape_name}", at_a_rate(of_shape(shape, 0.02), noise), runs, seed)
    for name, server in DRAFTING.items():
        heights = queued(PLAIN, server)
        open_ = at_a_rate(heights, log_normal)
        truth = crossing_of(heights, sizes(open_.requests, 20.0, False)[0])
        yield _judged(f"two queues, {name}", open_, runs, seed, truth)
    for name, noise in NOISES.items():
        for kind, same in (
            ("", Simulated(heights=of_shape(lambda x: 0.0, 0.02), noise=noise, gain_spread=0.0)),
            ("rate, ", replace(at_a_rate(of_shape(lambda x: 0.0, 0.02), noise), gain_spread=0.0)),
        ):
            dice = random.Random(f"{seed}/search/{kind}{name}/same")
            alarms = sum(same.search(dice, 8)[0].found == "crossing" for _ in range(runs)) / runs
            yield f"{kind}{name}: A/A: a crossing reported in {alarms:.1%}", alarms <= FALSE_ALARMS


def at_a_rate(heights: Heights, noise: Noise) -> Simulated:
    """Searches of a rate, with cells of two sets of 64 requests."""
    return Simulated(
        heights=heights,
        noise=noise,
        requests=8 * 64,
        gain_spread=0.02,
        request_spread=0.05,
        within=Range(low=4, high=64, whole=False),
    )


def _judged(
    name: str, simulated: Simulated, runs: int, seed: int, truth: float | None = None
) -> tuple[str, bool]:
    """With the crossing at `truth`, or anywhere from half above the lowest load on to half of the highest."""
    dice, within = random.Random(f"{seed}/search/{name}"), simulated.within
    covered, precise, right, cells, requests = [], 0, 0, [], 0
    for _ in range(runs):
        crossing = truth or math.exp(dice.uniform(math.log(max(3, 1.5 * within.low)), math.log(32)))
        found, loads = simulated.search(dice, crossing)
        cells.append(len(loads))
        requests += sum(sum(simulated.sizes(load)) for load in loads)
        if found.load is None or found.low is None or found.high is None:
            continue
        covered.append(found.low <= crossing <= found.high)
        precise += found.precise
        right += found.precise and abs(found.load - crossing) <= within.tolerance(crossing)
    # Few starts tell little of how starts differ: then an interval that holds is wide.
    most = COVERAGE[1] if simulated.starts == 1 else 1.0
    share, close = sum(covered) / max(len(covered), 1), right / max(precise, 1)
    grid = sum(sum(sizes(simulated.requests, load, within.whole)) for load in GRID)
    of_grid = requests / runs / grid
    chance = 2 * math.sqrt(PRECISE * (1 - PRECISE) / max(precise, 1))
    fine = (
        may_be_within(share, len(covered) or 1, (COVERAGE[0], most))
        and close >= PRECISE - chance
        and max(cells) <= MOST_CELLS
    )
    return (
        f"{name:26}{share:6.1%} {precise / runs:8.1%} {close:17.1%} {sum(cells) / runs:6.1f} {of_grid:9.1%}"
    ), fine


def main() -> int:
    """Print the figures; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="simulated searches of each kind")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return shown(figures(options.runs, options.seed))


if __name__ == "__main__":
    sys.exit(main())
