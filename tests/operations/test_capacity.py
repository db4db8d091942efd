"""`capacity`: what AWS answered others, through the verb: its screen, and what to paste."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import botocore.session
import pytest
import yaml
from botocore import xform_name

from tests.conftest import ROOT
from tests.operations.clients import shared_client
from tests.operations.conftest import Say
from tests.operations.recorded import ASKED, FIT, ZONE_IDS, Recorded, history, product, regions
from trnspec.experiment import load
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.operations import capacity
from trnspec.operations.cloud import ec2
from trnspec.operations.cloud.aws import Aws


def test_what_aws_answered_others_is_this_screen(
    large: Recorded, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = say("capacity", "experiments/qwen3-32b.yaml")
    assert (code, err) == (0, "")
    shown = Path(__file__).with_name("preflight") / "market.txt"
    assert out == shown.read_text(encoding="utf-8")


def test_the_same_for_a_machine(large: Recorded, file: Path, say: Say) -> None:
    code, out, _ = say("capacity", str(file), "--json")
    answer = json.loads(out)
    rows = answer["rows"]
    assert (code, answer["regions_asked"]) == (0, 4)
    assert [(row["kind"], row["zone"]) for row in rows[:2]] == [
        ("spot", "us-east-2c"),
        ("capacity-block", "ap-south-2b"),
    ]
    assert (rows[0]["rate"]["low_usd"], rows[0]["rate"]["median_usd"]) == (8.9914, 12.9692)
    assert rows[1]["offering"]["usd"] == 308.14
    assert rows[1]["answer"]["hours_billed"] == 8
    assert [row["answer"] for row in rows[-2:]] == [None, None]
    assert answer["not_enabled"] == ["ap-southeast-4"]
    assert "me-south-1" in answer["no_answer"][0]


def test_what_is_pasted_makes_a_file_that_loads(large: Recorded, file: Path, say: Say) -> None:
    spot, block = json.loads(say("capacity", str(file), "--json")[1])["take"]
    assert (spot["row"], spot["command"]) == (1, None)
    order = block["command"].split()
    assert order[:3] == ["aws", "ec2", "purchase-capacity-block"]
    given = dict(zip(order[3::2], order[4::2], strict=True))
    assert given["--capacity-block-offering-id"] == FIT
    shape = botocore.session.get_session().get_service_model("ec2").operation_model("PurchaseCapacityBlock")
    known = {"--" + xform_name(name, "-") for name in shape.input_shape.members}
    assert given.keys() - {"--region"} <= known
    block["cluster"]["capacity"]["reservation_id"] = "cr-0123456789abcdef0"
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    for way in (spot, block):
        file.write_text(
            yaml.safe_dump(data | {"cluster": data["cluster"] | way["cluster"]}), encoding="utf-8"
        )
        assert load(file).cluster.capacity.kind == way["cluster"]["capacity"]["kind"]
    assert spot["cluster"]["availability_zones"] == ["us-east-2c", "us-east-2a"]
    assert block["cluster"]["region"] == "ap-south-2"


SMALL = "experiments/llama-3.1-8b-eagle3.yaml"


@pytest.fixture
def small(recorded: Recorded) -> Recorded:
    """trn2.3xlarge in the three regions that offer it; ap-south-2 sells it neither by spot nor in blocks."""
    name, refused = "trn2.3xlarge", "Unsupported: trn2.3xlarge is not supported for Capacity Blocks"
    home = load(ROOT / SMALL).cluster.region
    regions(recorded, *sorted(ZONE_IDS.keys() - {"us-east-2"}), home=home)
    for region, spot in {
        "ap-south-2": {"SpotPriceHistory": []},
        "ap-southeast-4": history(name, ap_southeast_4c=(2.2687, 2.2579, 3.9655, 6.9846)),
        "sa-east-1": history(
            name, sa_east_1c=(2.5690, 0.9026, 1.5286, 2.5690), sa_east_1b=(7.7264, 7.5653, 7.6626, 7.7483)
        ),
    }.items():
        zones = [f"{region}{letter}" for letter in ("c" if region == "ap-southeast-4" else "abc")]
        recorded.place(region, *zones, instance=name, spot=spot, blocks=[(24, refused)])
    scores = [("ap-southeast-4", "apse4-az3"), ("sa-east-1", "sae1-az2"), ("sa-east-1", "sae1-az3")]
    entries = [{"Region": region, "AvailabilityZoneId": zone, "Score": 1} for region, zone in scores]
    recorded.says(home, "get_spot_placement_scores", {"SpotPlacementScores": entries})
    recorded.says(
        "us-east-1",
        "get_products",
        "AccessDeniedException: not authorized to perform: pricing:GetProducts",
        service="pricing",
    )
    return recorded


def test_what_a_region_does_not_sell_or_answer_is_a_line(small: Recorded, tmp_path: Path, say: Say) -> None:
    shutil.copytree(ROOT / "experiments" / "prompts", tmp_path / "prompts")
    file = Path(shutil.copy(ROOT / SMALL, tmp_path / "llama.yaml"))
    code, out, err = say("capacity", str(file))
    assert code == 0, err
    text = " ".join(out.split())
    for words in (
        "no answer: on-demand prices: pricing:GetProducts in us-east-1: not allowed",
        "ap-south-2: capacity blocks: ec2:DescribeCapacityBlockOfferings in ap-south-2: Unsupported",
        "region: ap-southeast-4 availability_zones: - ap-southeast-4c",
    ):
        assert words in text, out


def test_what_is_pasted_leaves_an_existing_vpc_in_its_region(large: Recorded, file: Path, say: Say) -> None:
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    subnets = {zone: f"subnet-{zone[-1]}1234567" for zone in data["cluster"]["availability_zones"]}
    data["cluster"]["network"] = {"vpc": "vpc-0123456789abcdef0", "private_subnets": subnets}
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    (spot,) = json.loads(say("capacity", str(file), "--json")[1])["take"]
    assert (spot["row"], spot["cluster"]["region"]) == (1, "us-east-2")


def test_a_row_above_the_files_price_or_without_quota_is_not_taken(
    large: Recorded, file: Path, say: Say
) -> None:
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    data["cluster"]["capacity"] = {"kind": "spot", "max_usd_per_hour": 12}
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    answer = json.loads(say("capacity", str(file), "--json")[1])
    assert answer["rows"][0]["obstacle"] == "the price is above max_usd_per_hour, $12"
    assert [way["row"] for way in answer["take"]] == [2]
    (row,) = capacity.rows_of(load(file), MARKET, 2.0)
    assert row.obstacle == "quota 0 vCPUs, needs 192"
    assert capacity._known(load(file), row, 2.0) == f"NOT NOW: {row.obstacle}"


NOWHERE = capacity.RegionOffers(
    region="r",
    zones=("ra",),
    zone_ids={},
    vcpus={"spot": 0, "on-demand": 0},
    quotes=(),
    problems=(),
)
MARKET = capacity.Market(asked_at=ASKED, regions_asked=1, places=(NOWHERE,))


def test_a_type_that_no_region_offers_is_a_finding(recorded: Recorded, file: Path, say: Say) -> None:
    regions(recorded, "us-east-2", home="us-east-2", off=("ap-south-2",))
    recorded.place("us-east-2", instance="trn2.48xlarge", spot={}, blocks=[])
    recorded.says("us-east-1", "get_products", {"PriceList": []}, service="pricing")
    code, out, _ = say("capacity", str(file))
    assert (code, "offered in no region" in out, "Then:" in out) == (1, True, False)
    assert "has not enabled them: ap-south-2; ap-south-2 offered it when others looked" in " ".join(
        out.split()
    )


@pytest.mark.slow
def test_every_region_of_an_account_is_asked_and_what_it_cannot_answer_is_a_line(
    account: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto's account, with what moto models: regions, offerings, zones, quotas and one spot price."""
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    found = capacity.ask(Aws("us-east-2"), instance="trn2.48xlarge", nodes=1, hours=2, now=datetime.now(UTC))
    assert found.regions_asked > 20
    assert "ap-south-2" in found.not_enabled
    (place,) = found.places
    assert (place.region, place.zones) == ("us-east-2", INSTANCES["trn2.48xlarge"].zones["us-east-2"])
    assert place.zone_ids["use2-az3"] == "us-east-2c"
    assert place.vcpus == {"on-demand": 0, "spot": 0}
    assert {quote.kind for quote in place.quotes} == {"spot"}
    assert [line.split(":")[0] for line in place.problems] == ["capacity blocks"]
    assert [line.split(":")[0] for line in found.silent] == ["on-demand prices", "placement scores"]


def test_blocks_are_asked_for_in_what_aws_sells() -> None:
    assert [length for length in ec2.SOLD_H if length >= 2.9 + 1][:2] == [24, 48]
    assert [length for length in ec2.SOLD_H if length >= 23.5 + 1][:2] == [48, 72]
    assert {14 * 24, 21 * 24, 26 * 7 * 24} <= {*ec2.SOLD_H}
    assert 15 * 24 not in ec2.SOLD_H
    assert max(ec2.SOLD_H) == 182 * 24


def test_a_price_counts_for_as_long_as_it_held() -> None:
    course = [
        (ASKED - timedelta(days=40), 3.0),
        (ASKED - timedelta(days=2), 9.0),
        (ASKED - timedelta(hours=1), 1.0),
    ]
    assert ec2.spread(course, now=ASKED) == (1.0, 3.0, 9.0)


def test_on_demand_has_a_price_where_aws_publishes_one(recorded: Recorded) -> None:
    listed = [
        product("trn2.48xlarge", "OnDemand", "40.0", "us-east-2"),
        product("trn2.48xlarge", "OnDemand", "0.0", "r"),
    ]
    recorded.says("us-east-1", "get_products", {"PriceList": listed}, service="pricing")
    found, _ = ec2.on_demand_prices(Aws("us-east-2"), "trn2.48xlarge", now=ASKED)
    assert {region: quote.usd_per_hour for region, quote in found.items()} == {"us-east-2": 40.0}
