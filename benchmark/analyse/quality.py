"""Whether one arm answers as rightly as another: the same questions, right or wrong, paired question by question."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from benchmark.analyse.stats import CONFIDENCE

Answers = Mapping[str, bool]
"""By question, whether the answer is right."""
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def compare(baseline: Answers, treatment: Answers) -> dict[str, Any]:
    """Difference of the shares of right answers over the questions that both were asked, with interval and p-value.

    The interval is Agresti and Min's adjusted Wald interval for matched proportions, which is never of width zero
    (Statistics in Medicine 24, 2005); the p-value is McNemar's, exact: given that answers differ, either arm is as likely
    to have the right one.
    """
    common = baseline.keys() & treatment.keys()
    n = len(common)
    lost = sum(baseline[question] and not treatment[question] for question in common)
    gained = sum(treatment[question] and not baseline[question] for question in common)
    if not n:
        return {
            "n": 0,
            "difference": None,
            "ci_low": None,
            "ci_high": None,
            "gained": 0,
            "lost": 0,
            "p_value": None,
        }
    middle, error = _adjusted(gained, lost, n)
    return {
        "n": n,
        "difference": (gained - lost) / n,
        "ci_low": max(-1.0, middle - _Z * error),
        "ci_high": min(1.0, middle + _Z * error),
        "gained": gained,
        "lost": lost,
        "p_value": mcnemar(gained, lost),
    }


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact probability of a split at least as uneven, when both sides are equally likely."""
    differing, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(differing, count) for count in range(fewer + 1))
    return float(min(1, 2 * tail / 2**differing))


def _adjusted(gained: int, lost: int, n: int) -> tuple[float, float]:
    """Middle and standard error of the interval: half an observation is added to each of the four kinds of pairs."""
    more, fewer, total = gained + 0.5, lost + 0.5, n + 2
    return (more - fewer) / total, math.sqrt(more + fewer - (more - fewer) ** 2 / total) / total
