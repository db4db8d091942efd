"""Statistics: against scipy and tables, and against simulated measurements whose truth is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from trnspec.benchmark.analyse.cells import MeasuringConditions
from trnspec.benchmark.analyse.speed_up import BAND, as_ratio, verdict
from trnspec.benchmark.analyse.statistics import (
    UNKNOWN,
    Array,
    ClusterIds,
    Estimate,
    compare,
    distribution,
    fisher_more,
    holm,
    mcnemar,
    of_sample,
    t_quantile,
    weighted_mean,
    wilson,
)
from trnspec.benchmark.analyse.windows import Gains, mixture

COUNTS = [(0, 1), (1, 1), (0, 32), (2, 32), (31, 32), (32, 32), (7, 500), (0, 500)]


def of(*values: float, times: int = 1) -> Estimate:
    """Each value is another prompt's."""
    return of_sample(*sample(*values * times, prompts=len(values)))


def sure(ratio: float, error: float = 0.001, clusters: int = 10) -> Estimate:
    return Estimate(mean=math.log(ratio), error=error, degrees=9, n=clusters, clusters=clusters)


def sample(*values: float, prompts: int, blocks: int = 1) -> tuple[Array, ClusterIds]:
    """Prompts in turn, and as many to each block."""
    index, one = np.arange(len(values)), np.zeros(len(values), int)
    block = index // (len(values) // blocks)
    return np.array(values), ClusterIds(
        class_=one, prompt=index % prompts, queue=one, block=block, start=one + 1
    )


def test_shares_tests_and_percentiles_are_those_of_scipy_and_of_papers() -> None:
    for p, degrees in product((0.025, 0.975, 0.995), (1, 2.5, 30)):
        assert t_quantile(p, degrees) == pytest.approx(stats.t.ppf(p, degrees))
    far = Estimate(mean=-40.0, error=1.0, degrees=30, n=31, clusters=31)
    assert far.p_value() == pytest.approx(2 * stats.t.sf(40, 30), rel=1e-6)
    for count, n in COUNTS:
        share = stats.binomtest(count, n).proportion_ci(method="wilson")
        assert wilson(count, n) == pytest.approx((share.low, share.high), abs=1e-12)
    assert wilson(0, 0) == (0.0, 1.0), "of nothing nothing is known"
    for (count, n), (other, n_other) in product(COUNTS, COUNTS):
        table = [[count, n - count], [other, n_other - other]]
        assert fisher_more(count, n, other, n_other) == pytest.approx(
            stats.fisher_exact(table, "greater").pvalue
        )
    for gained, lost in ((1, 0), (0, 6), (4, 5), (12, 3), (600, 700)):
        assert mcnemar(gained, lost) == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)
    assert mcnemar(0, 0) == 1.0
    known = {"n": 4, "mean": 2.5, "p50": 2.5, "p90": 3.7, "p95": 3.85, "p99": 3.97}
    assert distribution(np.array([4.0, 1.0, np.nan, 2.0, 3.0])) == pytest.approx(known)
    assert distribution(np.array([np.nan])) is None
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([None, 0.02, None]) == [None, 0.02, None]


def test_an_interval_is_students_over_prompts_and_repeating_them_does_not_narrow_it() -> None:
    values = [0.3, 0.1, 0.4, 0.1, 0.5, 0.9, 0.2, 0.6]
    once, often, theirs = of(*values), of(*values, times=50), stats.ttest_1samp(values, 0)
    alone = of_sample(*sample(*values, prompts=8))
    for found in (once, often, alone):
        assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval()), rel=1e-6)
    assert (once.n, often.n, often.clusters) == (8, 400, 8)
    by_weight = weighted_mean(values, [2.0] * 8)
    assert (by_weight.low, by_weight.high) == pytest.approx((once.low, once.high))
    assert once.p_value() == pytest.approx(theirs.pvalue, rel=1e-9)
    assert of(0.0, 0.0).p_value() == 1.0
    assert of(0.1, 0.1).p_value() == 0.0
    assert (of(0.1).p_value(), of(0.1).detectable) == (None, None)
    for prompts in (6, 16):
        found = of(*((-1.0) ** i for i in range(prompts)))
        assert found.detectable
        assert found.error
        power = stats.nct.sf(t_quantile(0.975, prompts - 1), prompts - 1, found.detectable / found.error)
        assert power == pytest.approx(0.8, abs=0.02), "found in four of five repetitions"


def test_what_blocks_share_widens_an_interval_and_leaves_it_as_few_degrees_as_there_are_blocks() -> None:
    apart = [0.1 * (block % 2) for block in range(4) for _ in range(16)]
    found = of_sample(*sample(*apart, prompts=16, blocks=4))
    between, within = 4 / 3 * 4 * (0.05 / 4) ** 2, 64 / 63 * 64 * (0.05 / 64) ** 2
    assert found.error == pytest.approx(math.sqrt(between - within))
    assert found.degrees == pytest.approx(3)
    alike = of_sample(*sample(*(0.1 * (index % 2) for index in range(64)), prompts=16, blocks=4))
    assert alike.degrees == 15, "blocks add nothing"


def test_the_widest_is_taken_at_the_level_that_is_printed() -> None:
    """Three degrees of freedom grow faster in the tails than fifteen, so of several intervals another part decides."""
    known = Estimate(mean=0.0, error=1.0, degrees=15, others=((0.6**2, 3.0),), n=64, clusters=16)
    assert known.high == pytest.approx(t_quantile(0.975, 15))
    assert replace(known, together=5).high == pytest.approx(0.6 * t_quantile(0.995, 3))


@pytest.mark.parametrize(
    ("low", "high", "prompts", "expected"),
    [
        (1.1, 1.3, 8, "faster"), (0.7, 0.9, 8, "slower"), (0.9, 1.2, 8, "cannot tell"), (0.97, 1.03, 8, "same"),
        (1.01, 1.03, 8, "same"), (0.97, 0.99, 8, "same"), (0.99, 1.06, 8, "cannot tell"), (0.94, 1.01, 8, "cannot tell"),
        (1.01, 1.06, 8, "a little faster"), (0.94, 0.99, 8, "a little slower"), (1.1, 1.3, 7, "too few prompts"),
        (1.051, 1.06, 8, "faster"), (1.049, 1.06, 8, "a little faster"), (0.9, 0.949, 8, "slower"), (0.9, 0.951, 8, "a little slower")
    ]
)  # fmt: skip
def test_a_verdict_agrees_with_its_p_value(low: float, high: float, prompts: int, expected: str) -> None:
    half = math.log(high / low) / 2
    estimate = sure(math.sqrt(low * high), half / t_quantile(0.975, 9), prompts)
    assert verdict(estimate) == expected
    p_value = estimate.p_value(*BAND)
    assert p_value is not None
    assert (expected in ("faster", "slower")) == (p_value < 0.05 and prompts > 7)


@pytest.mark.parametrize(
    ("ratio", "conditions", "expected"),
    [
        (1.08, MeasuringConditions(), ("faster", True)),
        (0.93, MeasuringConditions(), ("slower", True)),
        (1.2, MeasuringConditions(), ("faster", False)),
        (1.0, MeasuringConditions(), ("same", True)),
        (1.08, MeasuringConditions(starts=2), ("faster", False)),
        (1.08, MeasuringConditions(held=False), ("withheld", False)),
        (1.2, MeasuringConditions(held=False), ("faster", False)),
    ],
)
def test_near_1_a_verdict_needs_a_held_load(
    ratio: float, conditions: MeasuringConditions, expected: tuple[str, bool]
) -> None:
    found = as_ratio(sure(ratio), conditions)
    assert (found["verdict"], found["one_start"]) == expected
    assert (found["p_value"] is None) == (not conditions.held and ratio < 1.1)


def test_answers_are_compared_over_the_questions_of_both_arms() -> None:
    ours, theirs = (
        {"a": True, "b": True, "c": False, "only": True},
        {"a": True, "b": False, "c": True, "d": True},
    )
    found = compare(ours, theirs)
    assert (found["n"], found["gained"], found["lost"], found["difference"]) == (3, 1, 1, 0.0)
    nothing = compare({"a": True}, {"b": True})
    assert (nothing["n"], nothing["difference"], nothing["p_value"]) == (0, None, None)
    same = {str(number): number % 3 > 0 for number in range(200)}
    found = compare(same, same)
    assert found["difference"] == 0
    assert -0.015 < found["ci_low"] < 0 < found["ci_high"] < 0.015, "equal answers do not exclude everything"


@pytest.mark.parametrize(("base", "down", "up"), [(0.6, 0.03, 0.03), (0.9, 0.05, 0.02), (0.5, 0.2, 0.1)])
def test_the_interval_of_a_loss_of_answers_covers(base: float, down: float, up: float) -> None:
    """Right answers become wrong with the probability `down`, wrong ones right with `up`."""
    noise, runs, covered = random.Random(3), 1000, 0
    for _ in range(runs):
        plain = {str(number): noise.random() < base for number in range(200)}
        treated = {
            key: noise.random() >= down if right else noise.random() < up for key, right in plain.items()
        }
        found = compare(plain, treated)
        covered += found["ci_low"] <= (1 - base) * up - base * down <= found["ci_high"]
    assert 0.93 <= covered / runs <= 0.985


def test_the_mixtures_interval_contains_the_truth_as_often_as_it_says() -> None:
    dice, covered, alike = random.Random(5), 0, np.zeros(8, int)
    for _ in range(300):
        parts = []
        for code, gain in enumerate((3.0, 1.0)):
            values = np.array([math.log(gain) + dice.gauss(0, 0.2) for _ in range(8)])
            sources = ClusterIds(alike + code, np.arange(8), alike, alike + UNKNOWN, alike)
            parts.append((0.5, Gains(values, np.full(8, math.log(0.04)), sources)))
        found = mixture(parts)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= math.log(2 / (1 / 3 + 1)) <= found.high
    assert 0.92 <= covered / 300 <= 0.98
