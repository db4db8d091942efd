"""`teardown`: deletes what an experiment has on AWS, the most expensive first, and lists what remains and what is billed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from jinja2 import Environment

from trnspec.core.console import print_json, print_table, print_text, warn
from trnspec.core.findings import Misuse, Refusal
from trnspec.core.words import count, listed
from trnspec.experiment import Experiment, load
from trnspec.experiment.naming import cluster_name, stack_name
from trnspec.operations.cloud import cloudformation, experiment_resources, nodegroup, still_billed
from trnspec.operations.cloud.access import cluster_of
from trnspec.operations.cloud.aws import NOT_ALLOWED, Aws, AwsError, aws_of
from trnspec.operations.cloud.clock import Clock, poll
from trnspec.operations.cloud.cloudformation import TAG, Stack, teardown_command
from trnspec.operations.cloud.still_billed import Remaining
from trnspec.operations.options import dry_run_option, with_experiment

_TEXT = Path(__file__).with_name("teardown.txt.jinja")
POLL_S = 15
PATIENCE_S = 3600
"""Limit of one stack: deleting a cluster takes about ten minutes, node groups as long."""
BALANCERS_S = 300
"""Seconds that controllers may take to delete load balancers."""
SETTLES_S = 60
"""Seconds for which CloudFormation may still answer with a status from before the deletion. An estimate: no limit is documented."""
UNANSWERED = 10
"""Questions in a row without an answer after which waiting for a stack ends."""
_GONE = ("absent", "DELETE_COMPLETE")
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


@with_experiment
@click.option("--confirm", metavar="NAME", help="The experiment's name, instead of typing it when asked.")
@click.option(
    "--name",
    metavar="NAME",
    help="Experiment of stacks that no file describes any more, as the verb status prints it; with --region.",
)
@click.option("--region", metavar="REGION", help="Region of those stacks.")
@dry_run_option
def command(
    path: Path, confirm: str | None, name: str | None, region: str | None, dry_run: bool, as_json: bool
) -> int:
    """Delete an experiment's nodes, workloads, cluster and other stacks, then list what is still billed.

    It keeps the buckets and their stack. You can run it again. Exit 0 when only that stack is left, 1 when others are.
    """
    experiment = load(path)
    if bool(name) != bool(region):
        why = "one is given without the other; give both, as the verb status prints them"
        raise Misuse(f"--name and --region: {why}")
    if name and region:  # stacks of an earlier state of the file; the rest of the file does not matter here
        cluster = experiment.cluster.model_copy(update={"region": region})
        experiment = replace(experiment, name=name, cluster=cluster, path=None)
    aws = aws_of(experiment)
    stacks = [stack.name for stack in reversed(_going(experiment, aws))]
    kept = list[Remaining]()
    if not dry_run:
        _confirm(experiment, aws, confirm)
        kept = take_down(experiment, aws, Clock())
    page, problem = _page(experiment, aws, stacks, kept, dry_run=dry_run)
    print_json(page) if as_json else _print(page)
    if problem is not None:
        warn(str(problem))
    return 1 if page["left"] else 3 if problem else 0


def _page(
    experiment: Experiment, aws: Aws, stacks: list[str], kept: list[Remaining], *, dry_run: bool
) -> tuple[dict[str, Any], AwsError | None]:
    """Return what was deleted, what is left and what bills, and the error if AWS does not tell what bills."""
    storage = cloudformation.stack_named(stack_name(experiment, cloudformation.OUTLIVES), aws)
    page: dict[str, Any] = {
        "experiment": experiment.name,
        "account": aws.account,
        "dry_run": dry_run,
        "stacks": stacks,
        "deleted": len(stacks) - sum(name in dict(kept) for name in stacks),
        "stays": storage.name if storage.made else None,
        "images": {},
        "environment": f"aws://{aws.account}/{aws.region}",
        "bills": None,
    }
    problem = None
    try:
        sizes = experiment_resources.asset_image_sizes(aws)
        page["images"] = {"number": len(sizes), "bytes": sum(sizes)}
        found = tagged(experiment, aws)
        page["bills"] = [{"arn": arn, "what": what} for arn, what in found.items()]
        if not dry_run and stack_name(experiment, "cluster") not in dict(kept):
            kept = [*{**dict(still_billed.billed(found, aws.region)), **dict(kept)}.items()]
    except AwsError as error:  # what was deleted is printed all the same
        problem = error
    return {**page, "left": [{"name": name, "why": why} for name, why in kept]}, problem


def _going(experiment: Experiment, aws: Aws) -> list[Stack]:
    """Return the stacks to delete: all but that of the buckets, unless its first deployment failed."""
    storage = stack_name(experiment, cloudformation.OUTLIVES)
    broken = ("CREATE_FAILED", "ROLLBACK", "REVIEW", "DELETE")
    stacks = cloudformation.deployed(experiment, aws)
    return [stack for stack in stacks if stack.name != storage or stack.status.startswith(broken)]


def take_down(experiment: Experiment, aws: Aws, clock: Clock) -> list[Remaining]:
    """Delete the stacks, the last deployed first, and go on past those that stay. Return what is left, and why."""
    _stop_nodes(experiment, aws)
    kept, volumes = list[Remaining](), dict[str, str]()
    network, cluster = stack_name(experiment, "network"), stack_name(experiment, "cluster")
    going = _going(experiment, aws)
    if cluster in [stack.name for stack in going]:
        volumes = _empty_cluster(experiment, aws, clock)
    for stack in reversed(going):
        in_network = stack.name == network and cluster not in dict(kept)
        if in_network:
            _look_again(experiment, aws, {})
        print(f"    {stack.name}: deleting", file=sys.stderr)
        why = _delete(stack, experiment, aws, clock)
        if why is not None:
            if in_network:
                with suppress(AwsError):
                    why += still_billed.in_vpc(experiment, aws)
            warn(f"{stack.name}: {why}")
            kept.append((stack.name, why))
    if not kept:  # last, because EKS and the agents create them again until the cluster is deleted
        for name in experiment_resources.log_groups(experiment, aws):
            aws.client("logs").delete_log_group(logGroupName=name)
            print(f"    log group {name}: deleted", file=sys.stderr)
    return kept if cluster in dict(kept) else [*kept, *_look_again(experiment, aws, volumes)]


def _look_again(experiment: Experiment, aws: Aws, volumes: Mapping[str, str]) -> list[Remaining]:
    """Delete what the cluster left in its network. Return what stays of it and of the volumes."""
    try:
        left = still_billed.billed(still_billed.standing(volumes, aws), aws.region)
        return [*still_billed.free_network(experiment, aws), *left]
    except AwsError as error:
        return [("network interfaces, security groups and volumes", f"may be left: {error}")]


def _stop_nodes(experiment: Experiment, aws: Aws) -> None:
    """Set the Trn2 nodes to 0 first, because they cost dollars a minute. If that fails, the stacks are deleted anyway."""
    try:
        group = nodegroup.read(experiment, aws)
        if group.desired:
            nodegroup.set_size(experiment, aws, nodes=0, group=group)
            print(f"    {group.name}: {count(group.desired, 'node')} set to 0", file=sys.stderr)
    except Refusal as error:
        if _going(experiment, aws):
            warn(str(error))
        elif isinstance(error, AwsError):  # AWS gave no answer; that there is no group would be one
            raise


def _empty_cluster(experiment: Experiment, aws: Aws, clock: Clock) -> dict[str, str]:
    """Delete what no stack contains: Jobs of runs, whose volume would keep CloudFormation waiting, and objects with a load balancer.

    Return the volumes of claims. They stay, and nothing else names them: the handler of the CDK ignores a failed `kubectl delete`
    (`aws-eks-v2/kubectl-handler/apply` of aws-cdk-lib).
    """
    volumes = dict[str, str]()
    try:
        with cluster_of(experiment, aws) as cluster:
            for job in cluster.list("jobs"):
                cluster.delete("job", job["metadata"]["name"])
            volumes = still_billed.volumes(cluster)
            for kind, place in still_billed.balanced(cluster):
                namespace, _, name = place.partition("/")
                cluster.delete(kind, name, namespace=namespace)
                print(f"    {kind} {place}: deleting, with its load balancer", file=sys.stderr)
            how: Any = {"clock": clock, "every_s": POLL_S, "patience_s": BALANCERS_S}
            poll(lambda: listed([place for _, place in still_billed.balanced(cluster)]) or None, **how)
            for kind, place in still_billed.balanced(cluster):
                warn(f"{kind} {place}: is still there, so its load balancer may outlive the cluster and bill")
    except Refusal as error:
        warn(f"Jobs, load balancers and volumes of the cluster could not be read: {error}")
    for name, claim in volumes.items():
        print(f"    volume {name} of claim {claim}: stays, and bills by size", file=sys.stderr)
    return volumes


def _delete(stack: Stack, experiment: Experiment, aws: Aws, clock: Clock) -> str | None:
    """Delete a stack. Return why it still exists, with the remedy; None when it is deleted."""
    try:
        cloudformation.lift_protection(stack, experiment, aws)
        aws.client("cloudformation").delete_stack(StackName=stack.name)
        return _await(stack, experiment, aws, clock)
    except AwsError as error:
        again = f"then run {teardown_command(experiment)} again"
        if "TerminationProtection" in str(error):
            lift = f"--stack-name {stack.name} --no-enable-termination-protection --region {aws.region}"
            command = f"aws cloudformation update-termination-protection {lift}"
            return f"is protected from deletion; {command}, {again}"
        if error.code == "ValidationError":  # e.g. while another change of it is under way
            return f"{error}; wait until that ends, {again}"
        if NOT_ALLOWED.fullmatch(error.code):
            return str(error)
        raise


def _await(stack: Stack, experiment: Experiment, aws: Aws, clock: Clock) -> str | None:
    """Return why a stack still exists; None when it is deleted. A status that is not of a deletion under way, such as DELETE_FAILED of
    an earlier one, counts only after `SETTLES_S`."""
    name, settled, now, unanswered = stack.name, clock.ticking() + SETTLES_S, stack, 0

    def deleting() -> str | None:
        nonlocal now, unanswered
        try:
            now, unanswered = cloudformation.stack_named(name, aws), 0
        except AwsError as error:
            unanswered += 1
            if unanswered == UNANSWERED or NOT_ALLOWED.fullmatch(error.code):
                raise
            return f"{name}: {error}"
        stale = now.status not in _GONE and clock.ticking() < settled
        return f"{name}: {now.status}" if stale or now.status == "DELETE_IN_PROGRESS" else None

    poll(deleting, clock=clock, every_s=POLL_S, patience_s=PATIENCE_S)
    again = f"then run {teardown_command(experiment)} again"
    if now.status in _GONE:
        return None
    if now.status == "DELETE_FAILED":
        why = (cloudformation.failures(name, aws) or [now.reason or "no reason given"])[0]
        return f"not deleted: {why}; remove what it names, {again}"
    if now.status.endswith("_IN_PROGRESS"):
        return f"is {now.status}; wait until that ends, {again}"
    return f"is {now.status}: its deletion did not begin; run {teardown_command(experiment)} again"


def _confirm(experiment: Experiment, aws: Aws, given: str | None) -> None:
    name = experiment.name
    if given is None and sys.stdin.isatty():
        where = f"account {aws.account}, {aws.region}; the buckets and their stack stay."
        print(f"This deletes {name} in {where} Type its name: ", end="", file=sys.stderr, flush=True)
        given = sys.stdin.readline().strip()
    if given != name:
        why = f"--confirm {given!r} is not its name" if given else "it was not confirmed"
        raise Misuse(f"{name}: {why}, nothing was deleted; run it with --confirm {name}")


def _print(page: dict[str, Any]) -> None:
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    filters: dict[str, Any] = environment.filters
    filters["count"] = count
    text = environment.from_string(_TEXT.read_text(encoding="utf-8")).render(page)
    print_text(*text.rstrip("\n").split("\n"))
    if page["bills"]:
        arns = [(bill["arn"].split(":", 5), bill["what"]) for bill in page["bills"]]
        print_table(("service", "resource", "what it bills"), [(arn[2], arn[5], what) for arn, what in arns])


def tagged(experiment: Experiment, aws: Aws) -> dict[str, str]:
    """Return how resources in the experiment's region bill, by ARN. They have the tag of the stacks, or a tag that the controllers of
    the cluster set on load balancers, volumes and instances outside the stacks
    (https://docs.aws.amazon.com/eks/latest/userguide/eks-using-tags.html,
    https://kubernetes.io/docs/reference/labels-annotations-taints/)."""
    client, cluster = aws.client("resourcegroupstaggingapi"), cluster_name(experiment)
    keys = (
        "aws:eks:cluster-name",
        "eks:cluster-name",
        "elbv2.k8s.aws/cluster",
        "ebs.csi.aws.com/cluster-name",
    )
    tags: list[dict[str, Any]] = [{"Key": key, "Values": [cluster]} for key in keys]
    tags += [{"Key": TAG, "Values": [experiment.name]}, {"Key": f"kubernetes.io/cluster/{cluster}"}]
    found = {
        entry["ResourceARN"]
        for tag in tags
        for entry in client.paginate("get_resources", "ResourceTagMappingList", TagFilters=[tag])
    }
    return {arn: what for arn in sorted(found) if (what := bills(arn))}


def bills(arn: str) -> str:
    """Return how a resource bills; empty if it costs nothing."""
    _, _, service, _, _, resource = arn.split(":", 5)
    kind = resource.replace(":", "/").split("/", 1)[0]
    return _BILLS.get(f"{service}:{kind}") or _BILLS.get(f"{service}:", "")
