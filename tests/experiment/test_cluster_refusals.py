"""What is wrong with `cluster` is refused on its own line, whatever else is wrong beside it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from experiment import InvalidExperiment, load
from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.regions import ZONES
from experiment.checks.names import longest_name
from experiment.naming import bucket
from experiment.schema import FORMS, ExperimentFile
from tests.experiment.edits import Edit, both, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Variation = Callable[[Edit], Path]

CIDRS = "cluster.admin_cidrs"
BLOCK = {
    "kind": "capacity-block",
    "reservation_id": "cr-0123456789abcdef0",
    "availability_zone": "us-east-2c",
    "ends_at": "2026-12-05T11:30:00Z",
}
REFUSED: dict[str, tuple[str, Any, str, str]] = {
    "prefix past 32": (CIDRS, ["8.8.8.8/33"], f"{CIDRS}[0]", "is no IPv4 network"),
    "host bits": (CIDRS, ["8.8.8.8/24"], f"{CIDRS}[0]", "write it as 8.8.8.0/24"),
    "IPv6": (CIDRS, ["2a00:1450::/32"], f"{CIDRS}[0]", "is IPv6"),
    "everybody on IPv6": (CIDRS, ["::/0"], f"{CIDRS}[0]", "is IPv6"),
    "everybody": (CIDRS, ["0.0.0.0/0"], f"{CIDRS}[0]", "to everybody"),
    "everybody by mask": (CIDRS, ["0.0.0.0/0.0.0.0"], f"{CIDRS}[0]", "to everybody"),
    "everybody in two halves": (CIDRS, ["0.0.0.0/1", "128.0.0.0/1"], f"{CIDRS}[1]", "to everybody"),
    "more than a /8 in pieces": (CIDRS, ["8.0.0.0/8", "9.9.9.0/24"], CIDRS, "more than a /8"),
    "twice": (CIDRS, ["8.8.8.8/32", "8.8.8.8/32"], f"{CIDRS}[1]", "overlaps 8.8.8.8/32"),
    "one inside another": (CIDRS, ["8.8.8.0/24", "8.8.8.8/32"], f"{CIDRS}[1]", "overlaps 8.8.8.0/24"),
    "private": (CIDRS, ["10.20.0.0/16"], f"{CIDRS}[0]", "which EKS refuses at a public endpoint"),
    "of documentation": (CIDRS, ["203.0.113.7/32"], f"{CIDRS}[0]", "(203.0.113.0/24), which EKS refuses"),
    "private inside": (CIDRS, ["172.0.0.0/8"], f"{CIDRS}[0]", "(172.16.0.0/12), which EKS refuses"),
    "too many": (CIDRS, [f"8.8.{n}.0/24" for n in range(41)], CIDRS, "41 networks, and EKS takes 40"),
    "no list": (CIDRS, "8.8.8.8/32", CIDRS, "must be a list; write [8.8.8.8/32]"),
    "null": (CIDRS, None, CIDRS, "must be a list; write [] for none"),
    "a number": (CIDRS, [8], f"{CIDRS}[0]", "put it in quotes"),
    "local zone": (
        "cluster.availability_zones",
        ["us-east-2-chi-1a", "us-east-2a"],
        "cluster.availability_zones[0]",
        "is no zone of us-east-2; use one of us-east-2a, us-east-2b, us-east-2c",
    ),
    "id of a zone": (
        "cluster.availability_zones",
        ["us-east-2a", "use2-az2"],
        "cluster.availability_zones[1]",
        "is no zone of us-east-2",
    ),
    "no zones": ("cluster.availability_zones", [], "cluster.availability_zones", "at least 2 items, not 0"),
    "patch release": ("cluster.kubernetes", "1.35.2", "cluster.kubernetes", "is no Kubernetes version"),
    "leading zero": ("cluster.kubernetes", "01.35", "cluster.kubernetes", "is no Kubernetes version"),
    "digits of another script": ("cluster.kubernetes", "1.３５", "cluster.kubernetes", "is no Kubernetes"),
    "endless digits": ("cluster.kubernetes", "1." + "9" * 5000, "cluster.kubernetes", "is no Kubernetes"),
    "a day that February lacks": (
        "cluster.capacity",
        BLOCK | {"ends_at": "2026-02-30T11:30:00Z"},
        "cluster.capacity.ends_at",
        "is no instant in UTC",
    ),
    "a 25th hour": (
        "cluster.capacity",
        BLOCK | {"ends_at": "2026-12-05T24:30:00Z"},
        "cluster.capacity.ends_at",
        "is no instant in UTC",
    ),
    "block that is a purchase": (
        "cluster.capacity",
        BLOCK | {"reservation_id": "cbr-0123456789abcdef0"},
        "cluster.capacity.reservation_id",
        "as in cr-0123456789abcdef0",
    ),
    "spot": ("cluster.capacity", {"kind": "spot"}, "cluster.capacity.kind", "'capacity-block'"),
    "negative gateways": (
        "cluster.network",
        {"nat_gateways": -1},
        "cluster.network.nat_gateways",
        "greater than or equal to 1",
    ),
    "nine gateways": (
        "cluster.network",
        {"nat_gateways": 9},
        "cluster.network.nat_gateways",
        "less than or equal to 3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_mistake_in_the_cluster_is_one_line(name: str, variation: Variation) -> None:
    place, value, path, words = REFUSED[name]
    with pytest.raises(InvalidExperiment) as caught:
        load(variation(put(place, value)))
    said = [(one.path, line) for one, line in zip(caught.value.problems, caught.value.lines, strict=True)]
    assert [line for where, line in said if where == path and words in line], said
    assert all("\n" not in line for _, line in said)
    several = name == "everybody in two halves"
    assert len(said) == (2 if several else 1), said


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
    assert {problem.path for problem in caught.value.problems} == {
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
    assert load(variation(put("cluster.capacity", BLOCK))).cluster.trn2_zone == "us-east-2c"


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
