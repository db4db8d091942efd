"""Student's t: the probability of its upper tail, and its quantiles.

scipy.special has both, and its import takes 0.9 s of processor time, a fifth of a whole report.
The formulas are those of the NIST Digital Library of Mathematical Functions (https://dlmf.nist.gov/8.17), with b = 1/2.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

_TINY, _PRECISION, _MAX_TERMS = 1e-300, 1e-16, 100_000
_MAX_T, _MAX_STEPS = 1e100, 1000


def upper_tail(t: float, degrees: float) -> float:
    """P(T > t) for t from 0: half of the regularized incomplete beta function of degrees / (degrees + t^2)."""
    square = min(t, _MAX_T) ** 2
    if not square:
        return 0.5
    a, x, rest = degrees / 2, degrees / (degrees + square), square / (degrees + square)
    log_x = math.log(x) if x < 0.5 else math.log1p(-rest)
    front = math.exp(_log_gamma_ratio(a) - math.log(math.pi) / 2 + a * log_x + math.log(rest) / 2)
    if x <= (a + 1) / (a + 2.5):  # 8.17.22 converges fast
        return front / a / _fraction(x, a, 0.5) / 2
    return 0.5 - front / _fraction(rest, 0.5, a)  # 8.17.4


@cache
def quantile(probability: float, degrees: float) -> float:
    """The value that T exceeds with 1 - `probability`, by Newton's method.

    The tail is convex, and a normal quantile is smaller than that of t: so no step leads beyond the solution.
    """
    if probability < 0.5:
        return -quantile(1 - probability, degrees)
    tail, t = 1 - probability, NormalDist().inv_cdf(probability)
    log_height = _log_gamma_ratio(degrees / 2) - math.log(degrees * math.pi) / 2
    for _ in range(_MAX_STEPS):
        density = math.exp(log_height - (degrees + 1) / 2 * math.log1p(t * t / degrees))
        step = (upper_tail(t, degrees) - tail) / density
        t += step
        if step <= 1e-12 * t:
            break
    return t


def _log_gamma_ratio(a: float) -> float:
    """The logarithm of gamma(a + 1/2) / gamma(a); of large numbers by its expansion (https://dlmf.nist.gov/5.11.13)."""
    if a < 50:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    return math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of 8.17.22, by the modified method of Lentz (https://dlmf.nist.gov/3.10)."""
    value, above, below = 1.0, 1.0, 0.0
    for term in range(1, _MAX_TERMS):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / (1 + d * below or _TINY)
        above = 1 + d / above or _TINY
        value *= above * below
        if abs(above * below - 1) < _PRECISION:
            break
    return value
