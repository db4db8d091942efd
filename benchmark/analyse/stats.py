"""The statistics that comparisons rest on, from their definitions: the pod needs no library for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

PERCENTILES = (50, 90, 95, 99)
_TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its confidence interval; no interval for fewer than two clusters."""

    mean: float
    low: float | None
    high: float | None
    n: int
    clusters: int


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


def clustered_mean(clusters: Mapping[str, Sequence[float]], confidence: float = 0.95) -> Estimate:
    """The mean over all values, with a Student t interval over the clusters' means.

    The clusters are the independent units. With equal sizes this is the textbook t interval on cluster
    means; with unequal ones each mean weighs as its size does (the linearised ratio estimator, Cochran,
    Sampling Techniques, 3rd ed., section 9A). `clusters` must not be empty, nor any cluster.
    """
    n = sum(len(values) for values in clusters.values())
    mean = math.fsum(value for values in clusters.values() for value in values) / n
    count = len(clusters)
    if count < 2:
        return Estimate(mean=mean, low=None, high=None, n=n, clusters=count)
    deviations = (math.fsum(value - mean for value in values) / n for values in clusters.values())
    variance = math.fsum(deviation**2 for deviation in deviations) * count / (count - 1)
    half = t_quantile((1 + confidence) / 2, count - 1) * math.sqrt(variance)
    return Estimate(mean=mean, low=mean - half, high=mean + half, n=n, clusters=count)


@lru_cache
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t for `probability` in (0, 1), by bisection of its distribution function."""
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while t_probability(high, degrees) < probability:
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_probability(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def t_probability(t: float, degrees: int) -> float:
    """P(T <= t) for Student's t with `degrees` degrees of freedom."""
    tail = regularised_beta(degrees / (degrees + t * t), degrees / 2, 0.5) / 2
    return 1 - tail if t >= 0 else tail


def regularised_beta(x: float, a: float, b: float) -> float:
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
