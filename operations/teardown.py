"""`teardown`: everything of an experiment away, the dearest first, and what stays or bills is named."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from core.console import print_json, print_table, print_text, progress, warn
from core.findings import Misuse, Refusal
from core.words import count
from experiment import Experiment
from experiment.forms import INSTALLABLE, Installed
from experiment.naming import cluster_name, namespace, neuron_release, stack_name
from operations.cloud import cloudformation, markers, nodegroup
from operations.cloud.access import cluster_of
from operations.cloud.aws import NOT_ALLOWED, Aws, AwsError, aws_of
from operations.cloud.clock import Clock
from operations.cloud.cloudformation import TAG, Stack
from operations.cloud.standing import Made, Standing, listed, made, release_of
from operations.options import dry_run_option, experiment_of, on_aws

POLL_S = 15
PATIENCE_S = 3600
"""For one stack: deleting a cluster takes about ten minutes, node groups as long."""
_USING = ("nodes", "identity", "workloads")
"""Parts that are deployed into a cluster; an experiment whose buckets alone are left uses none."""
_BILLS = {
    "cloudwatch:alarm": "$0.10 a month each",
    "ec2:capacity-reservation": "by the hour, used or not; a capacity block is paid in advance",
    "ec2:instance": "by the hour, while it runs",
    "ec2:natgateway": "by the hour, and traffic",
    "ec2:elastic-ip": "by the hour",
    "ec2:vpc-endpoint": "by the hour, interface endpoints only",
    "ec2:snapshot": "by size",
    "ec2:volume": "by size",
    "ecr:repository": "by size of its images",
    "eks:cluster": "by the hour",
    "elasticloadbalancing:loadbalancer": "by the hour",
    "kms:key": "$1 a month until deleted",
    "logs:log-group": "by size, until its retention ends",
    "secretsmanager:secret": "$0.40 a month",
    "s3:": "by size; emptying and deleting it loses weights, artifacts or results",
}
"""Service and resource type of an ARN; what is not listed costs nothing by itself."""


@on_aws
@click.option("--confirm", metavar="NAME", help="The experiment's name, instead of typing it when asked.")
@click.option(
    "--name",
    metavar="NAME",
    help="Of stacks that no file describes any more, as ./trnspec status names them; with --region.",
)
@click.option("--region", metavar="REGION", help="Where those stacks are.")
@dry_run_option
def command(
    path: Path,
    confirm: str | None,
    name: str | None,
    region: str | None,
    dry_run: bool,
    account: str | None,
    as_json: bool,
) -> int:
    """Delete an experiment's nodes, workloads, cluster ..., then list what still bills.

    The buckets and their stack stay. It can be run again. Exit 0 when no stack is left, 1 when some are.
    """
    experiment = _meant(path, name, region)
    aws = aws_of(experiment, account)
    there = _going(experiment, aws)
    joining = standing_on(experiment, aws) or unmarked(experiment, aws)
    if dry_run and (standing := joining or of_gitops(experiment, aws, there)):
        warn(standing)
    if not dry_run:
        if joining:
            raise Refusal(joining)
        _confirm(experiment, aws, confirm)
    before = listed(experiment, aws) if experiment.cluster.existing and not dry_run else None
    kept = [] if dry_run else take_down(experiment, aws, Clock())
    shared = _compared(experiment, before, listed(experiment, aws)) if before else None
    storage = cloudformation.one(stack_name(experiment, cloudformation.OUTLIVES), aws)
    bills, untold = None, None
    try:
        bills = [{"arn": arn, "what": what} for arn, what in tagged(experiment, aws).items()]
    except AwsError as error:  # what was deleted is told all the same
        untold = error
    told = {
        "experiment": experiment.name,
        "account": aws.account,
        "dry_run": dry_run,
        "stacks": [stack.name for stack in reversed(there)],
        "left": [{"name": name, "why": why} for name, why in kept],
        "stays": storage.name if storage.made else None,
        "bills": bills,
        "cluster": shared,
    }
    print_json(told) if as_json else _print(told)
    if untold is not None:
        warn(str(untold))
    if shared and (shared["ours_left"] or shared["others_gone"]):
        return 1
    return 1 if kept else 3 if untold or (shared and shared["untold"]) else 0


def _compared(experiment: Experiment, before: Standing, after: Standing) -> dict[str, Any]:
    """What went from a cluster that is not ours."""
    ours = before.ours | after.ours
    untold = sorted({*before.untold, *after.untold})
    for line in untold:
        warn(f"not listed: {line}")
    return {
        "name": cluster_name(experiment),
        "before": sorted(before.names),
        "after": sorted(after.names),
        "ours_left": sorted(ours & after.names),
        "others_gone": sorted(before.names - after.names - ours),
        "untold": untold,
    }


def _meant(path: Path, name: str | None, region: str | None) -> Experiment:
    """What the file describes, or, with `--name` and `--region`, what it described before these were changed: the rest of
    a file does not matter here. Raises `Misuse` for one without the other."""
    experiment = experiment_of(path, verb="take down")
    if not name and not region:
        return experiment
    if not name or not region:
        raise Misuse(
            "--name and --region: one is given without the other; give both, as ./trnspec status prints them"
        )
    return replace(experiment, name=name, cluster=experiment.cluster.model_copy(update={"region": region}))


def _going(experiment: Experiment, aws: Aws) -> list[Stack]:
    """All stacks but that of the buckets, unless its own first deployment broke off."""
    storage = stack_name(experiment, cloudformation.OUTLIVES)
    broken = ("CREATE_FAILED", "ROLLBACK", "REVIEW", "DELETE")
    return [
        stack
        for stack in cloudformation.deployed(experiment, aws)
        if stack.name != storage or stack.status.startswith(broken)
    ]


def standing_on(experiment: Experiment, aws: Aws) -> str:
    """Why experiments that use this one's cluster or its nodes must go first; empty where none stands.

    They are known by their files here, and by the namespaces to whose pods EKS gives roles: the identity stack of each
    experiment says so of its own. What this one installed in an existing cluster is there once: others use it that do not bring
    it, and those without a file here.
    """
    own, cluster = experiment.name, experiment.cluster
    brought = _brought(made(experiment, aws)) if cluster.existing else []
    standing = {
        name
        for name, stacks in cloudformation.by_experiment(aws).items()
        if name not in (own, cluster.existing) and {f"{name}-{part}" for part in _USING} & {*stacks}
    }
    files = cloudformation.neighbours(experiment)
    on_nodes = {one.name for one in files if one.cluster.nodes_of == own}
    near = on_nodes | {
        one.name
        for one in files
        if not cluster.existing or not all(one.cluster.brings(name) for name in brought)
    }
    known = {one.name for one in files}
    if standing - known and (brought or not cluster.existing):
        asked = "list_pod_identity_associations", "associations"
        where = cluster_name(experiment)
        try:
            found = {one["namespace"] for one in aws.client("eks").every(*asked, clusterName=where)}
            near |= found - known
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
    if not (names := sorted(standing & near)):
        return ""
    remedy = "take that down first (./trnspec teardown with its file), then run this again"
    if not cluster.existing:
        return f"{own}: {', '.join(names)} is deployed into its cluster, and would lose it; {remedy}"
    what = ", ".join([*(["its nodes"] if standing & on_nodes else []), *brought])
    return f"{own}: {', '.join(names)} in cluster {cluster.existing} uses {what}, which this would remove; {remedy}"


def _brought(by: Made) -> list[Installed]:
    """What stacks installed for a whole cluster."""
    return [name for name in INSTALLABLE if by.owns("add-on", name) or (name == "neuron" and by.releases)]


def unmarked(experiment: Experiment, aws: Aws) -> str:
    """Why a Neuron driver must not go with the stacks: in an existing cluster its release has the experiment's name, and one that
    has not may be somebody else's."""
    if not experiment.cluster.existing:
        return ""
    if not (others := made(experiment, aws).releases - {neuron_release(experiment)}):
        return ""
    with cluster_of(experiment, aws) as cluster:
        items = [*cluster.list("deviceclasses"), *cluster.list("daemonsets", everywhere=True)]
    if not (found := sorted(others & {release_of(one) for one in items})):
        return ""
    name = ", ".join(found)
    return (
        f"{experiment.name}: its workloads stack would uninstall Helm release {name} of namespace kube-system, which version 0.2 may "
        f"have taken over from another owner; ask the cluster's owner, run helm uninstall {name} --namespace kube-system if it "
        "is not used, then run this again"
    )


def take_down(experiment: Experiment, aws: Aws, clock: Clock) -> list[tuple[str, str]]:
    """Delete the stacks, last deployed first; a refusal does not keep the others. Returns what is left, and why."""
    _stop_nodes(experiment, aws)
    kept = []
    going = _going(experiment, aws)
    if standing := of_gitops(experiment, aws, going):
        raise Refusal(standing)
    with progress(f"deleting the stacks of {experiment.name}", len(going)) as told:
        for stack in reversed(going):
            print(f"    {stack.name}: deleting", file=sys.stderr)
            roles = _roles(stack, aws) if experiment.cluster.existing else set()
            why = _delete(stack, experiment, aws, clock)
            if why is not None:
                warn(f"{stack.name}: {why}")
                kept.append((stack.name, why))
            elif roles:
                _remove_entries(experiment, roles, aws)
            told(steps=1)
    if (
        not kept and not experiment.cluster.existing
    ):  # last: EKS and the agents make them again as long as they live
        for name in markers.delete_log_groups(experiment, aws):
            print(f"    log group {name}: deleted", file=sys.stderr)
    return kept


def _roles(stack: Stack, aws: Aws) -> set[str]:
    """Names of the roles that a stack made."""
    asked = "list_stack_resources", "StackResourceSummaries"
    resources = aws.client("cloudformation").every(*asked, StackName=stack.name)
    return {one["PhysicalResourceId"] for one in resources if one["ResourceType"] == "AWS::IAM::Role"}


def _remove_entries(experiment: Experiment, roles: set[str], aws: Aws) -> None:
    """The access entries that EKS made for roles of node groups, and keeps when both are gone. What stays is told by the list
    after the teardown."""
    eks, cluster = aws.client("eks"), cluster_name(experiment)
    try:
        for arn in list(eks.every("list_access_entries", "accessEntries", clusterName=cluster)):
            if arn.rpartition("/")[2] in roles:
                asked = {"clusterName": cluster, "principalArn": arn}
                eks.find("delete_access_entry", "ResourceNotFoundException", **asked)
                print(f"    access entry {arn}: deleted", file=sys.stderr)
    except AwsError as error:
        warn(str(error))


def _stop_nodes(experiment: Experiment, aws: Aws) -> None:
    """First of all what costs dollars a minute; whatever keeps it from stopping, the stacks are tried all the same. Nodes of
    another experiment stop only where this one has rented them."""
    try:
        group = nodegroup.read(experiment, aws)
        if group.desired:
            nodegroup.refuse_taking(experiment, aws, group)
            nodegroup.set_size(experiment, aws, nodes=0, group=group)
            print(f"    {group.name}: {count(group.desired, 'node')} set to 0", file=sys.stderr)
            if experiment.cluster.nodes_of:
                nodegroup.forget_schedule(experiment, aws)
    except nodegroup.InUseError:
        return
    except Refusal as error:
        if _going(experiment, aws):
            warn(str(error))
        elif isinstance(error, AwsError):  # no answer about the nodes; that there is no group is one
            raise


def of_gitops(experiment: Experiment, aws: Aws, there: list[Stack]) -> str:
    """Why objects that no stack owns must go before the stacks; empty where there are none, or the cluster does not answer.

    Who applied them would apply them again, and a load balancer of theirs keeps the network from being deleted.
    """
    if any(stack.by_gitops for stack in there):
        where = namespace(experiment)
        try:
            with cluster_of(experiment, aws) as cluster:
                if cluster.get("namespace", where) is not None:
                    return (
                        f"namespace {where}: GitOps applied its objects, which no stack deletes; delete its Application with them "
                        f"(argocd app delete {experiment.name}), then run ./trnspec teardown again"
                    )
        except Refusal as error:
            warn(f"it is not known whether objects of GitOps are left ({error})")
    return ""


def _delete(stack: Stack, experiment: Experiment, aws: Aws, clock: Clock) -> str | None:
    """Why a stack is still there, with the remedy; nothing when it is gone."""
    try:
        cloudformation.lift_protection(stack, experiment, aws)
        aws.client("cloudformation").delete_stack(StackName=stack.name)
        return _await(stack, aws, clock)
    except AwsError as error:
        if "TerminationProtection" in str(error):
            return (
                f"is protected from deletion; aws cloudformation update-termination-protection --stack-name {stack.name} "
                f"--no-enable-termination-protection --region {aws.region}, then run ./trnspec teardown again"
            )
        if error.code == "ValidationError":  # e.g. while another change of it is under way
            return f"{error}; wait until that ends, then run ./trnspec teardown again"
        if NOT_ALLOWED.fullmatch(error.code):
            return str(error)
        raise


def _await(stack: Stack, aws: Aws, clock: Clock) -> str | None:
    waited, name = 0, stack.name
    while (now := cloudformation.one(name, aws)).status not in ("absent", "DELETE_COMPLETE"):
        new = waited or stack.status != now.status  # not the failure of last time
        if now.status == "DELETE_FAILED" and new:
            why = (cloudformation.failures(name, aws) or [now.reason or "no reason given"])[0]
            return f"not deleted: {why}; remove what it names, then run ./trnspec teardown again"
        if now.status.endswith("_IN_PROGRESS") and not now.status.startswith(("DELETE", "REVIEW")):
            return f"is {now.status}; wait until that ends, then run ./trnspec teardown again"
        if waited >= PATIENCE_S:
            return f"still {now.status} after {PATIENCE_S // 60} minutes; run ./trnspec teardown again later"
        clock.sleep(POLL_S)
        waited += POLL_S
    return None


def _confirm(experiment: Experiment, aws: Aws, given: str | None) -> None:
    if given is None and sys.stdin.isatty():
        print(
            f"This deletes {experiment.name} in account {aws.account}, {aws.region}; the buckets and their stack stay. Type its name: ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        given = sys.stdin.readline().strip()
    if given != experiment.name:
        said = f"--confirm {given!r} is not its name" if given else "it was not confirmed"
        raise Misuse(
            f"{experiment.name}: {said}, nothing was deleted; run it with --confirm {experiment.name}"
        )


def _print(told: dict[str, Any]) -> None:
    names = told["stacks"]
    if told["dry_run"]:
        lines = [f"would delete, in this order: {', '.join(names) or 'nothing, no stack is there'}"]
    else:
        lines = [f"{len(names) - len(told['left'])} of {count(len(names), 'stack')} deleted"]
        lines += [f"left: {one['name']}: {one['why']}" for one in told["left"]]
    if told["stays"]:
        lines.append(
            f"stays: {told['stays']}, with the buckets and their key; the next deployment goes on with what is in them"
        )
    if (there := told["cluster"]) is not None:
        counted = f"{len(there['before'])} things before, {len(there['after'])} after"
        lines.append(f"cluster {there['name']}, which does not belong to this experiment: {counted}")
        gone = sorted({*there["before"]} - {*there["after"]})
        for what, names in (("gone", gone), ("ours and left", there["ours_left"])):
            lines.append(f"  {what}: {', '.join(names) or 'nothing'}")
        lines.append(f"  gone though not ours: {', '.join(there['others_gone']) or 'nothing'}")
    print_text(*lines, "")
    if told["bills"] is None:
        print_text("what still bills is not known, the list could not be read")
        return
    rows = []
    for one in told["bills"]:
        _, _, service, _, _, resource = one["arn"].split(":", 5)
        rows.append((service, resource, one["what"]))
    if not rows:
        print("nothing with the experiment's tag is left")
        return
    print("carries the experiment's tag and may bill:")
    print_table(("service", "resource", "what it bills"), rows)


def tagged(experiment: Experiment, aws: Aws) -> dict[str, str]:
    """What bills and how, by ARN, of everything in the experiment's region that has CloudFormation's tag, or one that the
    cluster's controllers put on load balancers, volumes and instances that no stack knows of
    (https://docs.aws.amazon.com/eks/latest/userguide/eks-using-tags.html,
    https://kubernetes.io/docs/reference/labels-annotations-taints/)."""
    client, cluster = aws.client("resourcegroupstaggingapi"), cluster_name(experiment)
    tags: list[dict[str, Any]] = [{"Key": TAG, "Values": [experiment.name]}]
    if experiment.cluster.existing is None:  # of another's cluster they would be another's
        tags += [{"Key": f"{key}:cluster-name", "Values": [cluster]} for key in ("aws:eks", "eks")]
        tags.append({"Key": f"kubernetes.io/cluster/{cluster}"})
    arns = {
        entry["ResourceARN"]
        for tag in tags
        for entry in client.every("get_resources", "ResourceTagMappingList", TagFilters=[tag])
    }
    return {arn: what for arn in sorted(arns) if (what := bills(arn))}


def bills(arn: str) -> str:
    """How a resource bills; empty when it does not."""
    _, _, service, _, _, resource = arn.split(":", 5)
    kind = resource.replace(":", "/").split("/", 1)[0]
    return _BILLS.get(f"{service}:{kind}") or _BILLS.get(f"{service}:", "")
