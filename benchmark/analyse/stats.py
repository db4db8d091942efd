"""The statistics that comparisons rest on: means with intervals, shares, corrections for many tests.

An interval holds that other prompts, other blocks of time and other starts of the servers would give another mean. Prompts differ in how
much they gain, requests of a block share what the machine does meanwhile, and two starts of the same servers differ as well. So pairs of
requests are clustered in two ways that cross, and the variance of a mean is that over prompts, plus that over blocks, less that over
what lies within both, which both contain (Cameron, Gelbach and Miller 2011, Journal of Business and Economic Statistics 29):

    V = V_prompts + max(0, V_blocks - V_within)

Its degrees of freedom are Satterthwaite's (1946, Biometrics Bulletin 2), never fewer than those of the part that has fewest, and those of
the prompts where blocks add nothing. With one start, the interval is about that start. With several, the mean is the one over starts, and
starts take the place of blocks, which they contain. Two or three of them may be alike by chance, so the interval is the widest of three:
over prompts, over starts, and over both.
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
    """Where the chance in one pair of requests comes from."""

    class_: str
    prompt: str
    queue: str = ""
    """What its block was made of: its class, or all classes together."""
    block: str | None = None
    """The two arms' blocks of the same number; None where that is not known."""
    start: int = 1


Sample = Sequence[tuple[Source, float]]
Moves = Mapping[Source, float]
"""How much the pairs of one source move a mean."""
Variance = tuple[float, float]
"""With its degrees of freedom."""
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
    """A mean with Student's t interval; without one where its standard error is not known."""

    mean: float
    error: float | None
    """Standard error of the mean; None for fewer than two clusters."""
    degrees: float = 0.0
    """Degrees of freedom of `error`."""
    n: int
    clusters: int
    together: int = 1
    """Intervals that hold at once, by Bonferroni's inequality: the best of so many is not biased upward by the choice."""

    @property
    def low(self) -> float | None:
        return None if self.error is None else self.mean - self._half(self.error)

    @property
    def high(self) -> float | None:
        return None if self.error is None else self.mean + self._half(self.error)

    def p_value(self, low: float = 0.0, high: float = 0.0) -> float | None:
        """Two-sided, of a mean from `low` to `high`: below 5 % just where the interval is wholly beyond its nearer end."""
        if self.error is None:
            return None
        away = max(self.mean - high, low - self.mean, 0.0)
        if self.error == 0:
            return 0.0 if away else 1.0
        from scipy.special import stdtr  # type: ignore[import-untyped] # no types; a client that sends does without

        return min(1.0, self.together * 2 * float(stdtr(self.degrees, -away / self.error)))

    @property
    def detectable(self) -> float | None:
        """How far from a value a mean must be for a test at 5 % to find that in 80 % of repetitions, given this spread.

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


def clopper_pearson(count: float, n: float) -> tuple[float, float]:
    """The two one-sided 95 % bounds of a share, `count` of `n`, which need not be whole (Clopper and Pearson 1934, Biometrika 26)."""
    from scipy.special import betaincinv

    low = float(betaincinv(count, n - count + 1, 1 - CONFIDENCE)) if count > 0 else 0.0
    return low, float(betaincinv(count + 1, n - count, CONFIDENCE)) if count < n else 1.0


def wilson(count: int, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share, never of width zero (Journal of the American Statistical Association 22, 1927)."""
    if not n:
        return 0.0, 1.0
    middle = (count + Z**2 / 2) / (n + Z**2)
    half = Z * math.sqrt(count * (n - count) / n + Z**2 / 4) / (n + Z**2)
    return max(0.0, middle - half), min(1.0, middle + half)


def fisher_more(count: int, n: int, other: int, n_other: int) -> float:
    """Fisher's exact test, one-sided: how likely at least `count` of `n` are, were its share that of `other` of `n_other`."""
    total = count + other
    ways = sum(math.comb(n, k) * math.comb(n_other, total - k) for k in range(count, min(n, total) + 1))
    return ways / math.comb(n + n_other, total)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Each p-value adjusted for being one of several (Holm 1979, Scandinavian Journal of Statistics 6).

    None stays None and does not count as one of them.
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
    """n, mean and percentiles; None where there is no value."""
    if not values:
        return None
    ordered = sorted(values)
    tails = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {"n": len(ordered), "mean": mean(ordered), **tails}


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; `values` must not be empty."""
    return math.fsum(values) / len(values)


def geometric_mean(values: Sequence[float]) -> float:
    """`values` must be above 0, and not empty."""
    return math.exp(mean([math.log(value) for value in values]))


def clustered_mean(clusters: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over all values, with an interval over the clusters' means: the clusters are the independent units.

    `clusters` must not be empty, nor any cluster.
    """
    means = [(mean(values), len(values)) for values in clusters.values()]
    return weighted_mean(means, n=sum(map(len, clusters.values())))


def weighted_mean(units: Sequence[tuple[float, float]], *, n: int) -> Estimate:
    """The mean of independent (value, weight), with Student's t interval; `n` is what the units were made of.

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
    """`mean` with the error of a sum of independent `parts`. If the error of a part is not known, neither is that of the sum."""
    n, clusters = sum(part.n for part in parts), sum(part.clusters for part in parts)
    if any(part.error is None for part in parts):
        return Estimate(mean=mean, error=None, n=n, clusters=clusters)
    variance, degrees = added([((part.error or 0.0) ** 2, part.degrees) for part in parts])
    return Estimate(mean=mean, error=math.sqrt(variance), degrees=degrees, n=n, clusters=clusters)


def mean_of(sample: Sample) -> tuple[float, dict[Source, float]]:
    """The mean over all values, of several starts the mean of their means; and what moves it. `sample` must not be empty."""
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
    """A mean of `n` values with the error that follows from its moves; no error where a class has one prompt."""
    prompts = {(source.class_, source.prompt) for source in moves}
    if min(Counter(class_ for class_, _ in prompts).values(), default=0) < 2:
        return Estimate(mean=mean, error=None, n=n, clusters=len(prompts))
    variance, degrees = spread(moves)
    return Estimate(mean=mean, error=math.sqrt(variance), degrees=degrees, n=n, clusters=len(prompts))


def spread(moves: Moves) -> Variance:
    """The variance of a mean with these moves, and its degrees of freedom."""
    prompts = between(moves, "prompts")
    if several_starts(moves):
        return widest(prompts, between(moves, "starts"), between(moves, "prompts in starts"))
    if blocks_known(moves):
        return joined(prompts, between(moves, "blocks"), between(moves, "prompts in blocks"))
    return prompts


def beside_prompts(moves: Moves) -> Variance | None:
    """What blocks, or of several starts the starts, add to the variance over prompts; None where they add nothing."""
    units = "starts" if several_starts(moves) else "blocks"
    if units == "blocks" and not blocks_known(moves):
        return None
    whole = between(moves, units)
    extra = whole[0] - between(moves, f"prompts in {units}")[0]
    return (extra, whole[1]) if extra > 0 else None


def several_starts(moves: Iterable[Source]) -> bool:
    """Whether some class had several; each class may have another one, where a node was replaced between them."""
    starts = {(source.class_, source.start) for source in moves}
    return len(starts) > len({class_ for class_, _ in starts})


def blocks_known(moves: Iterable[Source]) -> bool:
    """Whether a source's block is known of all, and some had two."""
    blocks = {UNITS["blocks"](source) for source in moves}
    several = Counter(queue for queue, _ in blocks).most_common(1)
    return bool(several) and several[0][1] > 1 and all(block is not None for _, block in blocks)


def between(moves: Moves, units: str) -> Variance:
    """The variance between units of this kind, summed over strata; one unit of a stratum says nothing."""
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


def joined(prompts: Variance, blocks: Variance, within: Variance) -> Variance:
    """The variance of two ways of clustering that cross: what blocks have beside what is within them is added to that of the prompts."""
    return prompts if blocks[0] <= within[0] else _both(prompts, blocks, within)


def widest(
    prompts: Variance, starts: Variance, within: Variance, probability: float = (1 + CONFIDENCE) / 2
) -> Variance:
    """The variance of the widest interval: over prompts, over starts, or over both."""
    parts = (prompts, starts, _both(prompts, starts, within))
    return max(parts, key=lambda part: t_quantile(probability, round(part[1], 1)) * math.sqrt(part[0]))


def _both(prompts: Variance, others: Variance, within: Variance) -> Variance:
    variance = max(prompts[0] + others[0] - within[0], 0.0)
    doubt = math.fsum(part**2 / degrees for part, degrees in (prompts, others, within))
    least = min(prompts[1], others[1])
    return variance, max(variance**2 / doubt, least) if doubt else least
