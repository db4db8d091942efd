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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

PERCENTILES = (50, 90, 95, 99)
CONFIDENCE = 0.95
POWER = 0.8
Z = 1.959963984540054
"""The quantile of the normal distribution for CONFIDENCE."""
_CODES = ("class_", "prompt", "queue", "block", "start")
UNKNOWN = -1
"""The code of a block that is not known."""
Array = np.ndarray[Any, Any]
Variance = tuple[float, float]
"""A variance and its degrees of freedom."""


class Units(NamedTuple):
    """The clusters of values."""

    stratum: Array
    """The number of units in the stratum of each unit."""
    strata: Array
    """The code of the stratum of each unit."""
    unit: Array
    """The number of the unit of each value."""

    @classmethod
    def of(cls, strata: Array, codes: Array) -> Units:
        _, first, unit = np.unique(paired_codes(strata, codes), return_index=True, return_inverse=True)
        of_units = np.unique(strata[first], return_inverse=True, return_counts=True)
        return cls(of_units[2][of_units[1]], of_units[1], unit)


@dataclass(frozen=True, eq=False)
class ClusterIds:
    """The clusters that values belong to, as codes: an array for each kind of cluster, an entry for each value."""

    class_: Array
    prompt: Array
    queue: Array
    """The class of its block: its own class, or all classes together."""
    block: Array
    """The number of the block, the same for both arms, or UNKNOWN."""
    start: Array

    def of(self, rows: Any) -> ClusterIds:
        return ClusterIds(*(getattr(self, name)[rows] for name in _CODES))

    @cached_property
    def prompts(self) -> Units:
        return Units.of(self.class_, self.prompt)

    @cached_property
    def blocks(self) -> Units | None:
        """Blocks of a queue or, with several starts, starts; None if blocks are not known, or no queue has two."""
        if self.several_starts:
            return Units.of(np.zeros_like(self.start), self.start)
        if not len(self.block) or (self.block == UNKNOWN).any():
            return None
        blocks = Units.of(self.queue, self.block)
        return blocks if blocks.stratum.max() > 1 else None

    @cached_property
    def within(self) -> Units:
        """Prompts in blocks; with several starts, prompts in starts."""
        others = self.start if self.several_starts else self.block
        return Units.of(self.class_, paired_codes(self.prompt, others))

    @cached_property
    def several_starts(self) -> bool:
        """Whether a class had several starts. Different classes may have different starts, if a node was replaced between them."""
        return bool(Units.of(self.class_, self.start).stratum.max(initial=0) > 1)


def joined(parts: Sequence[ClusterIds]) -> ClusterIds:
    if len(parts) == 1:
        return parts[0]
    return ClusterIds(*(np.concatenate([getattr(part, name) for part in parts]) for name in _CODES))


def paired_codes(codes: Array, others: Array) -> Array:
    """A code for each pair of codes, which are whole numbers from -1."""
    return codes * (int(others.max(initial=0)) + 2) + others


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with Student's t interval; without an interval if the standard error is unknown."""

    mean: float
    error: float | None
    """Standard error of the mean; None for fewer than two clusters."""
    degrees: float = 0.0
    """Degrees of freedom of `error`."""
    others: tuple[Variance, ...] = ()
    """Further estimates of the variance: the interval is the widest of all."""
    n: int
    clusters: int
    together: int = 1
    """The number of intervals that hold together, by Bonferroni's inequality, so that the choice of the best is not biased upward."""
    doubt: float = 0.0
    """The bound of an error that all values may share, so that more values do not make it smaller."""

    @property
    def low(self) -> float | None:
        return None if self.error is None else self.mean - self._half - self.doubt

    @property
    def high(self) -> float | None:
        return None if self.error is None else self.mean + self._half + self.doubt

    def p_value(self, low: float = 0.0, high: float = 0.0) -> float | None:
        """The two-sided p-value of a mean between `low` and `high`: below 5 % exactly if the whole interval is outside of that range."""
        if self.error is None:
            return None
        away = max(self.mean - high - self.doubt, low - self.mean - self.doubt, 0.0)
        if not any(error for error, _ in self._errors):
            return 0.0 if away else 1.0
        from scipy.special import stdtr  # slow to import, and a run without an interval needs none

        tails = (float(stdtr(degrees, -away / error)) for error, degrees in self._errors if error)
        return min(1.0, self.together * 2 * max(tails))

    @property
    def detectable(self) -> float | None:
        """The distance of a mean from a value that a test at 5 % would find in 80 % of repetitions, with this standard error.

        (t_0.975 + t_0.8) standard errors, the usual approximation to the noncentral t.
        """
        if self.error is None:
            return None
        return self._half + max(t_quantile(POWER, own) * error for error, own in self._errors) + self.doubt

    @property
    def _errors(self) -> list[tuple[float, float]]:
        """Each standard error with its degrees of freedom."""
        others = [(math.sqrt(variance), degrees) for variance, degrees in self.others]
        return [(self.error or 0.0, self.degrees), *others]

    @property
    def _half(self) -> float:
        probability = 1 - (1 - CONFIDENCE) / 2 / self.together
        return max(t_quantile(probability, degrees) * error for error, degrees in self._errors)


@cache
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


def compare(baseline: Mapping[str, bool], treatment: Mapping[str, bool]) -> dict[str, Any]:
    """Difference of the shares of correct answers over the common questions, with interval and p-value.

    The interval is Agresti and Min's adjusted Wald interval for matched proportions, which is never of width zero
    (Statistics in Medicine 24, 2005): half an observation is added to each of the four kinds of pairs. The p-value is
    McNemar's, exact: given that answers differ, either arm is as likely to have the right one.
    """
    common = baseline.keys() & treatment.keys()
    n = len(common)
    lost = sum(baseline[question] and not treatment[question] for question in common)
    gained = sum(treatment[question] and not baseline[question] for question in common)
    difference = low = high = p_value = None
    if n:
        more, fewer, total = gained + 0.5, lost + 0.5, n + 2
        middle = (more - fewer) / total
        half = Z * (math.sqrt(more + fewer - (more - fewer) ** 2 / total) / total)
        difference, p_value = (gained - lost) / n, mcnemar(gained, lost)
        low, high = max(-1.0, middle - half), min(1.0, middle + half)
    interval = {"difference": difference, "ci_low": low, "ci_high": high}
    return {"n": n, **interval, "gained": gained, "lost": lost, "p_value": p_value}


def mcnemar(gained: int, lost: int) -> float:
    """The exact two-sided probability of a split at least as uneven, if both sides are equally likely."""
    tail = sum(math.comb(gained + lost, count) for count in range(min(gained, lost) + 1))
    return float(min(1, 2 * tail / 2 ** (gained + lost)))


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


def distribution(values: Array) -> dict[str, float] | None:
    """n, mean and percentiles (linear between neighbours) of the known values; None without one."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    tails = np.percentile(known, PERCENTILES)
    named = {f"p{percent}": float(value) for percent, value in zip(PERCENTILES, tails, strict=True)}
    return {"n": len(known), "mean": math.fsum(known) / len(known), **named}


def weighted_mean(values: Sequence[float], weights: Sequence[float] | None = None) -> Estimate:
    """The mean of independent values, with Student's t interval. `values` must not be empty.

    With equal weights this is the textbook interval; with unequal ones each value counts as its weight does
    (the linearised ratio estimator, Cochran, Sampling Techniques, 3rd ed., section 9A).
    """
    value = np.asarray(values, float)
    weight = np.ones(len(value)) if weights is None else np.asarray(weights)
    middle, count = float(np.average(value, weights=weight)), len(value)
    if count < 2:
        return Estimate(mean=middle, error=None, n=count, clusters=count)
    variance = ((weight * (value - middle) / weight.sum()) ** 2).sum() * count / (count - 1)
    return Estimate(mean=middle, error=math.sqrt(variance), degrees=count - 1, n=count, clusters=count)


def summed(mean: float, parts: Sequence[Estimate]) -> Estimate:
    """`mean` with the error of a sum of independent `parts`. If the error of a part is unknown, that of the sum is unknown too."""
    n, clusters = sum(part.n for part in parts), sum(part.clusters for part in parts)
    if any(part.error is None for part in parts):
        return Estimate(mean=mean, error=None, n=n, clusters=clusters)
    variance, degrees = added([((part.error or 0.0) ** 2, part.degrees) for part in parts])
    return Estimate(mean=mean, error=math.sqrt(variance), degrees=degrees, n=n, clusters=clusters)


def mean_of(values: Array, starts: Array) -> tuple[float, Array]:
    """The mean (with several starts, the mean of their means), and how much each value moves it. `values` must not be empty."""
    _, start, counts = np.unique(starts, return_inverse=True, return_counts=True)
    weights = 1 / len(counts) / counts[start]
    middle = math.fsum(weights * values)
    return middle, weights * (values - middle)


def ratio_of_sums(parts: Sequence[tuple[float, Array, Array, ClusterIds]]) -> Estimate:
    """The log of sum(w * B) / sum(w * T) over classes: the weight, the logs of both times of each pair, and their clusters. B and T are
    geometric means. It is linearised: a pair moves it by u * log b - v * log t, where u and v are the shares of its class in both sums."""
    before = [w * math.exp(mean_of(log_b, own.start)[0]) for w, log_b, _, own in parts]
    after = [w * math.exp(mean_of(log_t, own.start)[0]) for w, _, log_t, own in parts]
    sums = math.fsum(before), math.fsum(after)
    influence = [
        mean_of(b / sums[0] * log_b - t / sums[1] * log_t, own.start)[1]
        for b, t, (_, log_b, log_t, own) in zip(before, after, parts, strict=True)
    ]
    return estimate(
        math.log(sums[0] / sums[1]), np.concatenate(influence), joined([part[3] for part in parts])
    )


def of_sample(values: Array, cluster_ids: ClusterIds) -> Estimate:
    """The mean of values, at least one, with its interval."""
    middle, influence = mean_of(values, cluster_ids.start)
    return estimate(middle, influence, cluster_ids)


def estimate(mean: float, influence: Array, cluster_ids: ClusterIds) -> Estimate:
    """A mean with the error from the influence of each value; without an error if a class has one prompt."""
    n, clusters = len(influence), len(cluster_ids.prompts.stratum)
    if cluster_ids.prompts.stratum.min(initial=n) < 2:
        return Estimate(mean=mean, error=None, n=n, clusters=clusters)
    (variance, degrees), *others = variances(influence, cluster_ids)
    error = math.sqrt(variance)
    return Estimate(mean=mean, error=error, degrees=degrees, others=tuple(others), n=n, clusters=clusters)


def variances(influence: Array, cluster_ids: ClusterIds) -> list[Variance]:
    """The variance of a mean from the influence of each value. With several starts there are three estimates: over prompts, over starts, over both."""
    prompts = variance_between(influence, cluster_ids.prompts)
    if not cluster_ids.blocks:
        return [prompts]
    blocks = variance_between(influence, cluster_ids.blocks)
    within = variance_between(influence, cluster_ids.within)
    if cluster_ids.several_starts:
        return [prompts, blocks, _two_way(prompts, blocks, within)]
    return [prompts if blocks[0] <= within[0] else _two_way(prompts, blocks, within)]


def variance_beyond_prompts(influence: Array, cluster_ids: ClusterIds) -> Variance | None:
    """The variance that blocks (with several starts, starts) add to that over prompts; None if they add nothing."""
    if not cluster_ids.blocks:
        return None
    whole = variance_between(influence, cluster_ids.blocks)
    extra = whole[0] - variance_between(influence, cluster_ids.within)[0]
    return (extra, whole[1]) if extra > 0 else None


def variance_between(influence: Array, units: Units) -> Variance:
    """The variance between units, summed over strata. A stratum with one unit does not count."""
    counts = np.bincount(units.strata)
    squares = np.bincount(units.strata, np.bincount(units.unit, influence) ** 2)
    several = counts > 1
    parts = squares[several] * counts[several] / (counts[several] - 1)
    return added(list(zip(parts.tolist(), (counts[several] - 1.0).tolist(), strict=True)))


def added(parts: Sequence[Variance]) -> Variance:
    """The sum of independent variances (Satterthwaite)."""
    variance = math.fsum(part for part, _ in parts)
    if not variance or math.isinf(variance):
        return variance, max(math.fsum(degrees for _, degrees in parts), 1.0)
    return variance, variance**2 / math.fsum(part**2 / degrees for part, degrees in parts)


def _two_way(prompts: Variance, others: Variance, within: Variance) -> Variance:
    """The variance with two crossing kinds of clusters."""
    variance = max(prompts[0] + others[0] - within[0], 0.0)
    doubt = math.fsum(part**2 / degrees for part, degrees in (prompts, others, within))
    minimum = min(prompts[1], others[1])
    return variance, max(variance**2 / doubt, minimum) if doubt else minimum
