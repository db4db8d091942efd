"""The Trn2 node group: how many nodes it has, how to change that, and the time at which it goes back to 0."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from experiment.naming import cluster_name, neuron_nodegroup, neuron_nodegroups, off_role_name, schedule_group
from operations.aws_errors import AwsError
from operations.clock import stamp
from operations.errors import OperationsError, UsageError

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws

SET_NODEGROUP = "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig"
"""Universal target of EventBridge Scheduler; its input is written in PascalCase, unlike the API's own
(https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html)."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The node group as EKS describes it."""

    name: str
    status: str
    desired: int
    largest: int
    issues: tuple[str, ...]
    """What keeps nodes away, each as `code: message`."""


def read(experiment: Experiment, aws: Aws) -> Group:
    """The Trn2 group; where the file was changed and not deployed, the one that still stands, so that it can be turned
    off. Raises `OperationsError` when there is none."""
    name = neuron_nodegroup(experiment)
    found = _described(experiment, aws, name) or _standing(experiment, aws)
    if found is None:
        raise OperationsError(
            f"node group {name}: none in account {aws.account}, {aws.region}; deploy it (cdk deploy --all), or check "
            "AWS_PROFILE and cluster.region"
        )
    name = found["nodegroupName"]
    scaling = found.get("scalingConfig", {})
    issues = found.get("health", {}).get("issues", ())
    return Group(
        name=name,
        status=found["status"],
        desired=scaling.get("desiredSize", 0),
        largest=scaling.get("maxSize", 0),
        issues=tuple(f"{issue['code']}: {' '.join(issue.get('message', '').split())}" for issue in issues),
    )


def _described(experiment: Experiment, aws: Aws, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = aws.client("eks").describe_nodegroup(
            clusterName=cluster_name(experiment), nodegroupName=name
        )["nodegroup"]
    except AwsError as error:
        if error.code == "ResourceNotFoundException":
            return None
        raise
    return found


def _standing(experiment: Experiment, aws: Aws) -> dict[str, Any] | None:
    """A Trn2 group of this cluster by whatever zone and purchase; while one replaces another, that which has nodes."""
    eks, cluster = aws.client("eks"), cluster_name(experiment)
    try:
        eks.describe_cluster(name=cluster)
    except AwsError as error:
        if error.code == "ResourceNotFoundException":
            return None
        raise
    names = [
        name
        for name in eks.every("list_nodegroups", "nodegroups", clusterName=cluster)
        if name.startswith(neuron_nodegroups(experiment))
    ]
    found = [one for name in names if (one := _described(experiment, aws, name)) is not None]
    return max(found, key=lambda one: one.get("scalingConfig", {}).get("desiredSize", 0), default=None)


def refuse_another(experiment: Experiment, group: Group) -> None:
    """`OperationsError` where the group is not the one that the file describes: it may go down, not up."""
    wanted = neuron_nodegroup(experiment)
    if group.name != wanted:
        raise OperationsError(
            f"node group {group.name}: stands, and the experiment now describes {wanted}; deploy that (cdk deploy --all), "
            "or take the change of cluster.capacity and cluster.availability_zones back"
        )


def set_size(experiment: Experiment, aws: Aws, *, nodes: int, group: Group) -> None:
    """Ask EKS for `nodes`, between 0 and what the experiment allows.

    Raises `UsageError` beyond `cluster.max_nodes` and `OperationsError` while EKS is busy with the group.
    """
    refuse_too_many(experiment, nodes)
    scaling = {"minSize": 0, "desiredSize": nodes, "maxSize": max(nodes, group.largest, 1)}
    try:
        aws.client("eks").update_nodegroup_config(
            clusterName=cluster_name(experiment), nodegroupName=group.name, scalingConfig=scaling
        )
    except AwsError as error:
        if error.code == "ResourceInUseException":
            raise OperationsError(
                f"node group {group.name}: EKS is changing it ({group.status}); wait a minute, then run this again"
            ) from None
        raise


def refuse_too_many(experiment: Experiment, nodes: int) -> None:
    """`UsageError` beyond what the experiment allows."""
    most = experiment.cluster.max_nodes
    if nodes > most:
        raise UsageError(
            f"{nodes} nodes: {experiment.name} allows {most}; raise cluster.max_nodes of the experiment and deploy, or ask "
            f"for at most {most}"
        )


def schedule_off(experiment: Experiment, aws: Aws, *, now: datetime, hours: float, group: Group) -> datetime:
    """Let EventBridge Scheduler set the group to 0 once, `hours` from now; replaces an earlier such schedule."""
    refuse_another(experiment, group)
    at = (now + timedelta(hours=hours)).replace(microsecond=0)
    schedule: dict[str, Any] = {
        "Name": schedule_name(experiment),
        "GroupName": schedule_group(experiment),
        "Description": f"Trn2 nodes of {experiment.name} to 0, whatever happens",
        "ScheduleExpression": f"at({stamp(at).removesuffix('Z')})",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "State": "ENABLED",
        "Target": {
            "Arn": SET_NODEGROUP,
            "RoleArn": f"arn:aws:iam::{aws.account}:role/{off_role_name(experiment)}",
            "Input": json.dumps(off_input(experiment, largest=group.largest)),
            "RetryPolicy": {"MaximumRetryAttempts": 10, "MaximumEventAgeInSeconds": 3600},
        },
    }
    scheduler = aws.client("scheduler")
    try:
        scheduler.create_schedule(**schedule)
    except AwsError as error:
        if error.code == "ConflictException":
            scheduler.update_schedule(**schedule)
        elif error.code == "ResourceNotFoundException":
            raise OperationsError(
                f"schedule group {schedule_group(experiment)}: none, so nothing would set the nodes back to 0 and none are "
                "started; deploy the nodes stack (cdk deploy --all), then run this again"
            ) from None
        else:
            raise
    return at


def scheduled_off(experiment: Experiment, aws: Aws) -> str | None:
    """When the one-time schedule sets the group to 0, e.g. `2026-04-01T12:00:00Z`; nothing without one."""
    try:
        found = aws.client("scheduler").get_schedule(
            Name=schedule_name(experiment), GroupName=schedule_group(experiment)
        )
    except AwsError as error:
        if error.code == "ResourceNotFoundException":
            return None
        raise
    return str(found["ScheduleExpression"]).removeprefix("at(").removesuffix(")") + "Z"


def forget_schedule(experiment: Experiment, aws: Aws) -> None:
    """Remove the one-time schedule, if there is one."""
    try:
        aws.client("scheduler").delete_schedule(
            Name=schedule_name(experiment), GroupName=schedule_group(experiment)
        )
    except AwsError as error:
        if error.code != "ResourceNotFoundException":
            raise


def off_input(experiment: Experiment, *, largest: int) -> dict[str, Any]:
    """What the schedule tells EKS."""
    return {
        "ClusterName": cluster_name(experiment),
        "NodegroupName": neuron_nodegroup(experiment),
        "ScalingConfig": {"MinSize": 0, "DesiredSize": 0, "MaxSize": max(largest, 1)},
    }


def schedule_name(experiment: Experiment) -> str:
    """The one-time schedule."""
    return f"{experiment.name}-scale-to-zero"
