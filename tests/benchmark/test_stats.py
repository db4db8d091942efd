from __future__ import annotations

import random

import pytest

from benchmark.analyse.stats import clustered_mean, distribution, percentile, t_probability, t_quantile


@pytest.mark.parametrize(
    ("degrees", "two_sided_95", "two_sided_99"),
    [
        (1, 12.706, 63.657),
        (2, 4.303, 9.925),
        (5, 2.571, 4.032),
        (7, 2.365, 3.499),
        (15, 2.131, 2.947),
        (30, 2.042, 2.750),
        (120, 1.980, 2.617),
        (100_000, 1.960, 2.576),
    ],
)
def test_t_quantiles_are_those_of_the_tables(degrees: int, two_sided_95: float, two_sided_99: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(two_sided_95, abs=6e-4)
    assert t_quantile(0.995, degrees) == pytest.approx(two_sided_99, abs=6e-4)
    assert t_quantile(0.025, degrees) == pytest.approx(-two_sided_95, abs=6e-4)


def test_the_t_distribution_of_one_degree_is_cauchys() -> None:
    assert t_probability(1.0, 1) == pytest.approx(0.75)
    assert t_probability(-1.0, 1) == pytest.approx(0.25)
    assert t_probability(0.0, 9) == pytest.approx(0.5)


def test_percentiles_lie_linearly_between_neighbours() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, p) for p in (0, 25, 50, 90, 100)] == pytest.approx([1, 1.75, 2.5, 3.7, 4])
    assert percentile([7.0], 99) == 7.0


def test_no_values_have_no_distribution() -> None:
    assert distribution([]) is None
    found = distribution([3.0, 1.0, 2.0])
    assert found is not None
    assert (found["n"], found["mean"], found["p50"]) == (3, 2.0, 2.0)


def test_clusters_of_one_give_the_textbook_t_interval() -> None:
    # Mean 5, sample standard deviation 2: the half width is 2.776 * 2 / sqrt(5).
    sample = [5 - 2.8284271, 5.0, 5.0, 5.0, 5 + 2.8284271]
    found = clustered_mean({str(i): [value] for i, value in enumerate(sample)})
    assert found.mean == pytest.approx(5)
    assert found.low is not None
    assert found.mean - found.low == pytest.approx(2.7764 * 2 / 5**0.5, rel=1e-4)


def test_repeating_a_prompt_does_not_narrow_the_interval() -> None:
    once = clustered_mean({"a": [1.0], "b": [2.0], "c": [4.0]})
    often = clustered_mean({"a": [1.0] * 50, "b": [2.0] * 50, "c": [4.0] * 50})
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert (once.n, often.n, often.clusters) == (3, 150, 3)


def test_one_cluster_has_no_interval() -> None:
    found = clustered_mean({"a": [1.0, 2.0]})
    assert (found.mean, found.low, found.high) == (1.5, None, None)


@pytest.mark.parametrize("prompts", [8, 16])
def test_intervals_cover_the_truth_as_often_as_they_say(prompts: int) -> None:
    dice = random.Random(7)
    covered = 0
    for _ in range(1000):
        centres = [dice.gauss(1.0, 0.2) for _ in range(prompts)]
        found = clustered_mean(
            {str(i): [dice.gauss(c, 0.1) for _ in range(4)] for i, c in enumerate(centres)}
        )
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert 930 <= covered <= 970
