"""Objectives: a limit that a given percentage of an arm's requests must keep, and how many prompts are needed to show that.

Requests of one prompt are similar. So the number of different prompts counts, not how often each is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmark.cell_size import SETS, set_size

METRICS = ("ttft_s", "tpot_s", "e2e_s")
"""What an objective, or an SLO, may bound."""
PERCENTILE = r"^p[5-9][0-9](\.[0-9])?$"
DEFAULT = "p95"
"""The percentile of a limit that is a number alone."""
CONFIDENCE = 0.95
"""One-sided: if the true share is exactly that of the objective, at most 5 % of runs say that it is met."""
MIN_S, MAX_S = 1e-6, 1_000_000


def by_percentile(limit: Any) -> Any:
    """The limit in the form of a plan: a mapping from percentile to seconds."""
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
        """The number of different prompts that is enough if all requests are within the limit: 59 for p95, since 0.95 ** 59 < 0.05."""
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
    """The number of different prompts that the strictest percentile needs; 0 without an objective."""
    return max((limit.prompts_needed for limit in limits(objective)), default=0)


def counted(prompts: Sequence[float]) -> float:
    """The effective number of prompts of several classes with equal weights: the sum, if all classes have the same number."""
    return len(prompts) ** 2 / math.fsum(1 / number for number in prompts) if all(prompts) else 0.0


def planned(
    prompts: Sequence[int],
    *,
    requests: int,
    together: bool,
    concurrency: int | None,
) -> float:
    """The effective number of prompts that an arm is asked at one load. `prompts` is the number of prompts of each class, `requests`
    the number of requests per cell and class."""
    classes = len(prompts) if together else 1
    each = SETS * set_size(requests=requests, classes=classes, concurrency=concurrency) // classes
    return counted([min(number, each) for number in prompts])


def need(objective: Mapping[str, Mapping[str, float]] | None, known: float) -> str:
    """How many prompts the objective needs, and how many the smallest load asks, in words; printed before a run."""
    needed = prompts_needed(objective)
    return f"{in_words(objective)} needs {needed} different prompts per load, all within the limit; the smallest load has {known:.0f}"
