"""Whether there will be Trn2 nodes where the experiment wants them: quotas, what EC2 offers, the reservation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from core.findings import Finding, finding, fine
from experiment import Experiment
from experiment.cost import SYSTEM_NODES
from infra.off_schedules import BEFORE_BLOCK_ENDS
from operations.cloud.aws import Aws
from operations.cloud.clock import moment, stamp

TRN_QUOTA = "L-2C3B7624"
"""`Running On-Demand Trn instances`, in vCPUs: the code that `aws service-quotas list-service-quotas --service-code ec2`
prints for it, as recorded in several public listings of accounts."""
STANDARD_QUOTA = "L-1216C47A"
"""`Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances`, in vCPUs; new accounts begin with 5
(https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html)."""
STANDARD_VCPUS = SYSTEM_NODES * 4 + 2
"""Of the system nodes and the way in."""


def quota(experiment: Experiment, aws: Aws) -> Finding:
    """vCPUs of Trn instances that may run on demand. Capacity blocks do not count against it
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html)."""
    cluster = experiment.cluster
    if cluster.capacity.kind == "capacity-block":
        return fine("a capacity block does not count against the on-demand quota")
    need, of = experiment.instance.vcpus * cluster.max_nodes, f"{cluster.max_nodes} x {cluster.instance} need"
    return _vcpus(aws, code=TRN_QUOTA, need=need, what="Trn", of=of)


def system_quota(aws: Aws) -> Finding:
    """vCPUs of the instances beside the Trn2 nodes, whatever else of the account runs."""
    of = "system nodes and the bastion need"
    return _vcpus(aws, code=STANDARD_QUOTA, need=STANDARD_VCPUS, what="standard", of=of)


def _vcpus(aws: Aws, *, code: str, need: int, what: str, of: str) -> Finding:
    found = aws.client("service-quotas").find(
        "get_service_quota", "NoSuchResourceException", ServiceCode="ec2", QuotaCode=code
    )
    have = float(found["Quota"]["Value"]) if found else 0.0  # an account that never had a value applied
    told = f"{have:g} vCPUs for running on-demand {what} instances, {of} {need}"
    if have >= need:
        return fine(told)
    return finding(
        told,
        f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} "
        f"--desired-value {need} --region {aws.region}",
    )


def offered(experiment: Experiment, aws: Aws) -> Finding:
    """Whether EC2 has the instance type in the zone."""
    instance, zone = experiment.instance.name, experiment.cluster.trn2_zone
    zones = sorted(
        entry["Location"]
        for entry in aws.client("ec2").every(
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [instance]}],
        )
    )
    if zone in zones:
        return fine(f"{instance} is offered in {zone}")
    if zones:
        why = f"{instance} is offered in {', '.join(zones)}, not in {zone}"
        return finding(why, f"begin cluster.availability_zones with {zones[0]}")
    return finding(
        f"{instance} is not offered in {aws.region}",
        "change cluster.region and cluster.availability_zones; "
        f"`aws ec2 describe-instance-type-offerings --filters Name=instance-type,Values={instance} --region ...` lists the zones",
    )


def reserved(experiment: Experiment, aws: Aws, *, now: datetime) -> Finding:
    """Whether the reservation stands, fits, and for how long."""
    capacity = experiment.cluster.capacity
    if capacity.reservation_id is None:
        return fine("on demand: capacity is known only when nodes are started")
    codes = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
    answer = aws.client("ec2").find(
        "describe_capacity_reservations", *codes, CapacityReservationIds=[capacity.reservation_id]
    )
    if not answer or not answer["CapacityReservations"]:
        why = f"{capacity.reservation_id}: no such reservation in account {aws.account}, {aws.region}"
        return finding(why, "check cluster.capacity.reservation_id, AWS_PROFILE and cluster.region")
    return _judged(experiment, answer["CapacityReservations"][0], now=now)


def _judged(experiment: Experiment, found: dict[str, Any], *, now: datetime) -> Finding:
    """What does not fit, else until when it stands."""
    cluster, name = experiment.cluster, found["CapacityReservationId"]
    if found["InstanceType"] != cluster.instance:
        why = f"{name} reserves {found['InstanceType']}, the experiment wants {cluster.instance}"
        return finding(why, "name another reservation in cluster.capacity.reservation_id")
    if (zone := found["AvailabilityZone"]) != cluster.trn2_zone:
        why = f"{name} is in {zone}, the experiment in {cluster.trn2_zone}"
        return finding(why, f"set cluster.capacity.availability_zone to {zone}")
    if found["State"] in ("scheduled", "payment-pending", "pending", "assessing"):
        starts = found.get("StartDate")
        why = f"{name} is {found['State']}" + (f" and starts at {stamp(starts)}" if starts else "")
        return finding(why, "start nodes after that; deploying with 0 nodes works before")
    if found["State"] != "active":
        return finding(f"{name} is {found['State']}", "buy another one and name it in cluster.capacity")
    ends = found.get("EndDate")
    if ends is not None and ends.astimezone(UTC) - BEFORE_BLOCK_ENDS <= now:
        return finding(f"{name} ends at {stamp(ends)}", "buy another block, or extend this one")
    if (wrong := _wrong_end(experiment, ends)) is not None:
        return wrong
    if (count := found["TotalInstanceCount"]) < cluster.max_nodes:
        why = f"{name} has {count} instances, cluster.max_nodes is {cluster.max_nodes}"
        return finding(why, f"set cluster.max_nodes to {count}")
    if ends is None:
        return fine(f"{name} is active")
    hours = (ends.astimezone(UTC) - now) / timedelta(hours=1)
    return fine(f"{name} is active until {stamp(ends)}, {hours:.1f} hours from now")


def _wrong_end(experiment: Experiment, ends: datetime | None) -> Finding | None:
    """The scale-down before the end of a block is deployed from the file, so the file must be right."""
    written = experiment.cluster.capacity.ends_at
    if written is None or (ends is not None and moment(written) == ends.astimezone(UTC)):
        return None
    told = stamp(ends) if ends else "no end"
    remedy = f"write ends_at: {told!r} and deploy again" if ends else "remove cluster.capacity.ends_at"
    return finding(f"EC2 says {told}, cluster.capacity.ends_at says {written}", remedy)
