"""The statistics of comparisons: means with intervals, shares, corrections for many tests.

Other prompts, other blocks of time and other starts of the servers would give another mean, and the interval accounts for that. Prompts
differ in their gain, requests of a block share the state of the machine, and two starts of the same servers differ as well. So pairs of
requests have two crossing kinds of clusters: the variance of a mean is the variance over prompts, plus that over blocks, minus that over
their intersections, which both contain (Cameron, Gelbach and Miller 2011, Journal of Business and Economic Statistics 29):

    V = V_prompts + max(0, V_blocks - V_within)

Its degrees of freedom are Satterthwaite's (1946, Biometrics Bulletin 2), but not fewer than the smaller number of the two parts. If blocks
add nothing, they are those of the prompts. With one start, the interval is only about that start. With several starts, the mean is over
starts, and starts replace blocks, which they contain. Two or three starts may be similar by chance, so the interval is the widest of
three: over prompts, over starts, and over both.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

PERCENTILES = (50, 90, 95, 99)
CONFIDENCE = 0.95
POWER = 0.8
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class Source(NamedTuple):
    """The source of random variation of a pair of requests."""

    class_: str
    prompt: str
    queue: str = ""
    """The class of its block: its own class, or all classes together."""
    block: str | None = None
    """The number of the block, the same for both arms; None if unknown."""
    start: int = 1


Sample = Sequence[tuple[Source, float]]
Moves = Mapping[Source, float]
"""How much the pairs of each source move a mean."""
Variance = tuple[float, float]
"""A variance and its degrees of freedom."""
UNITS: Mapping[str, Callable[[Source], tuple[Hashable, Hashable]]] = {
    "prompts": lambda source: (source.class_, source.prompt),
    "blocks": lambda source: (source.queue, source.block),
    "starts": lambda source: (None, source.start),
    "prompts in blocks": lambda source: (source.class_, (source.prompt, source.queue, source.block)),
    "prompts in starts": lambda source: (source.class_, (source.prompt, source.start)),
}
"""The stratum and the unit that a source belongs to, by kind of unit."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with Student's t interval; without an interval if the standard error is unknown."""

    mean: float
    error: float | None
    """Standard error of the mean; None for fewer than two clusters."""
    degrees: float = 0.0
    """Degrees of freedom of `error`."""
    n: int
    clusters: int
    together: int = 1
    """The number of intervals that hold together, by Bonferroni's inequality, so that the choice of the best is not biased upward."""

    @property
    def low(self) -> float | None:
        return None if self.error is None else self.mean - self._half(self.error)

    @property
    def high(self) -> float | None:
        return None if self.error is None else self.mean + self._half(self.error)

    def p_value(self, low: float = 0.0, high: float = 0.0) -> float | None:
        """The two-sided p-value of a mean between `low` and `high`: below 5 % exactly if the whole interval is outside of that range."""
        if self.error is None:
            return None
        away = max(self.mean - high, low - self.mean, 0.0)
        if self.error == 0:
            return 0.0 if away else 1.0
        from scipy.special import stdtr  # imported late, because a sending client does not need it

        return min(1.0, self.together * 2 * float(stdtr(self.degrees, -away / self.error)))

    @property
    def detectable(self) -> float | None:
        """The distance of a mean from a value that a test at 5 % would find in 80 % of repetitions, with this standard error.

        (t_0.975 + t_0.8) standard errors, the usual approximation to the noncentral t.
        """
        if self.error is None:
            return None
        return self._half(self.error) + t_quantile(POWER, self.degrees) * self.error

    def _half(self, error: float) -> float:
        return t_quantile(1 - (1 - CONFIDENCE) / 2 / self.together, self.degrees) * error


def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t for `probability` in (0, 1)."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def wilson(count: float, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share, `count` of `n`, never of width zero (Journal of the American Statistical Association 22, 1927)."""
    if not n:
        return 0.0, 1.0
    middle = (count + Z**2 / 2) / (n + Z**2)
    half = Z * math.sqrt(count * (n - count) / n + Z**2 / 4) / (n + Z**2)
    return max(0.0, middle - half), min(1.0, middle + half)


def fisher_more(count: int, n: int, other: int, n_other: int) -> float:
    """Fisher's exact test, one-sided: the probability of at least `count` of `n`, if the share is the same as in `other` of `n_other`."""
    total = count + other
    ways = sum(math.comb(n, k) * math.comb(n_other, total - k) for k in range(count, min(n, total) + 1))
    return ways / math.comb(n + n_other, total)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values adjusted for multiple tests (Holm 1979, Scandinavian Journal of Statistics 6).

    None remains None and does not count as a test.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        adjusted[index] = largest = max(largest, min(1.0, p * (len(known) - rank)))
    return adjusted


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of sorted values, linear between neighbours (Hyndman and Fan's type 7)."""
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(values: Sequence[float]) -> dict[str, float] | None:
    """n, mean and percentiles; None without a value."""
    if not values:
        return None
    ordered = sorted(values)
    tails = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {"n": len(ordered), "mean": mean(ordered), **tails}


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; `values` must not be empty."""
    return math.fsum(values) / len(values)


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean; `values` must be above 0, and not empty."""
    return math.exp(mean([math.log(value) for value in values]))


def clustered_mean(clusters: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over all values, with an interval over the clusters' means: the clusters are the independent units.

    `clusters` must not be empty, nor any cluster.
    """
    means = [(mean(values), len(values)) for values in clusters.values()]
    return weighted_mean(means, n=sum(map(len, clusters.values())))


def weighted_mean(units: Sequence[tuple[float, float]], *, n: int) -> Estimate:
    """The mean of independent (value, weight), with Student's t interval; `n` is the number of observations in the units.

    With equal weights this is the textbook interval; with unequal ones each value counts as its weight does
    (the linearised ratio estimator, Cochran, Sampling Techniques, 3rd ed., section 9A). `units` must not be empty.
    """
    weight, count = math.fsum(w for _, w in units), len(units)
    middle = math.fsum(value * w for value, w in units) / weight
    if count < 2:
        return Estimate(mean=middle, error=None, n=n, clusters=count)
    variance = math.fsum((w * (value - middle) / weight) ** 2 for value, w in units) * count / (count - 1)
    return Estimate(mean=middle, error=math.sqrt(variance), degrees=count - 1, n=n, clusters=count)


def summed(mean: float, parts: Sequence[Estimate]) -> Estimate:
    """`mean` with the error of a sum of independent `parts`. If the error of a part is unknown, that of the sum is unknown too."""
    n, clusters = sum(part.n for part in parts), sum(part.clusters for part in parts)
    if any(part.error is None for part in parts):
        return Estimate(mean=mean, error=None, n=n, clusters=clusters)
    variance, degrees = added([((part.error or 0.0) ** 2, part.degrees) for part in parts])
    return Estimate(mean=mean, error=math.sqrt(variance), degrees=degrees, n=n, clusters=clusters)


def mean_of(sample: Sample) -> tuple[float, dict[Source, float]]:
    """The mean over all values (with several starts, the mean of their means), and its moves. `sample` must not be empty."""
    counts = Counter(source.start for source, _ in sample)
    weights = [1 / len(counts) / counts[source.start] for source, _ in sample]
    middle = math.fsum(w * value for w, (_, value) in zip(weights, sample, strict=True))
    moves: defaultdict[Source, float] = defaultdict(float)
    for weight, (source, value) in zip(weights, sample, strict=True):
        moves[source] += weight * (value - middle)
    return middle, dict(moves)


def of_sample(sample: Sample) -> Estimate:
    """The mean of a sample that is not empty, with its interval."""
    middle, moves = mean_of(sample)
    return estimate(middle, moves, n=len(sample))


def estimate(mean: float, moves: Moves, *, n: int) -> Estimate:
    """A mean of `n` values with the error from its moves; without an error if a class has one prompt."""
    prompts = {(source.class_, source.prompt) for source in moves}
    if min(Counter(class_ for class_, _ in prompts).values(), default=0) < 2:
        return Estimate(mean=mean, error=None, n=n, clusters=len(prompts))
    variance, degrees = spread(moves)
    return Estimate(mean=mean, error=math.sqrt(variance), degrees=degrees, n=n, clusters=len(prompts))


def spread(moves: Moves) -> Variance:
    """The variance of a mean with these moves, and its degrees of freedom."""
    prompts = between(moves, "prompts")
    if several_starts(moves):
        starts = between(moves, "starts")
        parts = (prompts, starts, _both(prompts, starts, between(moves, "prompts in starts")))
        return max(parts, key=lambda of: t_quantile((1 + CONFIDENCE) / 2, round(of[1], 1)) * math.sqrt(of[0]))
    if blocks_known(moves):
        blocks, within = between(moves, "blocks"), between(moves, "prompts in blocks")
        return prompts if blocks[0] <= within[0] else _both(prompts, blocks, within)
    return prompts


def variance_beyond_prompts(moves: Moves) -> Variance | None:
    """The variance that blocks (with several starts, starts) add to that over prompts; None if they add nothing."""
    units = "starts" if several_starts(moves) else "blocks"
    if units == "blocks" and not blocks_known(moves):
        return None
    whole = between(moves, units)
    extra = whole[0] - between(moves, f"prompts in {units}")[0]
    return (extra, whole[1]) if extra > 0 else None


def several_starts(moves: Iterable[Source]) -> bool:
    """Whether a class had several starts. Different classes may have different starts, if a node was replaced between them."""
    starts = {(source.class_, source.start) for source in moves}
    return len(starts) > len({class_ for class_, _ in starts})


def blocks_known(moves: Iterable[Source]) -> bool:
    """Whether the block of each source is known, and a class has at least two blocks."""
    blocks = {UNITS["blocks"](source) for source in moves}
    several = Counter(queue for queue, _ in blocks).most_common(1)
    return bool(several) and several[0][1] > 1 and all(block is not None for _, block in blocks)


def between(moves: Moves, units: str) -> Variance:
    """The variance between units of this kind, summed over strata. A stratum with one unit does not count."""
    sums: defaultdict[Hashable, defaultdict[Hashable, float]] = defaultdict(lambda: defaultdict(float))
    for source, move in moves.items():
        stratum, unit = UNITS[units](source)
        sums[stratum][unit] += move
    several = [list(own.values()) for own in sums.values() if len(own) > 1]
    return added(
        [(len(own) / (len(own) - 1) * math.fsum(x * x for x in own), len(own) - 1.0) for own in several]
    )


def added(parts: Sequence[Variance]) -> Variance:
    """The sum of independent variances (Satterthwaite)."""
    variance = math.fsum(part for part, _ in parts)
    if not variance or math.isinf(variance):
        return variance, max(math.fsum(degrees for _, degrees in parts), 1.0)
    return variance, variance**2 / math.fsum(part**2 / degrees for part, degrees in parts)


def _both(prompts: Variance, others: Variance, within: Variance) -> Variance:
    """The variance with two crossing kinds of clusters."""
    variance = max(prompts[0] + others[0] - within[0], 0.0)
    doubt = math.fsum(part**2 / degrees for part, degrees in (prompts, others, within))
    minimum = min(prompts[1], others[1])
    return variance, max(variance**2 / doubt, minimum) if doubt else minimum
