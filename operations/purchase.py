"""What `capacity` does to the file, and the purchase of a capacity block."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from core.console import warn
from core.findings import Misuse, Outside, Refusal, State
from core.words import count, listed
from experiment import Experiment
from experiment.cost import idle, per_hour
from operations.cloud import cloudformation
from operations.cloud.aws import Aws, AwsError
from operations.cloud.clock import moment, stamp
from operations.editing import beside, difference, edited, judged
from operations.market import Offer, RegionOffers
from operations.preflight import checklist

_UNBOUGHT = "cr-00000000000000000"
"""Stands for the reservation while the file is judged, before anything is paid."""
_OVER = ("cancelled", "cancelling", "expired", "failed", "payment-failed", "unsupported")
_UNSURE = re.compile(r"|Internal(Error|Failure)|(Service)?Unavailable|RequestTimeout|5\d\d")
"""Codes of an answer after which nobody knows whether the order was taken: none, and errors on AWS's side
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html)."""


def changes(
    experiment: Experiment,
    place: RegionOffers,
    *,
    kind: str,
    zone: str | None,
    offer: Offer | None = None,
    reservation: str = _UNBOUGHT,
) -> dict[str, Any]:
    """What the section `cluster` says of one way of buying; None removes a key.

    Raises `Misuse` where the file's cluster or VPC is in another region.
    """
    cluster = experiment.cluster
    moves = place.region != cluster.region
    if moves and (owned := cluster.existing or cluster.network.vpc):
        raise Misuse(
            f"{owned}: is in {cluster.region}, and so are its nodes; choose a row of that region, or describe another experiment "
            "without cluster.existing and cluster.network.vpc"
        )
    own = () if moves else cluster.availability_zones
    first = zone or next((one for one in own if one in place.zones), place.zones[0])
    zones = dict.fromkeys((first, *own, *place.zones, *sorted(place.zone_ids.values())))
    bought: dict[str, Any] = {"reservation_id": None, "availability_zone": None, "ends_at": None}
    if offer:
        bought = {"reservation_id": reservation, "availability_zone": zone, "ends_at": stamp(offer.ends)}
    if kind != "spot":
        bought["max_usd_per_hour"] = None
    return {
        "region": place.region,
        "availability_zones": [*zones][: len(cluster.availability_zones)],
        "capacity": {"kind": kind, **bought},
    }


def write(path: Path, before: Experiment, aws: Aws, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Write the file; returns the difference, what else must change, and how to go on."""
    old = path.read_text(encoding="utf-8")
    new = edited(old, "cluster", changed)
    with beside(path.resolve(), new) as draft:
        after = judged(path, draft)
        if new != old:
            draft.replace(path.resolve())
    return {
        "diff": difference(path.name, old, new),
        "also": [*_also(path, before, after, aws)],
        "next": [f"./trnspec {verb} {path}" for verb in ("render", "preflight", "deploy")]
        + [f"./trnspec run {path} --wait 12h"],
    }


def _also(path: Path, before: Experiment, after: Experiment, aws: Aws) -> Iterator[str]:
    """What else must change before nodes can be had there, in lines."""
    old, new = before.cluster, after.cluster
    if (left := old.capacity.reservation_id) not in (None, new.capacity.reservation_id):
        yield f"{left} in {old.trn2_zone} is not in the file any more; what was bought stays paid, and a reservation bills until it is cancelled"
    if old.region == new.region:
        if (old.trn2_zone, old.capacity) != (new.trn2_zone, new.capacity):
            yield "another zone or way of buying is another node group: the next deployment replaces it"
        return
    there = aws.elsewhere(new.region)
    checks = {
        "bootstrap": partial(checklist.bootstrap, there),
        "node images": partial(checklist.node_images, after, there),
        "add-ons": partial(checklist.addons, after, there),
    }
    for name, check in checks.items():
        if (found := checklist.run_check(name, check)).state is not State.FINE:
            yield f"{name} in {new.region}: {found.line()}"
    yield f"weights and artifacts stay in buckets of {old.region}: the first run in {new.region} fetches and compiles again"
    try:
        stacks = len(cloudformation.deployed(before, aws))
    except AwsError as error:
        yield f"whether stacks in {old.region} still bill is not known ({error})"
        return
    if stacks:
        copy = path.with_name(f"{path.stem}.{old.region}.yaml")
        yield (
            f"{count(stacks, 'stack')} in {old.region} bill about ${per_hour(idle(before)):.2f} an hour until they are taken down: "
            f"git -C {path.parent} show HEAD:./{path.name} > {copy}, then ./trnspec teardown {copy}"
        )


def refuse_second(path: Path, experiment: Experiment, *, now: datetime) -> None:
    """`Misuse` where the file has a block that has not ended: its id would be lost, and both would be paid."""
    capacity = experiment.cluster.capacity
    if capacity.ends_at and moment(capacity.ends_at) > now:
        raise Misuse(
            f"{path}: has capacity block {capacity.reservation_id}, which is paid until {capacity.ends_at}; use it, or buy another with a "
            "copy of the file that has another name"
        )


def _paid_already(aws: Aws, experiment: Experiment) -> str:
    """Blocks of this experiment in the region that have not ended, in words; empty without one."""
    own = {"Key": cloudformation.TAG, "Value": experiment.name}
    found = [
        f"{one['CapacityReservationId']} ({one['State']})"
        for one in aws.client("ec2").every("describe_capacity_reservations", "CapacityReservations")
        if own in one.get("Tags", ()) and one["State"] not in _OVER
    ]
    return (
        f"{experiment.name} has {listed(found)} in {aws.region} already: this is one more. " if found else ""
    )


def buy(
    path: Path,
    experiment: Experiment,
    aws: Aws,
    place: RegionOffers,
    offer: Offer,
    *,
    zone: str,
    hours: float,
) -> dict[str, Any]:
    """Buy a block once its dollars are typed, and write it into the file, which is judged before anything is paid.

    Raises `Refusal` where they were not typed, and where AWS does not sell.
    """
    said = partial(changes, experiment, place, kind="capacity-block", zone=zone, offer=offer)
    with beside(path.resolve(), edited(path.read_text(encoding="utf-8"), "cluster", said())) as draft:
        judged(path, draft)
    there = aws.elsewhere(place.region, once=True)
    tags = [{"Key": cloudformation.TAG, "Value": experiment.name}]
    order: dict[str, Any] = {
        "CapacityBlockOfferingId": offer.id,
        "InstancePlatform": "Linux/UNIX",
        "TagSpecifications": [{"ResourceType": "capacity-reservation", "Tags": tags}],
    }
    already = _paid_already(there, experiment)
    _try_dry(there, order)
    warn(
        f"{already}{offer.id}: {offer.nodes} x {experiment.instance.name} in {zone} for account {there.account}, from {stamp(offer.starts)} to "
        f"{stamp(offer.ends)}: {offer.hours:g} hours, of which {hours:.1f} are predicted to be used. Deploy before it begins. "
        f"${offer.usd:,.2f} in advance; it cannot be cancelled. DryRun: AWS would take the order."
    )
    print(
        f"Type the dollars, {offer.usd:.2f}, to buy it; anything else leaves it: ",
        end="",
        file=sys.stderr,
        flush=True,
    )
    if sys.stdin.readline().strip().removeprefix("$") != f"{offer.usd:.2f}":
        raise Refusal(f"{offer.id}: not bought, because {offer.usd:.2f} was not typed")
    reservation = _ordered(there, order)
    with suppress(OSError, ValueError):  # a terminal that has gone is no reason to lose the id
        warn(f"bought {reservation}, ${offer.usd:,.2f}")
    try:
        return {"reservation_id": reservation, **write(path, experiment, aws, said(reservation=reservation))}
    except Exception:
        warn(
            f"{reservation} is paid, and {path} does not say so yet; write by hand: cluster: {said(reservation=reservation)}"
        )
        raise


def _try_dry(aws: Aws, order: Mapping[str, Any]) -> None:
    """Raises what AWS would refuse the order with."""
    try:
        aws.client("ec2").purchase_capacity_block(**order, DryRun=True)
    except AwsError as error:
        if error.code != "DryRunOperation":
            raise
    else:
        raise Outside(
            "ec2:PurchaseCapacityBlock: DryRun was not answered as AWS documents it, so nothing is bought"
        )


def _ordered(aws: Aws, order: Mapping[str, Any]) -> str:
    """The id of the reservation. It is asked for once: no token tells AWS that a second order is the same as the first."""
    look = f"aws ec2 describe-capacity-reservations --region {aws.region}"
    not_known = f"whether the block was bought is not known: look ({look}) before you try again"
    try:
        answer = aws.client("ec2").purchase_capacity_block(**order)
        made = answer.get("CapacityReservation") or answer["CapacityReservations"][0]
        return str(made["CapacityReservationId"])
    except AwsError as error:
        if not _UNSURE.fullmatch(error.code):  # AWS refused it
            raise
        raise Outside(f"{error}; {not_known}") from None
    except (KeyError, IndexError):
        raise Outside(f"ec2:PurchaseCapacityBlock: the answer names no reservation; {not_known}") from None
    except KeyboardInterrupt:
        warn(f"interrupted while the order was under way; {not_known}")
        raise
