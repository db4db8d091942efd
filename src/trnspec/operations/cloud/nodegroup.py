"""The Trn2 node group: how many nodes it has, the verb `scale`, which changes that, and the time at which it goes back to 0."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from infra.off_schedules import AGAIN_AFTER, block_over, next_off
from trnspec.benchmark.metrics import RUN_ACTIVE
from trnspec.core.console import print_json, print_text, warn
from trnspec.core.findings import Finding, Misuse, Outside, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, load, naming
from trnspec.experiment.cost import node_price
from trnspec.operations.cloud.aws import Aws, AwsError, aws_of
from trnspec.operations.cloud.clock import TooLateError, stamp, within
from trnspec.operations.cloud.cloudformation import deploy_command, not_deployed
from trnspec.operations.cloud.node_issues import Group, current_issue
from trnspec.operations.options import HOURS, dry_run_option, on_aws

DEFAULT_HOURS = 3.0
LIMIT_S = 45
"""Time limit of the emergency stop; after that a person has to act."""
_ABSENT = "ResourceNotFoundException"
_BUY = "buy or extend a block, set cluster.capacity and deploy"


@on_aws
@click.argument("wanted", type=click.IntRange(0), metavar="N")
@click.option(
    "--hours",
    type=HOURS,
    default=DEFAULT_HOURS,
    metavar="H",
    help=f"Hours after which they are set to 0 (default {DEFAULT_HOURS:g}).",
)
@dry_run_option
def command(path: Path, wanted: int, hours: float, dry_run: bool, account: str | None, as_json: bool) -> int:
    """Set the number of Trn2 nodes to N, at most cluster.max_nodes; 0 stops what bills by the hour.

    The time to live is set before the first node starts, and removed after the last one is let go.
    """
    experiment = load(path)
    refuse_too_many(experiment, wanted)
    aws = aws_of(experiment, account)
    if not wanted and not dry_run:
        return _stop(experiment, aws, as_json=as_json)
    group = read(experiment, aws)
    if wanted:
        refuse_another(experiment, group)
    now, off, price = datetime.now(UTC), None, node_price(experiment)
    if not dry_run:
        off = schedule_off(experiment, aws, now=now, hours=hours, group=group)
        set_size(experiment, aws, nodes=wanted, group=group)
    elif wanted:
        off = min(now + timedelta(hours=hours), off_next(experiment, aws, now=now))
    _print(
        as_json,
        experiment=experiment.name,
        nodegroup=group.name,
        before=group.desired,
        nodes=wanted,
        usd_per_hour=wanted * price.usd_per_hour,
        price=price.quoted,
        off_at=stamp(off) if off else None,
        hours=hours if wanted else None,
        dry_run=dry_run,
    )
    if off and off < now + timedelta(hours=hours, seconds=-1):
        when = experiment.cluster.off_when
        warn(f"{stamp(off)} is before {hours:g} hours are over: nodes are set to 0 {when}")
    if wanted and (issue := current_issue(group, aws)):
        warn(f"no nodes come now: {issue}")
    return 0


def _stop(experiment: Experiment, aws: Aws, *, as_json: bool) -> int:
    """Set the group to 0 nodes quickly, because every minute is billed. Other work comes after it."""
    name, region, when = experiment.name, experiment.cluster.region, experiment.cluster.off_when
    warn(f"asks EKS in {region} for 0 nodes of {name}, {LIMIT_S} s at most")
    aws.hurry()
    problems: list[Refusal] = []
    group = assumed(experiment)
    by_hand = f"set {group.name} to 0 in the console of EKS; its schedule does the same {when}"
    try:
        with within(LIMIT_S):
            try:
                group = read(experiment, aws)
            except AwsError as error:
                problems.append(error)
            set_size(experiment, aws, nodes=0, group=group)
    except AwsError as error:
        raise Outside(f"{error}; the nodes were not set to 0 and may still bill: {by_hand}") from None
    except TooLateError:
        late = f"EKS in {region} did not answer within {LIMIT_S} s, so nodes may still bill"
        raise Outside(f"{name}: {late}; try from another network, or {by_hand}") from None
    for problem in problems:
        warn(f"{problem}; the nodes are set to 0 without it")
    done = {"experiment": name, "nodegroup": group.name, "before": None if problems else group.desired}
    _print(as_json, **done, nodes=0, usd_per_hour=0.0, price=None, off_at=None, hours=None, dry_run=False)
    for what, act in (("schedule", forget_schedule), ("alarms", say_over)):
        try:
            with within(LIMIT_S):
                act(experiment, aws)
        except (AwsError, TooLateError) as error:
            problems.append(Outside(str(error) or f"no answer within {LIMIT_S} s"))
            warn(f"0 nodes, but the {what} could not be updated: {problems[-1]}")
    return 3 if problems else 0


def _print(as_json: bool, **done: Any) -> None:
    if as_json:
        print_json(done)
        return
    verb = "would be set" if done["dry_run"] else "set"
    before = "" if done["before"] is None else f" from {done['before']}"
    line = f"{done['nodegroup']}: {verb}{before} to {count(done['nodes'], 'node')}"
    ends = "no Trn2 node bills once EC2 has let them go"
    if done["nodes"]:
        until = f"until they are set to 0 at {done['off_at']}, or by ./trnspec scale 0"
        ends = f"${done['usd_per_hour']:.2f} per hour ({done['price']}) {until}"
    print_text(f"{line}; {ends}")


class BusyError(Refusal):
    """EKS is changing the group and accepts no other change until it has finished."""


def assumed(experiment: Experiment) -> Group:
    """Return the group of the file with its maximum nodes, so that it can be turned off without asking EKS."""
    maximum = experiment.cluster.max_nodes
    return Group(
        name=naming.neuron_nodegroup(experiment), arn="", status="unknown", desired=maximum, largest=maximum
    )


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
    names = list(eks.every("list_nodegroups", "nodegroups", clusterName=cluster))
    own = [name for name in names if name.startswith(naming.neuron_nodegroups(experiment))]
    found = [one for name in own if (one := _described(experiment, aws, name)) is not None]
    return max(found, key=lambda one: one.get("scalingConfig", {}).get("desiredSize", 0), default=None)


def refuse_another(experiment: Experiment, group: Group) -> None:
    """Raise `Refusal` if the group is not the one that the file describes: it may be scaled down, not up."""
    if group.name != (wanted := naming.neuron_nodegroup(experiment)):
        back = "take the change of cluster.capacity and cluster.availability_zones back"
        why = f"exists, and the experiment now describes {wanted}"
        remedy = f"deploy that ({deploy_command(experiment.name)}), or {back}"
        raise Refusal(Finding(f"node group {group.name}", None, why, remedy))


def set_size(experiment: Experiment, aws: Aws, *, nodes: int, group: Group) -> None:
    """Set the group to `nodes`, from 0 to the maximum of the experiment.

    Raises `Misuse` beyond `cluster.max_nodes` and `BusyError` while EKS is changing the group.
    """
    refuse_too_many(experiment, nodes)
    scaling = {"minSize": 0, "desiredSize": nodes, "maxSize": max(nodes, group.largest, 1)}
    which = {"clusterName": naming.cluster_name(experiment), "nodegroupName": group.name}
    try:
        aws.client("eks").update_nodegroup_config(**which, scalingConfig=scaling)
    except AwsError as error:
        if error.code != "ResourceInUseException":
            raise
        why, remedy = f"EKS is changing it ({group.status})", "wait a minute, then run this again"
        raise BusyError(Finding(f"node group {group.name}", None, why, remedy)) from None


def refuse_too_many(experiment: Experiment, nodes: int) -> None:
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
        why, remedy = f"acts at {expression}, which no deployment set", deploy_command(experiment.name)
        raise _endless(
            f"schedule {naming.daily_schedule(experiment)}", why, f"delete it, then {remedy}"
        ) from None
    if off <= now:
        capacity = experiment.cluster.capacity
        why = f"ends at {capacity.ends_at}, and its nodes are taken away from an hour before"
        raise Refusal(Finding(f"capacity block {capacity.reservation_id}", None, why, _BUY))
    return off


def refuse_cut(experiment: Experiment, *, off: datetime, now: datetime, needs_h: float) -> None:
    """Raise `Refusal` if the schedules set the nodes to 0 before `hours` are over."""
    if now + timedelta(hours=needs_h) <= off:
        return
    cluster, fit = experiment.cluster, int((off - now) / timedelta(minutes=6) - 0.5) / 10
    later = f"start it after {off + AGAIN_AFTER:%H:%M} UTC, or change cluster.off_at_utc, render and deploy"
    keeps = f"; or give --hours {fit}, and a later run goes on from where it gets" if fit > 0 else ""
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
    refuse_another(experiment, group)
    target, off = _daily(experiment, aws)["Target"], off_next(experiment, aws, now=now)
    refuse_cut(experiment, off=off, now=now, needs_h=needs_h)
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
    deploy = f"deploy the nodes stack ({deploy_command(experiment.name)}), then run this again"
    if found is None:
        raise _endless(where, "does not exist", deploy)
    if found["State"] != "ENABLED":
        enable = "enable it in the console of EventBridge Scheduler, then run this again"
        raise _endless(where, f"is {found['State']}", enable)
    try:
        target = json.loads(found["Target"]["Input"])
        about = target["NodegroupName"], target["ClusterName"]
    except (ValueError, KeyError, TypeError, RecursionError):
        about = "none", "none"
    if about != (naming.neuron_nodegroup(experiment), naming.cluster_name(experiment)):
        raise _endless(where, f"is about node group {about[0]} of {about[1]}", deploy)
    return found


def _prove_allowed(experiment: Experiment, role_arn: str, group: Group, aws: Aws) -> None:
    """Raise `Refusal` unless IAM confirms that the schedules' role may change the group, with its permissions boundary."""
    action, where = "eks:UpdateNodegroupConfig", f"role {role_arn.rpartition('/')[2]}"
    asked = {"PolicySourceArn": role_arn, "ActionNames": [action], "ResourceArns": [group.arn]}
    codes = ("NoSuchEntity", "NoSuchEntityException")
    if (answer := aws.client("iam").find("simulate_principal_policy", *codes, **asked)) is None:
        stack, deploy = naming.stack_name(experiment, "nodes"), deploy_command(experiment.name)
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


def say_over(experiment: Experiment, aws: Aws) -> None:
    """Publish `RunActive` 0. The alarm uses the minimum of a period, so it counts even if a 1 was published in the same minute."""
    datum = {
        "MetricName": RUN_ACTIVE.cloudwatch_name,
        "Dimensions": [{"Name": "Experiment", "Value": experiment.name}],
        "Value": 0.0,
        "Unit": RUN_ACTIVE.cloudwatch_unit,
    }
    aws.client("cloudwatch").put_metric_data(
        Namespace=naming.metrics_namespace(experiment), MetricData=[datum]
    )
