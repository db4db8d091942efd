"""What a Trn2 node costs by each way of buying it, and what an answer then costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from infra.scale_to_zero_schedules import BEFORE_BLOCK_ENDS
from tests.conftest import REFERENCE, ROOT
from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.experiment.catalogue.prices import BLOCK_RATES, NODE_RATES
from trnspec.experiment.cost import BLOCK_END_H, node_price, per_hour, running
from trnspec.experiment.description import as_text
from trnspec.experiment.run_price import file_prices, price_text, run_prices
from trnspec.operations.__main__ import main

Variation = Callable[[Callable[[dict[str, Any]], object]], Path]
SMALL = ROOT / "experiments" / "llama-3.1-8b-eagle3.yaml"


def test_every_published_rate_is_of_a_zone_that_offers_the_type() -> None:
    for rate in NODE_RATES:
        zones = INSTANCES[rate.instance].zones[rate.region]
        assert rate.zone is None or rate.zone in zones
        assert (rate.low_usd or 0) <= rate.usd_per_hour <= (rate.high_usd or rate.usd_per_hour)
        assert (rate.smallest_h > 0) == (rate.kind == "capacity-block")


@pytest.mark.parametrize(
    ("kind", "zones", "usd", "note"),
    [
        (
            "on-demand",
            "ab",
            35.76,
            "AWS publishes no on-demand price; this is the rate of a Capacity Block in ap-sou",
        ),
        ("spot", "ca", 14.56, "it changes all the time: $8.99 to $15.37 in the 30 days before 2026-10-03"),
        ("spot", "ac", 14.56, "it changes all the time"),
        (
            "spot",
            "ab",
            35.76,
            "no spot price is published for us-east-2a and us-east-2b; this is the rate of a",
        ),
    ],
)
def test_a_node_counts_with_the_price_of_its_way_of_buying(
    variation: Variation, kind: str, zones: str, usd: float, note: str
) -> None:
    names = [f"us-east-2{letter}" for letter in zones]
    change = {"capacity": {"kind": kind}, "availability_zones": names}
    price = node_price(load(variation(lambda data: data["cluster"].update(change))))
    assert (price.usd_per_hour, price.note.startswith(note)) == (usd, True), price


def test_spot_without_a_record_counts_the_block_and_says_so(variation: Variation) -> None:
    zones = ["ap-south-2a", "ap-south-2b"]
    change = {"capacity": {"kind": "spot"}, "region": "ap-south-2", "availability_zones": zones}
    price = node_price(load(variation(lambda data: data["cluster"].update(change))))
    assert price.usd_per_hour == BLOCK_RATES["trn2.48xlarge"].usd_per_hour
    assert price.note.startswith("no spot price is published for ap-south-2")


def test_a_block_is_paid_as_a_whole_and_spot_by_its_range(reference: Experiment) -> None:
    beside = per_hour(running(reference)) - node_price(reference).usd_per_hour
    spot, block, *_ = run_prices(reference, 2.2)
    assert (spot.rate.kind, spot.rate.zone, spot.hours_billed) == ("spot", "us-east-2c", 2.2)
    assert spot.low_usd == pytest.approx(2.2 * (8.99 + beside))
    assert spot.high_usd == pytest.approx(2.2 * (15.37 + beside))
    assert (block.rate.kind, block.hours_billed, block.hours_used) == ("capacity-block", 8, 2.2)
    assert block.low_usd == block.usd == block.high_usd == pytest.approx(8 * 38.52 + 2.2 * beside)


@pytest.mark.parametrize(("hours", "billed"), [(7, 8), (7.1, 24), (24.5, 32), (33, 48), (50, 56)])
def test_a_longer_answer_takes_the_cheapest_block_that_holds_it_before_its_last_hour(
    reference: Experiment, hours: float, billed: float
) -> None:
    assert timedelta(hours=BLOCK_END_H) == BEFORE_BLOCK_ENDS
    blocks = [way for way in run_prices(reference, hours) if way.rate.kind == "capacity-block"]
    assert blocks[0].hours_billed == billed


@pytest.mark.parametrize(
    ("kind", "zones", "says"),
    [
        ("on-demand", "ab", "$310 for a Capacity Block of 8 hours in ap-south-2b (the run uses 2.2)"),
        (
            "spot",
            "ac",
            "$21 to $35 by spot in us-east-2c, if EC2 has a node; or $310 for a Capacity Block of 8 hours in ap-south-2b (the run uses 2.2)",
        ),
    ],
)
def test_a_run_is_paid_by_spot_in_a_zone_of_the_file_or_by_a_whole_block(
    variation: Variation, kind: str, zones: str, says: str
) -> None:
    names = [f"us-east-2{letter}" for letter in zones]
    change = {"capacity": {"kind": kind}, "availability_zones": names}
    assert price_text(file_prices(load(variation(lambda data: data["cluster"].update(change))), 2.2)) == says


def test_check_says_how_nodes_are_bought() -> None:
    text = as_text(load(SMALL))
    assert "  capacity    by spot in sa-east-1c, at most $4 per hour per node, at most 2 nodes" in text
    assert "it changes all the time: $0.90 to $2.57 in the 30 days before" in " ".join(text.split())
    assert "predicted: $4 to $10 by spot in sa-east-1c" in text


def test_two_small_nodes_cost_twice_as_much() -> None:
    small = load(SMALL)
    ways = run_prices(small, 1.0)
    assert {way.rate.region for way in ways} == {"sa-east-1", "ap-southeast-4"}
    beside = per_hour(running(small)) - 2 * node_price(small).usd_per_hour
    assert ways[0].usd == pytest.approx(2 * 2.27 + beside)


def test_cost_says_whose_prices_count_in_another_region(capsys: pytest.CaptureFixture[str]) -> None:
    for path, said in ((SMALL, True), (REFERENCE, False)):
        assert main(["forecast", str(path)]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert ("prices are of us-east-1 and us-east-2; those of sa-east-1 were not read" in out) is said
        assert re.search(r"A first run takes \S+ Trn2 hours \(predicted\). It costs \$", out)
