"""Student's t distribution from its definition: the pod needs no library for it."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300


@lru_cache
def t_quantile(probability: float, degrees: float) -> float:
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


def t_probability(t: float, degrees: float) -> float:
    """P(T <= t) for Student's t with `degrees` degrees of freedom."""
    tail = two_sided_tail(t, degrees) / 2
    return 1 - tail if t >= 0 else tail


def two_sided_tail(t: float, degrees: float) -> float:
    """P(|T| >= |t|), exact where it is small."""
    return regularised_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


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
