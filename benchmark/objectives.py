"""What an arm has to keep: a time within which so many percent of its requests stay, and how many prompts can show that.

Requests of one prompt resemble each other, so what counts is how many different prompts are asked, however often each of them is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmark.cell_size import set_size, sets_in_all

METRICS = ("ttft_s", "tpot_s", "e2e_s")
"""What an objective, or an SLO, may bound."""
PERCENTILE = r"^p[5-9][0-9](\.[0-9])?$"
DEFAULT = "p95"
"""The percentile of a limit that is a number alone."""
CONFIDENCE = 0.95
"""One-sided: of runs whose true share is just that of the objective, at most 5 % say that it is met."""
LEAST_S, MOST_S = 1e-6, 1_000_000


def by_percentile(limit: Any) -> Any:
    """A limit as a plan has it: by percentile."""
    return {DEFAULT: limit} if isinstance(limit, int | float) and not isinstance(limit, bool) else limit


class Limit(NamedTuple):
    """One time of an objective."""

    metric: str
    percentile: str
    seconds: float

    @property
    def share(self) -> float:
        """The share of the requests that must be within it."""
        return float(self.percentile[1:]) / 100

    @property
    def prompts_needed(self) -> int:
        """Different prompts that show it where no request misses it: 59 for p95, since 0.95 ** 59 < 0.05."""
        return math.ceil(math.log(1 - CONFIDENCE) / math.log(self.share))

    def __str__(self) -> str:
        return f"{self.metric.removesuffix('_s').upper()} {self.percentile} {self.seconds:g} s"


def limits(objective: Mapping[str, Mapping[str, float]] | None) -> Iterator[Limit]:
    """The single times of an objective."""
    for metric, known in (objective or {}).items():
        yield from (Limit(metric, percentile, seconds) for percentile, seconds in known.items())


def in_words(objective: Mapping[str, Mapping[str, float]] | None) -> str:
    """`TPOT p95 0.04 s, TTFT p99 1 s`; empty without one."""
    return ", ".join(map(str, limits(objective)))


def prompts_needed(objective: Mapping[str, Mapping[str, float]] | None) -> int:
    """Different prompts that its strictest percentile needs; 0 without one."""
    return max((limit.prompts_needed for limit in limits(objective)), default=0)


def counted(prompts: Sequence[float]) -> float:
    """For how many prompts those of several classes count, where each class counts alike: all of them, if they are equally many."""
    return len(prompts) ** 2 / math.fsum(1 / number for number in prompts) if all(prompts) else 0.0


def planned(
    prompts: Sequence[int], *, requests: int, together: bool, starts: int, at_once: int | None, passes: int
) -> float:
    """For how many the prompts count that an arm is asked in the cells of one load: `prompts` is how many each class has, `requests`
    are a cell's of a class."""
    size = set_size(
        requests=requests, classes=len(prompts) if together else 1, starts=starts, at_once=at_once
    )
    each = sets_in_all(starts) * size * passes // (len(prompts) if together else 1)
    return counted([min(number, each) for number in prompts])


def need(objective: Mapping[str, Mapping[str, float]] | None, known: float) -> str:
    """What has to be known before a run: how many prompts the objective needs, and how many the smallest load asks."""
    needed = prompts_needed(objective)
    return f"{in_words(objective)} needs {needed} different prompts a load, all within it; the smallest load has {known:.0f}"
