"""The statistics that comparisons rest on, from their definitions: the pod needs no library for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist

PERCENTILES = (50, 90, 95, 99)
CONFIDENCE = 0.95
POWER = 0.8
_TINY = 1e-300


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
        """Two-sided, of a mean that lies from `low` to `high`: below 5 % just where the interval is wholly beyond its nearer end."""
        if self.error is None:
            return None
        away = max(self.mean - high, low - self.mean, 0.0)
        if self.error == 0:
            return 0.0 if away else 1.0
        return min(1.0, self.together * two_sided_tail(away / self.error, self.degrees))

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


def wilson(count: int, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share, never of width zero (Journal of the American Statistical Association 22, 1927)."""
    if not n:
        return 0.0, 1.0
    z2 = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2
    middle = (count + z2 / 2) / (n + z2)
    half = math.sqrt(z2 * (count * (n - count) / n + z2 / 4)) / (n + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def clopper_pearson(count: float, n: float) -> tuple[float, float]:
    """The two one-sided 95 % bounds of a share, `count` of `n`, which need not be whole (Clopper and Pearson 1934, Biometrika 26)."""
    low = _beta_quantile(1 - CONFIDENCE, count, n - count + 1) if count > 0 else 0.0
    return low, _beta_quantile(CONFIDENCE, count + 1, n - count) if count < n else 1.0


def fisher_more(count: int, n: int, other: int, n_other: int) -> float:
    """Fisher's exact test, one-sided: how likely at least `count` of `n` are, were its share that of `other` of `n_other`."""
    total = count + other
    ways = sum(math.comb(n, k) * math.comb(n_other, total - k) for k in range(count, min(n, total) + 1))
    return ways / math.comb(n + n_other, total)


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
    return {"n": len(ordered), "mean": math.fsum(ordered) / len(ordered), **tails}


def clustered_mean(clusters: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over all values, with an interval over the clusters' means: the clusters are the independent units.

    `clusters` must not be empty, nor any cluster.
    """
    means = [(math.fsum(values) / len(values), len(values)) for values in clusters.values()]
    return weighted_mean(means, n=sum(len(values) for values in clusters.values()))


def weighted_mean(units: Sequence[tuple[float, float]], *, n: int) -> Estimate:
    """The mean of independent (value, weight), with Student's t interval; `n` is what the units were made of.

    With equal weights this is the textbook interval; with unequal ones each value counts as its weight does
    (the linearised ratio estimator, Cochran, Sampling Techniques, 3rd ed., section 9A). `units` must not be empty.
    """
    weight = math.fsum(w for _, w in units)
    mean = math.fsum(value * w for value, w in units) / weight
    count = len(units)
    if count < 2:
        return Estimate(mean=mean, error=None, n=n, clusters=count)
    variance = math.fsum((w * (value - mean) / weight) ** 2 for value, w in units) * count / (count - 1)
    return Estimate(mean=mean, error=math.sqrt(variance), degrees=count - 1, n=n, clusters=count)


def summed(mean: float, parts: Sequence[Estimate]) -> Estimate:
    """`mean` with the error of a sum of independent `parts`; degrees of freedom by Welch and Satterthwaite
    (Satterthwaite 1946, Biometrics Bulletin 2). If the error of a part is not known, neither is that of the sum."""
    n, clusters = sum(part.n for part in parts), sum(part.clusters for part in parts)
    if any(part.error is None for part in parts):
        return Estimate(mean=mean, error=None, n=n, clusters=clusters)
    variances = [((part.error or 0.0) ** 2, part.degrees) for part in parts]
    variance = math.fsum(v for v, _ in variances)
    degrees = variance**2 / math.fsum(v**2 / d for v, d in variances) if variance else 1.0
    return Estimate(mean=mean, error=math.sqrt(variance), degrees=degrees, n=n, clusters=clusters)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Each p-value adjusted for being one of several (Holm 1979, Scandinavian Journal of Statistics 6).

    None stays None and does not count as one of them.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A slope over time with its 95 % interval, and the two-sided p-value of there being none."""

    slope: float
    low: float
    high: float
    p_value: float


def seasonal_kendall(seasons: Iterable[Sequence[tuple[float, float]]]) -> Trend | None:
    """The seasonal Kendall test of (time, value) in order of time, and the slope that belongs to it; None where no value
    differs from another one of its season. With one season: the Mann-Kendall test and the Theil-Sen slope.

    Hirsch, Slack and Smith 1982, Water Resources Research 18; ties and the slope's interval: Kendall 1975, Sen 1968.
    """
    score, variance, slopes = 0, 0.0, list[float]()
    for season in seasons:
        for (start, before), (end, after) in combinations(season, 2):
            score += (after > before) - (after < before)
            if end > start:
                slopes.append((after - before) / (end - start))
        alike = [len(season), *Counter(value for _, value in season).values()]
        all_, *ties = (n * (n - 1) * (2 * n + 5) / 18 for n in alike)
        variance += all_ - math.fsum(ties)
    if variance <= 0 or not slopes:
        return None
    slopes.sort()
    count, reach = len(slopes), NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(variance)
    return Trend(
        slope=percentile(slopes, 50),
        low=slopes[max(0, round((count - reach) / 2) - 1)],
        high=slopes[min(count - 1, round((count + reach) / 2))],
        p_value=math.erfc(max(abs(score) - 1, 0) / math.sqrt(2 * variance)),
    )


@lru_cache
def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t for `probability` in (0, 1), by bisection of its distribution function."""
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while 1 - two_sided_tail(high, degrees) / 2 < probability:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        beyond = 1 - two_sided_tail(middle, degrees) / 2 >= probability
        low, high = (low, middle) if beyond else (middle, high)
    return (low + high) / 2


def two_sided_tail(t: float, degrees: float) -> float:
    """P(|T| >= |t|) for Student's t, exact where it is small."""
    return _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """By bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _incomplete_beta(middle, a, b) < probability else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b) (DLMF 8.17, https://dlmf.nist.gov/8.17)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x > (a + 1) / (a + b + 2):
        return 1 - math.exp(log_front) * _beta_fraction(1 - x, b, a) / b
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of DLMF 8.17.22, evaluated by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for index in range(1, 1000):
        m = index // 2
        if index % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return 1 / value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
