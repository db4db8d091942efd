"""What EC2 gives an experiment: quotas of vCPUs, the instance type in the zone, and the nodes as the file buys them."""

from __future__ import annotations

from datetime import datetime, timedelta

from infra.scale_to_zero_schedules import BEFORE_BLOCK_ENDS
from trnspec.core.findings import Finding, finding, fine
from trnspec.experiment import Experiment
from trnspec.experiment.cost import SYSTEM_NODES
from trnspec.operations.cloud import ec2
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import moment, stamp

STANDARD_VCPUS = SYSTEM_NODES * 4 + 2
"""vCPUs of the system nodes and the bastion."""


def quota(experiment: Experiment, aws: Aws) -> Finding:
    """Check the quota of vCPUs for Trn instances, on demand or by spot. Capacity blocks do not count against either
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html)."""
    cluster = experiment.cluster
    if cluster.capacity.kind == "capacity-block":
        return fine("a capacity block does not count against the on-demand quota")
    verb = "needs" if cluster.max_nodes == 1 else "need"
    user = f"{cluster.max_nodes} x {cluster.instance} {verb}"
    need = experiment.instance.vcpus * cluster.max_nodes
    if cluster.capacity.kind == "spot":
        return _vcpus(aws, ec2.SPOT_QUOTA, need, f"Trn spot instances, {user}")
    return _vcpus(aws, ec2.TRN_QUOTA, need, f"on-demand Trn instances, {user}")


def system_quota(aws: Aws) -> Finding:
    """Check the quota of vCPUs for system nodes and bastion, without regard to other instances of the account."""
    what = "on-demand standard instances, system nodes and the bastion need"
    return _vcpus(aws, ec2.STANDARD_QUOTA, STANDARD_VCPUS, what)


def _vcpus(aws: Aws, code: str, need: int, what: str) -> Finding:
    have = ec2.vcpu_quota(aws, code)
    why = f"{have:g} vCPUs for running {what} {need}"
    raise_it = f"--quota-code {code} --desired-value {need} --region {aws.region}"
    command = f"aws service-quotas request-service-quota-increase --service-code ec2 {raise_it}"
    return fine(why) if have >= need else finding(why, command)


def instance_offered(experiment: Experiment, aws: Aws) -> Finding:
    """Check that EC2 offers the instance type in the zone."""
    instance, zone = experiment.instance.name, experiment.cluster.trn2_zone
    zones = ec2.zones_with(aws, instance)
    if zone in zones:
        return fine(f"{instance} is offered in {zone}")
    if zones:
        why = f"{instance} is offered in {', '.join(zones)}, not in {zone}"
        return finding(why, f"begin cluster.availability_zones with {zones[0]}")
    command = f"aws ec2 describe-instance-type-offerings --filters Name=instance-type,Values={instance} --region ..."
    remedy = f"change cluster.region and cluster.availability_zones; `{command}` lists the zones"
    return finding(f"{instance} is not offered in {aws.region}", remedy)


def capacity(experiment: Experiment, aws: Aws, *, now: datetime) -> Finding:
    """Check that the reservation exists, matches, and how long it lasts; for spot, check the current price."""
    cluster, name = experiment.cluster, experiment.cluster.capacity.reservation_id
    if cluster.capacity.kind == "spot":
        return _by_spot(experiment, aws, now=now)
    if name is None:
        return fine("on demand: only a start shows whether EC2 has a node")
    if (found := ec2.reservation(aws, name)) is None:
        why = f"{name}: no such reservation in account {aws.account}, {aws.region}"
        return finding(why, "check cluster.capacity.reservation_id, AWS_PROFILE and cluster.region")
    if found.instance != cluster.instance:
        why = f"{name} reserves {found.instance}, the experiment wants {cluster.instance}"
        return finding(why, "name another reservation in cluster.capacity.reservation_id")
    if found.zone != cluster.trn2_zone:
        why = f"{name} is in {found.zone}, the experiment in {cluster.trn2_zone}"
        return finding(why, f"begin cluster.availability_zones with {found.zone}")
    if found.state in ("scheduled", "payment-pending", "pending", "assessing"):
        starts = f" and starts at {stamp(found.starts)}" if found.starts else ""
        why = f"{name} is {found.state}{starts}"
        return finding(why, "start nodes after that; deploying with 0 nodes works before")
    if found.state != "active":
        return finding(f"{name} is {found.state}", "buy another one and name it in cluster.capacity")
    ends = found.ends
    if ends is not None and ends - BEFORE_BLOCK_ENDS <= now:
        return finding(f"{name} ends at {stamp(ends)}", "buy another block, or extend this one")
    written = cluster.capacity.ends_at  # the scale-down before the end of a block is deployed from the file
    if written is not None and (ends is None or moment(written) != ends):
        remedy = "remove cluster.capacity.ends_at"
        if ends is not None:
            remedy = f"write ends_at: {stamp(ends)!r} and deploy again"
        why = f"EC2 says {stamp(ends) if ends else 'no end'}, cluster.capacity.ends_at says {written}"
        return finding(why, remedy)
    if found.instances < cluster.max_nodes:
        why = f"{name} has {found.instances} instances, cluster.max_nodes is {cluster.max_nodes}"
        return finding(why, f"set cluster.max_nodes to {found.instances}")
    until = f" until {stamp(ends)}, {(ends - now) / timedelta(hours=1):.1f} hours from now" if ends else ""
    return fine(f"{name} is active{until}")


def _by_spot(experiment: Experiment, aws: Aws, *, now: datetime) -> Finding:
    cluster = experiment.cluster
    usd = ec2.spot_price(aws, cluster.instance, cluster.trn2_zone, now=now)
    if usd is None:
        why = f"EC2 has no spot price for {cluster.instance} in {cluster.trn2_zone}"
        return finding(why, "begin cluster.availability_zones with a zone that has one (offers, below)")
    why = f"by spot a {cluster.instance} costs ${usd:.2f} per hour in {cluster.trn2_zone}"
    maximum = cluster.capacity.max_usd_per_hour
    if maximum is not None and usd > maximum:
        remedy = "wait, use another zone (offers, below), or raise cluster.capacity.max_usd_per_hour"
        return finding(f"{why}, more than max_usd_per_hour {maximum:g}", remedy)
    return fine(f"{why}; whether one is there is known only when nodes are started")
