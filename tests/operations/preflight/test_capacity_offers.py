"""The offers of `preflight`: what AWS answered others, as a screen, as JSON, and what to paste."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from botocore import xform_name

from tests.conftest import ROOT
from tests.operations.clients import shared_client
from tests.operations.conftest import Offers, Say
from tests.operations.recorded import ASKED, FIT, Recorded, history, regions
from trnspec.core.findings import State
from trnspec.experiment import load
from trnspec.experiment.catalogue.instances import INSTANCES
from trnspec.operations.cloud import ec2
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.preflight import capacity_offers


def test_what_aws_answered_others_is_this_screen(
    large: Recorded, offers: Offers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shown = Path(__file__).with_name("capacity_offers.txt").read_text(encoding="utf-8")
    assert offers(Path("experiments/qwen3-32b.yaml"))[1] + "\n" == shown


def test_the_same_for_a_machine(large: Recorded, file: Path, offers: Offers) -> None:
    answer, _ = offers(file)
    first, second, *_ = answer["offers"]
    assert answer["regions_asked"] == 4
    assert (first["kind"], first["zone"], first["median_usd"]) == ("spot", "us-east-2c", 12.9692)
    assert (second["kind"], second["zone"], second["id"]) == ("capacity-block", "ap-south-2b", FIT)
    assert second["hours_billed"] == 8
    assert second["usd"] > 308.14, "the block, and what else is billed meanwhile"
    assert answer["not_enabled"] == ["ap-southeast-4"]
    assert "me-south-1" in answer["no_answer"][0]


def test_what_is_pasted_makes_a_file_that_loads(large: Recorded, file: Path, offers: Offers) -> None:
    spot, block = offers(file)[0]["take"]
    assert (spot["row"], spot["command"]) == (1, None)
    order = block["command"].split()
    assert order[:3] == ["aws", "ec2", "purchase-capacity-block"]
    given = dict(zip(order[3::2], order[4::2], strict=True))
    assert given["--capacity-block-offering-id"] == FIT
    shape = botocore.session.get_session().get_service_model("ec2").operation_model("PurchaseCapacityBlock")
    known = {"--" + xform_name(name, "-") for name in shape.input_shape.members}
    assert given.keys() - {"--region"} <= known
    block["cluster"]["capacity"]["reservation_id"] = "cr-0123456789abcdef0"
    for way in (spot, block):
        changed(file, **way["cluster"])
        assert load(file).cluster.capacity.kind == way["cluster"]["capacity"]["kind"]
    assert spot["cluster"]["availability_zones"] == ["us-east-2c", "us-east-2a"]
    assert block["cluster"]["region"] == "ap-south-2"


def changed(file: Path, **cluster: Any) -> None:
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    file.write_text(yaml.safe_dump(data | {"cluster": data["cluster"] | cluster}), encoding="utf-8")


SMALL = "experiments/llama-3.1-8b-eagle3.yaml"


@pytest.fixture
def small(recorded: Recorded) -> Recorded:
    """trn2.3xlarge in the three regions that offer it; ap-south-2 sells it neither by spot nor in blocks."""
    name, refused = "trn2.3xlarge", "Unsupported: trn2.3xlarge is not supported for Capacity Blocks"
    home = load(ROOT / SMALL).cluster.region
    regions(recorded, "ap-south-2", "ap-southeast-4", "sa-east-1", home=home)
    for region, spot in {
        "ap-south-2": {"SpotPriceHistory": []},
        "ap-southeast-4": history(name, ap_southeast_4c=(2.2687, 2.2579, 3.9655, 6.9846)),
        "sa-east-1": history(
            name, sa_east_1c=(2.5690, 0.9026, 1.5286, 2.5690), sa_east_1b=(7.7264, 7.5653, 7.6626, 7.7483)
        ),
    }.items():
        zones = [f"{region}{letter}" for letter in ("c" if region == "ap-southeast-4" else "abc")]
        recorded.place(region, *zones, instance=name, spot=spot, blocks=[(24, refused)])
    return recorded


def test_what_a_region_does_not_sell_or_answer_is_a_line(
    small: Recorded, tmp_path: Path, offers: Offers
) -> None:
    shutil.copytree(ROOT / "experiments" / "prompts", tmp_path / "prompts")
    _, out = offers(Path(shutil.copy(ROOT / SMALL, tmp_path / "llama.yaml")))
    text = " ".join(out.split())
    for words in (
        "ap-south-2: no spot price in 30 days",
        "ap-south-2: Capacity Blocks: ec2:DescribeCapacityBlockOfferings in ap-south-2: Unsupported",
        "region: ap-southeast-4 availability_zones: - ap-southeast-4c - ap-southeast-4a",
    ):
        assert words in text, out


def test_what_is_pasted_leaves_an_existing_vpc_in_its_region(
    large: Recorded, file: Path, offers: Offers
) -> None:
    subnets = {zone: f"subnet-{zone[-1]}1234567" for zone in load(file).cluster.availability_zones}
    changed(file, network={"vpc": "vpc-0123456789abcdef0", "private_subnets": subnets})
    (spot,) = offers(file)[0]["take"]
    assert (spot["row"], spot["cluster"]["region"]) == (1, "us-east-2")


def test_a_row_above_the_files_price_is_not_taken(large: Recorded, file: Path, offers: Offers) -> None:
    changed(file, capacity={"kind": "spot", "max_usd_per_hour": 12})
    answer, text = offers(file)
    assert answer["offers"][0]["obstacle"] == "the price is above max_usd_per_hour, $12"
    assert [way["row"] for way in answer["take"]] == [2]
    assert "NOT NOW" in text


def test_spot_without_quota_is_not_taken(recorded: Recorded, file: Path, offers: Offers) -> None:
    regions(recorded, "us-east-2", home="us-east-2")
    spot = history("trn2.48xlarge", us_east_2c=(14.5593, 8.9914, 12.9692, 15.3679))
    none = [(hours, {"CapacityBlockOfferings": []}) for hours in (24, 48)]
    recorded.place("us-east-2", "us-east-2c", instance="trn2.48xlarge", spot=spot, blocks=none, quota=0)
    answer, _ = offers(file)
    assert answer["offers"][0]["obstacle"] == "quota 0 vCPUs, needs 192"
    assert not answer["take"]


def test_a_type_that_no_region_offers_is_a_finding(recorded: Recorded, file: Path) -> None:
    regions(recorded, "us-east-2", home="us-east-2", off=("ap-south-2",))
    recorded.place("us-east-2", instance="trn2.48xlarge", spot={}, blocks=[])
    found = capacity_offers.ask(load(file), Aws("us-east-2"), now=ASKED)
    assert (found.finding.state, "no enabled region offers" in found.finding.why) == (State.FINDING, True)
    text = " ".join(" ".join(capacity_offers.as_lines(found)).split())
    assert "not enabled in this account: ap-south-2 (known to offer it: ap-south-2)" in text
    assert "Then:" not in text


@pytest.mark.slow
def test_preflight_asks_every_region_of_an_account_and_what_it_cannot_answer_is_a_line(
    account: None, file: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto's account, with what moto models: regions, offerings, zones, quotas and one spot price."""
    monkeypatch.setattr(Aws, "_boto_client", lambda self, service: shared_client(service, self.region))
    code, out, _ = say("preflight", str(file), "--json")
    found = json.loads(out)
    assert (code, found["checks"][-1]["check"]) == (1, "offers")
    assert found["offers"]["regions_asked"] > 20
    assert "ap-south-2" in found["offers"]["not_enabled"]
    (place,) = found["offers"]["regions"]
    assert (place["region"], place["spot_vcpus"]) == ("us-east-2", 0)
    assert tuple(place["zones"]) == INSTANCES["trn2.48xlarge"].zones["us-east-2"]
    assert {offer["kind"] for offer in found["offers"]["offers"]} == {"spot"}
    assert [line.split(":")[0] for line in place["problems"]] == ["Capacity Blocks"]


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
