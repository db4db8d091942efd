"""What is in the account before a rehearsal deploys and after its teardown: listed through the APIs and compared, so that
nothing of somebody else can be changed unseen. And an existing VPC or cluster, put there before."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from core.findings import Refusal
from experiment import load
from lab.aws.moto_models import ACCOUNT, make_cluster
from lab.aws.moto_server import child_environment
from lab.programs import ROOT
from lab.rendered import rendered

_TEAM = "team"
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
    """Number of things that were there before."""
    left: tuple[str, ...]
    """What was not there before."""
    disturbed: tuple[str, ...]
    """What was there before, and is missing or changed."""


def listed(client_of: Callable[[str], Any]) -> dict[str, str]:
    """Everything that the APIs show, as they describe it, by service and name."""
    found = {}
    for service, operation, key, named in _LISTED:
        client = client_of(service)
        pages = client.get_paginator(operation).paginate() if client.can_paginate(operation) else None
        answers = pages or [getattr(client, operation)()]
        for entry in (entry for answer in answers for entry in answer.get(key, ())):
            if named:
                entry.pop("AvailableIpAddressCount", None)  # of a subnet, changes with everybody's addresses
            if not named or entry.get("State") != "deleted":
                name = entry[named] if named else entry
                found[f"{service} {key}: {name}"] = json.dumps(entry, sort_keys=True, default=str)
    for alias in client_of("kms").list_aliases()["Aliases"]:  # AWS's own keys
        found.pop(f"kms Keys: {alias.get('TargetKeyId')}", None)
    eks = client_of("eks")
    for name in eks.list_clusters()["clusters"]:
        cluster = eks.describe_cluster(name=name)["cluster"]
        found[f"eks cluster: {name}"] = json.dumps(cluster, sort_keys=True, default=str)
        for group in eks.list_nodegroups(clusterName=name)["nodegroups"]:
            found[f"eks nodegroup: {name}/{group}"] = group
    return found


def remains(before: Mapping[str, str], after: Mapping[str, str]) -> Remains:
    """What is new, and which of the old is not as it was."""
    disturbed = sorted(name for name, described in before.items() if after.get(name) != described)
    left = sorted(after.keys() - before.keys())
    return Remains(before=len(before), left=tuple(left), disturbed=tuple(disturbed))


def put_there(file: Path, into: str, client_of: Callable[[str], Any], folder: Path) -> tuple[Path, Path]:
    """Make a VPC with a subnet in each zone that the experiment names, and for `cluster` a cluster in it; returns the
    experiment that names them and the parent folder of its manifests, both in `folder`."""
    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    cluster = data.setdefault("cluster", {})
    wanted, ec2 = load(file).cluster, client_of("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.64.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for number, zone in enumerate(dict.fromkeys((*wanted.availability_zones, wanted.trn2_zone))):
        addresses = f"10.64.{16 * number}.0/20"
        subnet = ec2.create_subnet(VpcId=vpc, AvailabilityZone=zone, CidrBlock=addresses)["Subnet"]
        subnets[zone] = subnet["SubnetId"]
    cluster["network"] = {"vpc": vpc, "private_subnets": subnets}
    if into == "cluster":
        cluster.pop("admin_cidrs", None)
        role = f"arn:aws:iam::{ACCOUNT}:role/{_TEAM}"
        properties = {"Name": _TEAM, "Version": wanted.kubernetes, "RoleArn": role}
        _, made = make_cluster(
            {**properties, "ResourcesVpcConfig": {"SubnetIds": [*subnets.values()]}}, client_of
        )
        cluster |= {"existing": _TEAM, "security_group": made["ClusterSecurityGroupId"]}
    written = folder / "experiment.yaml"
    written.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    rendered(written, load(written), folder / "manifests")
    return written, folder / "manifests"


def take_down(file: Path, name: str, *, folder: Path, endpoint: str, region: str) -> None:
    """`./trnspec teardown`, as a process of its own; that a part of the account could not be listed is no failure, because
    moto has no such part. Raises `Refusal`."""
    words = ["teardown", str(file), "--confirm", name, "--account", ACCOUNT, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "operations", *words],
        cwd=ROOT,
        env=child_environment(endpoint=endpoint, region=region),
        capture_output=True,
        text=True,
        check=False,
    )
    (folder / "teardown.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    try:
        answer = json.loads(done.stdout)
        shared = answer["cluster"] or {"ours_left": [], "others_gone": []}
        wrong = [*answer["left"], *shared["ours_left"], *shared["others_gone"]]
    except (ValueError, LookupError):
        wrong = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no answer"]
    if wrong:
        raise Refusal(f"teardown: exit {done.returncode}: {wrong[0]}; --keep DIR keeps the whole log")
