"""The Trn2 node group: how many nodes it has, what keeps them from starting now, and the time at which it goes back to 0.

EKS shows an issue of a node group until a node has started, also at 0 nodes (https://github.com/aws/containers-roadmap/issues/2326), and
does not say since when. EC2 Auto Scaling says when each launch began and how it ended
(https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_Activity.html).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from infra.scale_to_zero_schedules import AGAIN_AFTER, block_over, next_off
from trnspec.benchmark.metrics import RUN_ACTIVE
from trnspec.core.findings import Finding, Misuse, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, naming
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.cloud.cloudformation import deploy_command, not_deployed

_LAUNCH = "AsgInstanceLaunchFailures"
_ENDED = ("Successful", "Failed", "Cancelled")
_OLD = "an earlier request failed so; EKS shows this until a node has started"
_NONE = re.compile(
    r"insufficient\w*capacity|not have sufficient\b.{0,40}\bcapacity|unfulfillablecapacity|no spot capacity|reservationcapacityexceeded",
    re.I,
)
"""Messages of EC2 about a launch without capacity
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html)."""
_ABSENT = "ResourceNotFoundException"
_BUY = "buy or extend a block, set cluster.capacity and deploy"


@dataclass(frozen=True, kw_only=True)
class Group:
    """The node group as EKS describes it."""

    name: str
    arn: str
    status: str
    desired: int
    largest: int
    issues: tuple[str, ...] = ()
    """Problems that EKS shows, each as `code: message`, also old ones: `current_issue` says which count."""
    scaling_groups: tuple[str, ...] = ()
    """Names of its Auto Scaling groups."""


def current_issue(group: Group, aws: Aws, *, since: datetime | None = None) -> str | None:
    """Return the issue that keeps nodes from starting, None if none does.

    `since` is the time of the request for nodes. An issue counts if the newest launch since then failed. It does not count while a
    launch is under way or after one that succeeded: that node boots. Issues that prevent any launch (a missing permission) count
    while there is no launch.
    """
    if not (group.issues and group.desired):
        return None
    launches = [one for one in _launches(group, aws) if since is None or one["StartTime"] >= since]
    if not launches:
        return next((issue for issue in group.issues if not issue.startswith(_LAUNCH)), None)
    newest = max(launches, key=lambda one: one["StartTime"])
    if newest["StatusCode"] == "Successful" or any(one["StatusCode"] not in _ENDED for one in launches):
        return None
    return " ".join(str(newest.get("StatusMessage") or newest["Description"]).split())


def shown_issues(group: Group, aws: Aws) -> list[str]:
    """Return the issues that EKS shows; where they are about an earlier request, they say so."""
    if (now := current_issue(group, aws)) is not None:
        return [now]
    return [f"{issue} ({_OLD})" for issue in group.issues]


def _launches(group: Group, aws: Aws) -> list[dict[str, Any]]:
    """Return the latest launches of instances. The first page is enough: it begins with what is under way and what is newest."""
    asked = aws.client("autoscaling").describe_scaling_activities
    found = (one for name in group.scaling_groups for one in asked(AutoScalingGroupName=name)["Activities"])
    return [one for one in found if not one["Description"].startswith("Terminating")]


def is_no_capacity(issue: str) -> bool:
    """Return whether EC2 has no capacity for the instance type."""
    return _NONE.search(issue) is not None


class BusyError(Refusal):
    """EKS is changing the group and accepts no other change until it has finished."""


def fallback_group(experiment: Experiment) -> Group:
    """Return the group of the file with its maximum nodes, so that it can be turned off without asking EKS."""
    name, most = naming.neuron_nodegroup(experiment), experiment.cluster.max_nodes
    return Group(name=name, arn="", status="unknown", desired=most, largest=most)


def read(experiment: Experiment, aws: Aws) -> Group:
    """Return the Trn2 group; if the file was changed and not deployed, the one that still exists, so that it can be turned
    off. Raises `Refusal` if neither exists."""
    name = naming.neuron_nodegroup(experiment)
    found = _described(experiment, aws, name) or _existing(experiment, aws)
    if found is None:
        raise not_deployed(f"node group {name}", experiment, aws)
    scaling, issues = found.get("scalingConfig", {}), found.get("health", {}).get("issues", ())
    return Group(
        name=found["nodegroupName"],
        arn=found["nodegroupArn"],
        status=found["status"],
        desired=scaling.get("desiredSize", 0),
        largest=scaling.get("maxSize", 0),
        issues=tuple(f"{issue['code']}: {' '.join(issue.get('message', '').split())}" for issue in issues),
        scaling_groups=tuple(one["name"] for one in found.get("resources", {}).get("autoScalingGroups", ())),
    )


def _described(experiment: Experiment, aws: Aws, name: str) -> dict[str, Any] | None:
    asked = {"clusterName": naming.cluster_name(experiment), "nodegroupName": name}
    found = aws.client("eks").find("describe_nodegroup", _ABSENT, **asked)
    return found["nodegroup"] if found else None


def _existing(experiment: Experiment, aws: Aws) -> dict[str, Any] | None:
    """Return a Trn2 group of this cluster, with any zone and purchase option; while one replaces another, the one that has nodes."""
    eks, cluster = aws.client("eks"), naming.cluster_name(experiment)
    if eks.find("describe_cluster", _ABSENT, name=cluster) is None:
        return None
    names = list(eks.paginate("list_nodegroups", "nodegroups", clusterName=cluster))
    own = [name for name in names if name.startswith(naming.neuron_nodegroups(experiment))]
    found = [one for name in own if (one := _described(experiment, aws, name)) is not None]
    return max(found, key=lambda one: one.get("scalingConfig", {}).get("desiredSize", 0), default=None)


def check_deployed(experiment: Experiment, group: Group) -> None:
    """Raise `Refusal` if the group is not the one that the file describes: it may be scaled down, not up."""
    if group.name != (wanted := naming.neuron_nodegroup(experiment)):
        back = "take the change of cluster.capacity and cluster.availability_zones back"
        why = f"exists, and the experiment now describes {wanted}"
        remedy = f"deploy that ({deploy_command(experiment)}), or {back}"
        raise Refusal(Finding(f"node group {group.name}", None, why, remedy))


def set_size(experiment: Experiment, aws: Aws, *, nodes: int, group: Group) -> None:
    """Set the group to `nodes`, from 0 to the maximum of the experiment.

    Raises `Misuse` beyond `cluster.max_nodes` and `BusyError` while EKS is changing the group.
    """
    check_maximum(experiment, nodes)
    scaling = {"minSize": 0, "desiredSize": nodes, "maxSize": max(nodes, group.largest, 1)}
    which = {"clusterName": naming.cluster_name(experiment), "nodegroupName": group.name}
    try:
        aws.client("eks").update_nodegroup_config(**which, scalingConfig=scaling)
    except AwsError as error:
        if error.code != "ResourceInUseException":
            raise
        why, remedy = f"EKS is changing it ({group.status})", "wait a minute, then run this again"
        raise BusyError(Finding(f"node group {group.name}", None, why, remedy)) from None


def check_maximum(experiment: Experiment, nodes: int) -> None:
    """Raise `Misuse` above the maximum of the experiment."""
    if nodes > (maximum := experiment.cluster.max_nodes):
        asked, remedy = count(nodes, "node"), "raise cluster.max_nodes of the experiment and deploy"
        raise Misuse(f"{asked}: {experiment.name} allows {maximum}; {remedy}, or ask for at most {maximum}")


def off_next(experiment: Experiment, aws: Aws, *, now: datetime) -> datetime:
    """Return when the deployed schedules set the group to 0, for any rental: at the daily hour, or before the capacity
    block ends.

    Raises `Refusal` where no schedule could act, and where the block is over.
    """
    expression = _daily(experiment, aws)["ScheduleExpression"]
    try:
        off = min(filter(None, (next_off(expression, now=now), block_over(experiment))))
    except ValueError:
        where, remedy = f"schedule {naming.daily_schedule(experiment)}", deploy_command(experiment)
        why = f"acts at {expression}, which no deployment set"
        raise _endless(where, why, f"delete it, then {remedy}") from None
    if off <= now:
        capacity = experiment.cluster.capacity
        why = f"ends at {capacity.ends_at}, and its nodes are taken away from an hour before"
        raise Refusal(Finding(f"capacity block {capacity.reservation_id}", None, why, _BUY))
    return off


def check_time(experiment: Experiment, *, off: datetime, now: datetime, needs_h: float) -> None:
    """Raise `Refusal` if the schedules set the nodes to 0 before `hours` are over."""
    if now + timedelta(hours=needs_h) <= off:
        return
    cluster, fit = experiment.cluster, int((off - now) / timedelta(minutes=6) - 0.5) / 10
    later = f"start it after {off + AGAIN_AFTER:%H:%M} UTC, or change cluster.off_at_utc, render and deploy"
    keeps = f"; or give --hours {fit}: a later run continues it" if fit > 0 else ""
    why = (
        f"the nodes are set to 0 at {stamp(off)} ({cluster.off_when}), and {needs_h:.1f} Trn2 hours are predicted, until "
        f"{stamp(now + timedelta(hours=needs_h))}"
    )
    raise Refusal(Finding(experiment.name, None, why, (_BUY if cluster.capacity.ends_at else later) + keeps))


def schedule_off(
    experiment: Experiment, aws: Aws, *, now: datetime, hours: float, group: Group, needs_h: float = 0.0
) -> datetime:
    """Let EventBridge Scheduler set the group to 0 once, `hours` from now or with the deployed schedules, whichever is first;
    replaces an earlier such schedule.

    Raises `Refusal` where the schedule could not act, or acts before `needs_h` are over, so that no node is started.
    """
    check_deployed(experiment, group)
    target, off = _daily(experiment, aws)["Target"], off_next(experiment, aws, now=now)
    check_time(experiment, off=off, now=now, needs_h=needs_h)
    _prove_allowed(experiment, target["RoleArn"], group, aws)
    at = min((now + timedelta(hours=hours)).replace(microsecond=0), off)
    schedule: dict[str, Any] = {
        "Name": schedule_name(experiment),
        "GroupName": naming.schedule_group(experiment),
        "Description": f"Trn2 nodes of {experiment.name} to 0, whatever happens",
        "ScheduleExpression": f"at({stamp(at).removesuffix('Z')})",
        "ScheduleExpressionTimezone": "UTC",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "State": "ENABLED",
        "Target": {**target, "RetryPolicy": {"MaximumRetryAttempts": 10, "MaximumEventAgeInSeconds": 3600}},
    }
    scheduler = aws.client("scheduler")
    try:
        # Refused where Scheduler may not take on the role
        # (https://docs.aws.amazon.com/scheduler/latest/UserGuide/setting-up.html#setting-up-execution-role).
        scheduler.create_schedule(**schedule)
    except AwsError as error:
        if error.code != "ConflictException":
            raise
        scheduler.update_schedule(**schedule)
    return at


def _endless(where: str, why: str, remedy: str) -> Refusal:
    why = f"{why}, so nothing would set the nodes back to 0; no nodes are started"
    return Refusal(Finding(where, None, why, remedy))


def _daily(experiment: Experiment, aws: Aws) -> dict[str, Any]:
    """Return the deployed daily schedule: its time, its call to EKS, its role, and the queue of its failures."""
    name = naming.daily_schedule(experiment)
    found, where = _schedule(experiment, aws, name), f"schedule {name}"
    deploy = f"deploy the nodes stack ({deploy_command(experiment)}), then run this again"
    if found is None:
        raise _endless(where, "does not exist", deploy)
    if found["State"] != "ENABLED":
        enable = "enable it in the console of EventBridge Scheduler, then run this again"
        raise _endless(where, f"is {found['State']}", enable)
    target = json.loads(found["Target"]["Input"])
    about = target["NodegroupName"], target["ClusterName"]
    if about != (naming.neuron_nodegroup(experiment), naming.cluster_name(experiment)):
        raise _endless(where, f"is about node group {about[0]} of {about[1]}", deploy)
    return found


def _prove_allowed(experiment: Experiment, role_arn: str, group: Group, aws: Aws) -> None:
    """Raise `Refusal` unless IAM confirms that the schedules' role may change the group, with its permissions boundary."""
    action, where = "eks:UpdateNodegroupConfig", f"role {role_arn.rpartition('/')[2]}"
    asked = {"PolicySourceArn": role_arn, "ActionNames": [action], "ResourceArns": [group.arn]}
    codes = ("NoSuchEntity", "NoSuchEntityException")
    if (answer := aws.client("iam").find("simulate_principal_policy", *codes, **asked)) is None:
        stack, deploy = naming.stack_name(experiment, "nodes"), deploy_command(experiment)
        delete = f"aws cloudformation delete-stack --stack-name {stack} --region {aws.region}"
        again = f"delete the nodes stack and deploy it again ({delete}, then {deploy})"
        raise _endless(where, "does not exist", again)
    (result,) = answer["EvaluationResults"]
    if result["EvalDecision"] != "allowed":
        why = f"may not do {action} on {group.name} (IAM says {result['EvalDecision']})"
        give = "give it back what the nodes stack gave it, or change what denies it, then run this again"
        raise _endless(where, why, give)


def scheduled_off(experiment: Experiment, aws: Aws) -> str | None:
    """Return when the one-time schedule sets the group to 0, e.g. `2026-04-01T12:00:00Z`; None without one."""
    found = _schedule(experiment, aws, schedule_name(experiment))
    return str(found["ScheduleExpression"]).removeprefix("at(").removesuffix(")") + "Z" if found else None


def _schedule(experiment: Experiment, aws: Aws, name: str) -> dict[str, Any] | None:
    asked = {"Name": name, "GroupName": naming.schedule_group(experiment)}
    found: dict[str, Any] | None = aws.client("scheduler").find("get_schedule", _ABSENT, **asked)
    return found


def forget_schedule(experiment: Experiment, aws: Aws) -> None:
    asked = {"Name": schedule_name(experiment), "GroupName": naming.schedule_group(experiment)}
    aws.client("scheduler").find("delete_schedule", _ABSENT, **asked)


def schedule_name(experiment: Experiment) -> str:
    """Return the name of the one-time schedule."""
    return f"{experiment.name}-scale-to-zero"


def publish_run_inactive(experiment: Experiment, aws: Aws) -> None:
    """Publish `RunActive` 0. The alarm uses the minimum of a period, so it counts even if a 1 was published in the same minute."""
    datum = {
        "MetricName": RUN_ACTIVE.cloudwatch_name,
        "Dimensions": [{"Name": "Experiment", "Value": experiment.name}],
        "Value": 0.0,
        "Unit": RUN_ACTIVE.cloudwatch_unit,
    }
    namespace = naming.metrics_namespace(experiment)
    aws.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=[datum])
