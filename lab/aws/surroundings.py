"""What a rehearsal finds in the account before it deploys, and what the teardown leaves there: listed through the APIs and
compared, so that nothing of somebody else can be changed unseen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from core.findings import Refusal
from experiment import Experiment, load
from lab.aws.assembly import ACCOUNT
from lab.aws.moto_models import make_cluster
from lab.aws.moto_server import child_environment
from lab.programs import ROOT
from lab.rendered import rendered

_TEAM = "team"
_ADDRESSES = "10.64.{}.0/20"
_LISTED = (
    ("cloudformation", "describe_stacks", "Stacks", "StackName"),
    ("ec2", "describe_vpcs", "Vpcs", "VpcId"),
    ("ec2", "describe_subnets", "Subnets", "SubnetId"),
    ("ec2", "describe_route_tables", "RouteTables", "RouteTableId"),
    ("ec2", "describe_nat_gateways", "NatGateways", "NatGatewayId"),
    ("ec2", "describe_security_groups", "SecurityGroups", "GroupId"),
    ("ec2", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateName"),
    ("eks", "list_clusters", "clusters", ""),
    ("iam", "list_roles", "Roles", "RoleName"),
    ("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    ("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"),
    ("logs", "describe_log_groups", "logGroups", "logGroupName"),
    ("lambda", "list_functions", "Functions", "FunctionName"),
    ("s3", "list_buckets", "Buckets", "Name"),
    ("kms", "list_keys", "Keys", "KeyId"),
    ("sns", "list_topics", "Topics", "TopicArn"),
    ("sqs", "list_queues", "QueueUrls", ""),
    ("scheduler", "list_schedule_groups", "ScheduleGroups", "Name"),
    ("scheduler", "list_schedules", "Schedules", "Name"),
    ("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    ("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
)
"""Service, operation, key of the answer, and what names an entry of it."""


@dataclass(frozen=True, kw_only=True)
class Remains:
    """The account after the teardown against the account before the deployment."""

    before: int
    """How many things there were."""
    left: tuple[str, ...]
    """What was not there before."""
    disturbed: tuple[str, ...]
    """What was there before, and is gone or another."""


def listed(client_of: Callable[[str], Any]) -> dict[str, str]:
    """Everything that the APIs show, as they describe it, by service and name."""
    found = {}
    for service, operation, key, named in _LISTED:
        client = client_of(service)
        pages = client.get_paginator(operation).paginate() if client.can_paginate(operation) else None
        answers = pages or [getattr(client, operation)()]
        for one in (one for page in answers for one in page.get(key, ())):
            name = one[named] if named else one
            if not named or _counts(one):
                found[f"{service} {key}: {name}"] = json.dumps(one, sort_keys=True, default=str)
    for one in client_of("kms").list_aliases()["Aliases"]:  # AWS's own keys
        found.pop(f"kms Keys: {one.get('TargetKeyId')}", None)
    eks = client_of("eks")
    for cluster in eks.list_clusters()["clusters"]:
        told = eks.describe_cluster(name=cluster)["cluster"]
        found[f"eks cluster: {cluster}"] = json.dumps(told, sort_keys=True, default=str)
        for name in eks.list_nodegroups(clusterName=cluster)["nodegroups"]:
            found[f"eks nodegroup: {cluster}/{name}"] = name
    return found


def _counts(told: dict[str, Any]) -> bool:
    """Whether it is still there; how many addresses of a subnet are free is nobody's property."""
    told.pop("AvailableIpAddressCount", None)
    return told.get("State") != "deleted"


def remains(before: Mapping[str, str], after: Mapping[str, str]) -> Remains:
    """What is new, and what of the old is not as it was."""
    disturbed = sorted(name for name, told in before.items() if after.get(name) != told)
    return Remains(
        before=len(before), left=tuple(sorted(after.keys() - before.keys())), disturbed=tuple(disturbed)
    )


def put_there(file: Path, into: str, client_of: Callable[[str], Any], folder: Path) -> tuple[Path, Path]:
    """Make a VPC, and for `cluster` a cluster in it; returns the experiment that names them and the parent folder of its
    manifests, both in `folder`."""
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    cluster = data.setdefault("cluster", {})
    experiment = load(file)
    vpc, subnets = _network(experiment, client_of("ec2"))
    cluster["network"] = {"vpc": vpc, "private_subnets": subnets}
    if into == "cluster":
        cluster.pop("admin_cidrs", None)
        told: dict[str, Any] = {"Name": _TEAM, "Version": experiment.cluster.kubernetes}
        told["RoleArn"] = f"arn:aws:iam::{ACCOUNT}:role/{_TEAM}"
        told["ResourcesVpcConfig"] = {"SubnetIds": [*subnets.values()]}
        _, made = make_cluster(told, client_of)
        cluster |= {"existing": _TEAM, "security_group": made["ClusterSecurityGroupId"]}
    written = folder / "experiment.yaml"
    written.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    rendered(written, load(written), folder / "manifests")
    return written, folder / "manifests"


def _network(experiment: Experiment, ec2: Any) -> tuple[str, dict[str, str]]:
    """A VPC with a subnet in each zone that the experiment names."""
    vpc = ec2.create_vpc(CidrBlock="10.64.0.0/16")["Vpc"]["VpcId"]
    zones = dict.fromkeys((*experiment.cluster.availability_zones, experiment.cluster.trn2_zone))
    subnets = {
        zone: ec2.create_subnet(VpcId=vpc, AvailabilityZone=zone, CidrBlock=_ADDRESSES.format(16 * number))
        for number, zone in enumerate(zones)
    }
    return vpc, {zone: made["Subnet"]["SubnetId"] for zone, made in subnets.items()}


def take_down(file: Path, name: str, *, folder: Path, endpoint: str, region: str) -> None:
    """`./trnspec teardown`, as a process of its own; that a part of the account could not be listed is no failure, because
    moto has no such part. Raises `Refusal`."""
    words = ["teardown", str(file), "--confirm", name, "--account", ACCOUNT, "--json"]
    command = [sys.executable, "-m", "operations", *words]
    environment = child_environment(os.environ, endpoint=endpoint, region=region)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    (folder / "teardown.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    try:
        told = json.loads(done.stdout)
        shared = told["cluster"] or {"ours_left": [], "others_gone": []}
        wrong = [*told["left"], *shared["ours_left"], *shared["others_gone"]]
    except (ValueError, LookupError):
        wrong = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no answer"]
    if wrong:
        raise Refusal(f"teardown: exit {done.returncode}: {wrong[0]}; --keep DIR keeps the whole log")
