"""`capacity --buy`: what has to be typed, what is ordered, and what the file says afterwards."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ConnectTimeoutError

from experiment import load
from operations import purchase
from operations.cloud.aws import Aws
from operations.editing import edited
from tests.operations.conftest import Say
from tests.operations.recorded import FIT, LATER, Recorded

RESERVATION = "cr-0a1b2c3d4e5f67890"
NONE: dict[str, Any] = {"CapacityReservations": []}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Somebody who types at a terminal."""

    def typing(text: str) -> None:
        typed = StringIO(f"{text}\n")
        monkeypatch.setattr(typed, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", typed)
        monkeypatch.setattr("core.safe_output.Escaping.isatty", lambda _: True, raising=False)

    return typing


def bought(**more: Any) -> dict[str, Any]:
    made = {
        "CapacityReservationId": RESERVATION,
        "State": "payment-pending",
        "AvailabilityZone": "ap-south-2b",
    }
    return {"CapacityReservation": {**made, **more}}


ORDER = {
    "CapacityBlockOfferingId": FIT,
    "InstancePlatform": "Linux/UNIX",
    "TagSpecifications": [
        {"ResourceType": "capacity-reservation", "Tags": [{"Key": "experiment", "Value": "qwen3-32b"}]}
    ],
}


@pytest.mark.parametrize("named", [FIT, "2"])
def test_a_block_is_bought_once_its_dollars_are_typed_and_written_into_the_file(
    named: str, large: Recorded, file: Path, say: Say, terminal: Callable[[str], None]
) -> None:
    large.says("ap-south-2", "describe_capacity_reservations", NONE)
    large.says(
        "ap-south-2",
        "purchase_capacity_block",
        "DryRunOperation: would have succeeded",
        asked={**ORDER, "DryRun": True},
    )
    large.says("ap-south-2", "purchase_capacity_block", bought(), asked=ORDER)
    large.says("ap-south-2", "get_parameter", {"Parameter": {"Value": "21"}}, service="ssm")
    large.says("ap-south-2", "describe_images", "AccessDenied: no")
    large.says("ap-south-2", "describe_addon_versions", "AccessDeniedException: no", service="eks")
    large.says("us-east-2", "describe_stacks", {"Stacks": []}, service="cloudformation")
    terminal("$308.14")
    code, out, err = say("capacity", str(file), "--buy", named)
    assert code == 0, err
    said = " ".join(err.split())
    assert (
        f"{FIT}: 1 x trn2.48xlarge in ap-south-2b for account 111122223333, from 2026-10-03T03:30:00Z to 2026-10-03T11:30:00Z: 8 hours"
        in said
    )
    assert "$308.14 in advance; it cannot be cancelled" in said
    assert (
        said.index("DryRun")
        < said.index("Type the dollars, 308.14")
        < said.index(f"bought {RESERVATION}, $308.14")
    )
    cluster = load(file).cluster
    assert cluster.capacity.model_dump(exclude_none=True) == {
        "kind": "capacity-block",
        "reservation_id": RESERVATION,
        "availability_zone": "ap-south-2b",
        "ends_at": "2026-10-03T11:30:00Z",
    }
    assert (cluster.region, cluster.availability_zones) == ("ap-south-2", ("ap-south-2b", "ap-south-2a"))
    assert "# Trn2 nodes stand in the first" in file.read_text(encoding="utf-8")
    assert "then: ./trnspec run" in out


@pytest.mark.parametrize("typed", ["", "y", "yes", "308", "308.15"])
def test_nothing_is_bought_where_anything_else_is_typed(
    typed: str, large: Recorded, file: Path, say: Say, terminal: Callable[[str], None]
) -> None:
    before = file.read_text(encoding="utf-8")
    large.says("ap-south-2", "describe_capacity_reservations", NONE)
    large.says(
        "ap-south-2",
        "purchase_capacity_block",
        "DryRunOperation: would have succeeded",
        asked={**ORDER, "DryRun": True},
    )
    terminal(typed)
    code, _, err = say("capacity", str(file), "--buy", FIT)
    assert (code, f"{FIT}: not bought, because 308.14 was not typed" in err) == (1, True)
    assert file.read_text(encoding="utf-8") == before


def test_what_aws_would_refuse_is_said_before_anybody_types(
    large: Recorded, file: Path, say: Say, terminal: Callable[[str], None]
) -> None:
    large.says("ap-south-2", "describe_capacity_reservations", NONE)
    large.says(
        "ap-south-2",
        "purchase_capacity_block",
        "UnauthorizedOperation: You are not authorized",
        asked={**ORDER, "DryRun": True},
    )
    terminal("308.14")
    code, _, err = say("capacity", str(file), "--buy", FIT)
    assert (code, "Type the dollars" in err) == (3, False)
    assert "ec2:PurchaseCapacityBlock in ap-south-2: not allowed" in err


def test_a_block_that_is_gone_is_refused_with_what_there_is(
    large: Recorded, file: Path, say: Say, terminal: Callable[[str], None]
) -> None:
    terminal("308.14")
    code, _, err = say("capacity", str(file), "--buy", "cb-0old")
    assert (code, "--buy cb-0old: is not offered, or not any more; offered now: " in err) == (1, True)
    assert f"{FIT} (row 2, $308.14), {LATER} (row 3, $858.26)" in err


def test_an_order_without_an_answer_is_not_sent_again(
    large: Recorded, file: Path, say: Say, terminal: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS has no token for it: a second order could be a second block."""
    large.says("ap-south-2", "describe_capacity_reservations", NONE)
    large.says(
        "ap-south-2",
        "purchase_capacity_block",
        "DryRunOperation: would have succeeded",
        asked={**ORDER, "DryRun": True},
    )
    sent = []

    def silent(params: dict[str, Any], **_: object) -> None:
        if "DryRun" not in params:
            sent.append(params)
            raise ConnectTimeoutError(endpoint_url="https://ec2.ap-south-2.amazonaws.com/")

    client, _ = large.client("ec2", "ap-south-2")
    client.meta.events.register_first("provide-client-params.ec2.PurchaseCapacityBlock", silent)
    terminal("308.14")
    code, _, err = say("capacity", str(file), "--buy", FIT)
    client.meta.events.unregister("provide-client-params.ec2.PurchaseCapacityBlock", silent)
    assert (code, len(sent)) == (3, 1)
    assert (
        "whether the block was bought is not known: look (aws ec2 describe-capacity-reservations --region ap-south-2)"
        in err
    )
    assert Aws("us-east-2").elsewhere("ap-south-2", once=True)._limits["retries"] == {
        "mode": "standard",
        "total_max_attempts": 1,
    }


@pytest.mark.parametrize(
    "answer",
    [
        "InternalError: An internal error has occurred",
        "Unavailable: try later",
        {},
        {"CapacityReservations": []},
    ],
)
def test_an_answer_that_does_not_say_whether_it_was_bought_is_said_to_be_one(
    answer: Any, large: Recorded, file: Path, say: Say, terminal: Callable[[str], None]
) -> None:
    large.says("ap-south-2", "describe_capacity_reservations", NONE)
    large.says("ap-south-2", "purchase_capacity_block", "DryRunOperation: would have succeeded")
    large.says("ap-south-2", "purchase_capacity_block", answer)
    terminal("308.14")
    code, _, err = say("capacity", str(file), "--buy", FIT)
    assert (code, "whether the block was bought is not known: look" in " ".join(err.split())) == (3, True)


def test_a_block_that_this_experiment_has_already_is_named_before_anybody_types(
    large: Recorded, file: Path, say: Say, terminal: Callable[[str], None]
) -> None:
    """An order whose answer got lost is not in the file, and neither is one whose file could not be written."""
    own = {"State": "payment-pending", "Tags": [{"Key": "experiment", "Value": "qwen3-32b"}]}
    others = [
        {**own, "CapacityReservationId": "cr-old", "State": "expired"},
        {"CapacityReservationId": "cr-x", "State": "active"},
    ]
    known = {"CapacityReservations": [{**own, "CapacityReservationId": RESERVATION}, *others]}
    large.says("ap-south-2", "describe_capacity_reservations", known)
    large.says("ap-south-2", "purchase_capacity_block", "DryRunOperation: would have succeeded")
    terminal("")
    code, _, err = say("capacity", str(file), "--buy", FIT)
    said = f"qwen3-32b has {RESERVATION} (payment-pending) in ap-south-2 already: this is one more."
    assert (code, said in " ".join(err.split())) == (1, True)


def test_no_second_block_is_bought_for_a_file_whose_block_has_not_ended(
    large: Recorded, file: Path, say: Say, terminal: Callable[[str], None]
) -> None:
    block = "{kind: capacity-block, reservation_id: cr-0123456789abcdef0, availability_zone: us-east-2a, ends_at: %s}"
    whole = edited(
        file.read_text(encoding="utf-8"),
        "cluster",
        {"capacity": yaml.safe_load(block % '"2026-10-03T11:30:00Z"')},
    )
    file.write_text(whole, encoding="utf-8")
    terminal("308.14")
    code, _, err = say("capacity", str(file), "--buy", FIT)
    said = "has capacity block cr-0123456789abcdef0, which is paid until 2026-10-03T11:30:00Z; use it"
    assert (code, said in " ".join(err.split())) == (2, True)
    code, out, _ = say("capacity", str(file), "--write")
    assert (
        code,
        "also: cr-0123456789abcdef0 in us-east-2a is not in the file any more" in " ".join(out.split()),
    ) == (0, True)


def test_a_terminal_that_goes_away_after_the_order_does_not_lose_the_id(
    large: Recorded, file: Path, say: Say, terminal: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    large.says("ap-south-2", "describe_capacity_reservations", NONE)
    large.says("ap-south-2", "purchase_capacity_block", "DryRunOperation: would have succeeded")
    large.says("ap-south-2", "purchase_capacity_block", bought())
    large.says("ap-south-2", "get_parameter", {"Parameter": {"Value": "21"}}, service="ssm")
    large.says("us-east-2", "describe_stacks", {"Stacks": []}, service="cloudformation")
    terminal("308.14")

    def gone(text: str) -> None:
        if text.startswith("bought"):
            raise BrokenPipeError

    monkeypatch.setattr(purchase, "warn", gone)
    assert say("capacity", str(file), "--buy", FIT)[0] == 0
    assert load(file).cluster.capacity.reservation_id == RESERVATION
