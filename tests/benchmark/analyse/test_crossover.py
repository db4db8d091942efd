from __future__ import annotations

from typing import Any

from benchmark.analyse.crossover import crossovers
from benchmark.plan import Plan, from_dict
from tests.benchmark.conftest import plan_content


def plan(*prices: float | None) -> Plan:
    content = plan_content(concurrency=[1, 8, 64])
    for arm, price in zip(content["arms"], prices, strict=False):
        arm["usd_per_hour"] = price
    return from_dict(content)


def rows(*ratios: tuple[int, float, float, float]) -> list[dict[str, Any]]:
    return [
        {
            "class": "chat",
            "treatment": "spec",
            "metric": "output_tokens_per_s",
            "concurrency": concurrency,
            "ratio": ratio,
            "ci_low": low,
            "ci_high": high,
        }
        for concurrency, ratio, low, high in ratios
    ]


def test_plain_decoding_becomes_cheaper_where_the_speed_up_falls_below_one() -> None:
    (found,) = crossovers(plan(), rows((1, 2.0, 1.9, 2.1), (8, 1.2, 1.1, 1.3), (64, 0.7, 0.6, 0.8)))
    assert (found["concurrency_from_which_plain_is_cheaper"], found["shown"]) == (64, True)
    assert "between 8 and 64 at a time" in found["text"]
    assert "at the same price per hour" in found["text"]


def test_prices_move_the_crossover() -> None:
    measured = rows((1, 2.0, 1.9, 2.1), (8, 1.2, 1.1, 1.3), (64, 0.7, 0.6, 0.8))
    (found,) = crossovers(plan(10.0, 15.0), measured)
    assert found["concurrency_from_which_plain_is_cheaper"] == 8
    assert "same price" not in found["text"]


def test_a_crossover_within_the_noise_is_not_shown() -> None:
    (found,) = crossovers(plan(), rows((1, 2.0, 1.9, 2.1), (8, 0.98, 0.9, 1.1)))
    assert (found["concurrency_from_which_plain_is_cheaper"], found["shown"]) == (8, False)
    assert "leaves it open" in found["text"]


def test_a_treatment_that_recovers_has_no_crossover_before() -> None:
    (found,) = crossovers(plan(), rows((1, 0.9, 0.8, 0.95), (8, 1.5, 1.4, 1.6)))
    assert found["concurrency_from_which_plain_is_cheaper"] is None


def test_one_load_shows_none_unless_plain_decoding_is_cheaper_there() -> None:
    assert crossovers(plan(), rows((8, 1.5, 1.4, 1.6))) == []
    (found,) = crossovers(plan(), rows((8, 0.5, 0.4, 0.6)))
    assert found["concurrency_from_which_plain_is_cheaper"] == 8
    assert "the lowest measured load" in found["text"]
