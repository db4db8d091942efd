"""Paired measurements with noise whose truth is known: prompts differ, requests of a prompt resemble each other."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from benchmark.analyse.stats import Source, wilson

Noise = Callable[[random.Random], float]
"""The logarithm of a factor, of standard deviation about 1."""


def log_normal(dice: random.Random) -> float:
    return dice.gauss(0, 1)


def heavy(dice: random.Random) -> float:
    """Student's t with 3 degrees of freedom, scaled to variance 1."""
    chi_square = dice.gammavariate(1.5, 2)
    return dice.gauss(0, 1) / math.sqrt(chi_square / 3) / math.sqrt(3)


def stalls(dice: random.Random) -> float:
    """Log-normal; one request in twenty is held up, by a Pareto-distributed factor without a variance."""
    return dice.gauss(0, 0.8) + (math.log(dice.paretovariate(1.5)) if dice.random() < 0.05 else 0.0)


NOISES: dict[str, Noise] = {"log-normal": log_normal, "heavy tails": heavy, "stalls": stalls}


def skewed(dice: random.Random) -> float:
    """Exponential: a few prompts gain far more than the others."""
    return dice.expovariate(1) - 1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One cell of both arms."""

    noise: Noise
    prompts: int
    requests: int
    """Of each arm; where prompts do not divide them, some prompts are asked once more than others."""
    log_speed_up: float = 0.5
    prompt_spread: float = 0.3
    """How prompts differ, in both arms alike."""
    speed_up_spread: float = 0.15
    """How much the speed-up itself differs from prompt to prompt."""
    request_spread: float = 0.1
    blocks: int = 0
    """That the requests of a start are cut into; 0: not known."""
    block_spread: float = 0.0
    """What the pairs of a block share."""
    starts: int = 1
    start_spread: float = 0.0
    """What all that one start of the servers answers shares."""

    def log_ratios(self, dice: random.Random) -> list[tuple[Source, float]]:
        """The log speed-up of each pair of requests that a run would record."""
        common = [self.prompt_spread * self.noise(dice) for _ in range(self.prompts)]
        own = [self.log_speed_up + self.speed_up_spread * self.noise(dice) for _ in range(self.prompts)]
        parts = self.starts * max(self.blocks, 1)
        of_start = [self.start_spread * dice.gauss(0, 1) for _ in range(self.starts)]
        of_block = [self.block_spread * dice.gauss(0, 1) for _ in range(parts)]
        found: list[tuple[Source, float]] = []
        for index in range(self.requests):
            prompt, part = index % self.prompts, index * parts // self.requests
            start = part * self.starts // parts
            slow, fast = (common[prompt] + self.request_spread * self.noise(dice) for _ in "ab")
            source = Source("c", str(prompt), "c", str(part) if self.blocks else None, start + 1)
            found.append((source, slow - (fast - own[prompt]) + of_start[start] + of_block[part]))
        return found

    def without_difference(self) -> Measurement:
        """The same arm twice."""
        return replace(self, log_speed_up=0.0, speed_up_spread=0.0)


def log_times(
    dice: random.Random,
    noise: Noise,
    gains: Mapping[str, Mapping[str, float]],
    *,
    prompts: int,
    spread: float = 0.15,
    asked: int = 2,
    blocks: int = 0,
    block_spread: float = 0.0,
) -> dict[str, dict[str, dict[str, tuple[Source, float]]]]:
    """By arm, class and pair where its chance comes from and the log time per token, so many requests a prompt; `gains`: log
    speed-ups by arm and class. Prompts gain more or less by `spread`, and what all classes have in one block by `block_spread`."""
    found: dict[str, dict[str, dict[str, tuple[Source, float]]]] = {arm: {} for arm in gains}
    of_block = {arm: [block_spread * dice.gauss(0, 1) for _ in range(blocks or 1)] for arm in gains}
    for class_ in next(iter(gains.values())):
        common = [0.3 * noise(dice) for _ in range(prompts)]
        for arm, of_class in gains.items():
            own = [of_class[class_] + spread * noise(dice) for _ in range(prompts)]
            pairs: dict[str, tuple[Source, float]] = {}
            for number, (ask, prompt) in enumerate(product(range(asked), range(prompts))):
                part = number * (blocks or 1) // (asked * prompts)
                source = Source(class_, str(prompt), "", str(part) if blocks else None)
                log_s = common[prompt] - own[prompt] + 0.1 * noise(dice) + of_block[arm][part]
                pairs[f"{prompt}/{ask}"] = source, log_s
            found[arm][class_] = pairs
    return found


def may_be_within(share: float, runs: int, limits: tuple[float, float]) -> bool:
    """Whether the interval of a share that was counted over so many runs meets the limits."""
    low, high = wilson(round(share * runs), runs)
    return low <= limits[1] and limits[0] <= high


def shown(figures: Iterable[tuple[str, bool]]) -> int:
    """Print lines, each with whether it is within its limits; 1 when one is not."""
    failed = False
    for line, fine in figures:
        print(line if fine else f"{line}  <-- beyond the limit", flush=True)
        failed = failed or not fine
    return int(failed)
