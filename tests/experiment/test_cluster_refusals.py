"""What is wrong with `cluster` is refused on its own line, whatever else is wrong beside it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from experiment import InvalidExperiment, load
from experiment.catalogue.instances import INSTANCES, ZONES
from experiment.checks.names import longest_name
from experiment.model import FORMS, ExperimentFile
from experiment.naming import bucket
from tests.experiment.edits import BLOCK, Edit, both, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Variation = Callable[[Edit], Path]

CIDRS = "cluster.admin_cidrs"


def test_all_mistakes_of_a_cluster_are_listed_together(variation: Variation) -> None:
    wrong = both(
        put(CIDRS, ["0.0.0.0/0", "x"]),
        put("cluster.kubernetes", "1.30"),
        put("cluster.availability_zones", ["us-west-2a", "us-east-2b"]),
        put("cluster.capacity", {"kind": "on-demand", "reservation_id": "cr-0123456789abcdef0"}),
        put("cluster.network", {"nat_gateways": 0}),
        put("cluster.off_at_utc", "25:00"),
    )
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(wrong))
    assert {problem.where for problem in caught.value.findings} == {
        f"{CIDRS}[0]",
        f"{CIDRS}[1]",
        "cluster.kubernetes",
        "cluster.availability_zones[0]",
        "cluster.capacity.reservation_id",
        "cluster.network.nat_gateways",
        "cluster.off_at_utc",
    }
    assert len(caught.value.lines) == 7


@pytest.mark.parametrize("cidrs", [["8.8.8.8/32", "9.9.9.0/24"], ["9.0.0.0/8"], []])
def test_networks_of_ones_own_are_taken(cidrs: list[str], variation: Variation) -> None:
    assert load(variation(put(CIDRS, cidrs))).cluster.admin_cidrs == tuple(cidrs)


def test_a_reservation_may_lie_in_any_zone_of_the_region(variation: Variation) -> None:
    assert load(variation(BLOCK)).cluster.trn2_zone == "us-east-2b"


def test_every_region_with_an_instance_has_its_zones() -> None:
    assert {region for one in INSTANCES.values() for region in one.regions} == ZONES.keys()
    assert all(zone.startswith(region) for region, zones in ZONES.items() for zone in zones)


@pytest.mark.parametrize("region", ZONES)
def test_the_longest_name_gives_buckets_that_s3_takes(region: str, variation: Variation) -> None:
    edit = both(
        put("name", "x" * longest_name(region)),
        put("cluster.region", region),
        put("cluster.availability_zones", list(ZONES[region][:2])),
    )
    named = load(variation(edit))
    assert all(len(bucket(named, kind, "1" * 12)) <= 63 for kind in ("checkpoints", "artifacts", "results"))
    with pytest.raises(InvalidExperiment, match="bucket names made from it would pass 63"):
        load(variation(both(edit, put("name", "x" * (longest_name(region) + 1)))))


def test_every_pattern_of_the_schema_is_explained() -> None:
    schema = json.dumps(ExperimentFile.model_json_schema())
    patterns = {json.loads(found) for found in re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', schema)}
    assert patterns == FORMS.keys()
