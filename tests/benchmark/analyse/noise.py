"""Simulated measurements whose truth is known, and how figures about many of them are printed."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from benchmark.analyse.stats import Source, wilson

Noise = Callable[[random.Random], float]
"""The logarithm of a factor, of standard deviation about 1."""
Figures = Iterator[tuple[str, bool]]
"""Lines, each with whether it is within its limits."""
COVERAGE = (0.93, 0.97)
FALSE_ALARMS = (0.0, 0.05)


def log_normal(dice: random.Random) -> float:
    return dice.gauss(0, 1)


def heavy(dice: random.Random) -> float:
    """Student's t with 3 degrees of freedom, scaled to variance 1."""
    chi_square = dice.gammavariate(1.5, 2)
    return dice.gauss(0, 1) / math.sqrt(chi_square / 3) / math.sqrt(3)


def stalls(dice: random.Random) -> float:
    """Log-normal; one request in twenty is held up, by a Pareto-distributed factor without a variance."""
    return dice.gauss(0, 0.8) + (math.log(dice.paretovariate(1.5)) if dice.random() < 0.05 else 0.0)


def skewed(dice: random.Random) -> float:
    """Exponential: a few prompts gain far more than the others."""
    return dice.expovariate(1) - 1


NOISES: dict[str, Noise] = {"log-normal": log_normal, "heavy tails": heavy, "stalls": stalls}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Pairs of requests of two arms. What both have in common, as a prompt that takes long, is not in their ratio."""

    noise: Noise
    prompts: int = 16
    requests: int = 64
    """Of each arm; where prompts do not divide them, some prompts are asked once more than others."""
    log_speed_up: float = 0.5
    speed_up_spread: float = 0.15
    """How much the speed-up differs from prompt to prompt."""
    request_spread: float = 0.1
    blocks: int = 0
    """That the requests of a start are cut into; 0: not known."""
    block_spread: float = 0.0
    """What the pairs of a block share."""
    starts: int = 1
    start_spread: float = 0.0
    """What all that one start of the servers answers shares."""

    def effects(self, dice: random.Random) -> tuple[list[float], list[float]]:
        """What the speed-up gains by each prompt, and by each start."""
        gains = [self.speed_up_spread * self.noise(dice) for _ in range(self.prompts)]
        return gains, [self.start_spread * dice.gauss(0, 1) for _ in range(self.starts)]

    def pairs(
        self, dice: random.Random, gains: Sequence[float], heights: Sequence[float], at: int, source: Source
    ) -> Iterator[tuple[Source, float]]:
        """The log speed-up of each pair of a block from the pair number `at` on; `source` has the block and the start."""
        for index, height in enumerate(heights, start=at):
            prompt, noise = index % self.prompts, self.noise(dice) - self.noise(dice)
            yield source._replace(prompt=str(prompt)), height + gains[prompt] + self.request_spread * noise

    def log_ratios(self, dice: random.Random) -> list[tuple[Source, float]]:
        """The log speed-up of each pair of requests that a run would record."""
        (gains, of_start), parts = self.effects(dice), self.starts * max(self.blocks, 1)
        begins = [-(-part * self.requests // parts) for part in range(parts + 1)]
        found: list[tuple[Source, float]] = []
        for part in range(parts):
            start, size = part * self.starts // parts, begins[part + 1] - begins[part]
            height = self.log_speed_up + of_start[start] + self.block_spread * dice.gauss(0, 1)
            source = Source("c", "", "c", str(part) if self.blocks else None, start + 1)
            found += self.pairs(dice, gains, [height] * size, begins[part], source)
        return found

    def without_difference(self) -> Measurement:
        """The same arm twice."""
        return replace(self, log_speed_up=0.0, speed_up_spread=0.0)


def log_times(
    dice: random.Random, noise: Noise, gains: Mapping[str, Mapping[str, float]], *, prompts: int
) -> dict[str, dict[str, dict[str, tuple[Source, float]]]]:
    """By arm, class and pair where its chance comes from and the log time per token, two requests a prompt; `gains`: log
    speed-ups by arm and class."""
    found: dict[str, dict[str, dict[str, tuple[Source, float]]]] = {arm: {} for arm in gains}
    for class_ in next(iter(gains.values())):
        common = [0.3 * noise(dice) for _ in range(prompts)]
        for arm, of_class in gains.items():
            own = [slow - of_class[class_] - 0.15 * noise(dice) for slow in common]
            found[arm][class_] = {
                f"{prompt}/{ask}": (Source(class_, str(prompt)), own[prompt] + 0.1 * noise(dice))
                for ask, prompt in product(range(2), range(prompts))
            }
    return found


def meets(count: int, runs: int, limits: tuple[float, float]) -> bool:
    """Whether the interval of a share that was counted over so many runs meets the limits."""
    low, high = wilson(count, runs)
    return low <= limits[1] and limits[0] <= high


def figures(about: str | None, parts: Mapping[str, Callable[[int, int], Figures]], runs: int) -> int:
    """A program that prints the lines of each part; 1 when one is beyond its limits."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n\n")[0])
    many = f"simulated runs of each kind; limits mean something from 1000 on (default {runs})"
    parser.add_argument("--runs", type=int, default=runs, help=many)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=tuple(parts), help="one part of it")
    options, failed = parser.parse_args(), False
    print(f"simulated, {options.runs} runs of each kind, seed {options.seed}")
    for part in (part for name, part in parts.items() if options.only in (None, name)):
        for line, fine in part(options.runs, options.seed):
            print(line if fine else f"{line}  <-- beyond the limit", flush=True)
            failed = failed or not fine
    return int(failed)
