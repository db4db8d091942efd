"""The CloudFormation stacks of an experiment, selected by their tag: the command that deploys them, their state, and stacks that no
file describes any more because the file's `name` or `region` was changed, or the file was deleted."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.deployment_file import parse
from trnspec.core.checkout import ROOT
from trnspec.core.findings import Finding, Misuse, Refusal
from trnspec.core.words import count
from trnspec.experiment import Experiment, InvalidExperiment, load
from trnspec.experiment.catalogue.instances import ZONES
from trnspec.experiment.naming import PROTECTED, stack_name
from trnspec.operations.cloud.aws import Aws, AwsError
from trnspec.operations.options import FILES

PIPELINE = ROOT / "pipeline.yaml"
OUTLIVES = "storage"
"""The stack that a teardown keeps, so that the next deployment can use the buckets and their key."""
TAG = "experiment"
"""Key of a tag on every stack; CloudFormation copies it to the resources of the stack."""
_PARTS = ("network", "storage", "observability", "cluster", "nodes", "identity", "workloads", "run")
_ORDER = (*_PARTS, "delivery")
"""The order of deployment. A stage of the pipeline also has a delivery."""
_EMPTY = ("ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS")
"""States of a stack without resources: its first deployment was rolled back, or never began. CloudFormation accepts no change set for
the first; `cdk deploy` deletes such a stack."""
_FIRST = (
    "fix what its events name, then {deploy}; a pipeline needs it deleted before: aws cloudformation delete-stack "
    "--stack-name {name} --region {region}"
)
_REMEDIES = {
    "ROLLBACK_COMPLETE": f"its first deployment failed and left nothing: {_FIRST}",
    "ROLLBACK_FAILED": f"its first deployment failed and left something: {_FIRST}",
    "CREATE_FAILED": "its first deployment failed: fix what its events name, then {deploy}",
    "UPDATE_FAILED": "its last update failed: fix what its events name, then {deploy}",
    "UPDATE_ROLLBACK_COMPLETE": "its last update failed and was taken back: fix what its events name, then {deploy}",
    "UPDATE_ROLLBACK_FAILED": "its last update could not be taken back: aws cloudformation continue-update-rollback "
    "--stack-name {name} --region {region}, then {deploy}",
    "REVIEW_IN_PROGRESS": "a deployment ended before it began: {teardown} removes it; to go on, {deploy}",
    "DELETE_FAILED": "its deletion failed; to continue: {teardown}",
}
"""Remedies by status (https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html); an update that was rolled
back keeps the previous state, and the remedy says that the file and the account differ."""


def deploy_command(experiment: Experiment) -> str:
    return f"./trnspec deploy {experiment.file}"


def deploy_workloads(experiment: Experiment) -> str:
    """Return the remedy for objects that are missing in the cluster."""
    return f"deploy the workloads ({deploy_command(experiment)})"


def teardown_command(experiment: Experiment) -> str:
    """Return the command that removes the experiment; without a file it names the stacks."""
    if experiment.path is None:
        return removal(experiment.name, experiment.cluster.region)
    return f"./trnspec teardown {experiment.file}"


def to_deploy(experiment: Experiment, account: str) -> str:
    """Return the remedy that deploys the experiment. Only the pipeline deploys into the accounts of its stages."""
    with suppress(
        Misuse, AttributeError, KeyError, TypeError
    ):  # without a pipeline, or while its file is written
        for stage in parse(PIPELINE)["stages"].values():
            file = (ROOT / stage["experiment"]).resolve()
            if stage["account"] == account and experiment.path and file == experiment.path.resolve():
                return "merge the change: the pipeline deploys it (docs/pipeline.md)"
    return f"run {deploy_command(experiment)}"


def not_deployed(what: str, experiment: Experiment, aws: Aws) -> Refusal:
    remedy = f"{to_deploy(experiment, aws.account)}, or check AWS_PROFILE and cluster.region"
    return Refusal(Finding(what, None, f"none in account {aws.account}, {aws.region}", remedy))


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One stack; `status` is CloudFormation's status, or `absent`."""

    name: str
    status: str
    reason: str = ""
    protected: bool = False
    """True if it is protected from deletion."""
    owner: str = ""
    """The experiment that its tag names."""

    @property
    def made(self) -> bool:
        """True if its resources exist; a first deployment that was rolled back leaves none."""
        return self.status not in (*_EMPTY, "DELETE_COMPLETE", "absent")


def _stack(entry: dict[str, Any]) -> Stack:
    return Stack(
        name=entry["StackName"],
        status=entry["StackStatus"],
        reason=" ".join(entry.get("StackStatusReason", "").split()),
        protected=entry.get("EnableTerminationProtection", False),
        owner={tag["Key"]: tag["Value"] for tag in entry.get("Tags", ())}.get(TAG, ""),
    )


def _all(aws: Aws) -> list[Stack]:
    stacks = map(_stack, aws.client("cloudformation").paginate("describe_stacks", "Stacks"))
    return [stack for stack in stacks if stack.status != "DELETE_COMPLETE"]


def deployed(experiment: Experiment, aws: Aws) -> tuple[Stack, ...]:
    """Return the existing stacks of the experiment, in the order of deployment; those with other names come last."""
    order = {stack_name(experiment, part): place for place, part in enumerate(_ORDER)}
    own = [stack for stack in _all(aws) if stack.owner == experiment.name or stack.name in order]
    return tuple(sorted(own, key=lambda stack: (order.get(stack.name, len(order)), stack.name)))


def expected(experiment: Experiment, aws: Aws) -> tuple[Stack, ...]:
    """Return every stack that should exist, and any other stacks of the experiment."""
    there = {stack.name: stack for stack in deployed(experiment, aws)}
    parts = [part for part in _PARTS if part != "network" or not experiment.cluster.network.vpc]
    names = [stack_name(experiment, part) for part in parts]
    wanted = [there.pop(name, Stack(name=name, status="absent")) for name in names]
    return (*wanted, *there.values())


def stack_named(name: str, aws: Aws) -> Stack:
    try:
        return _stack(aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0])
    except AwsError as error:
        if error.code == "ValidationError" and "does not exist" in str(error):
            return Stack(name=name, status="absent")
        raise


def lift_protection(stack: Stack, experiment: Experiment, aws: Aws) -> None:
    """Disable the termination protection that the deployment sets; a stack that its owner protected stays protected."""
    if stack.protected and stack.name in {stack_name(experiment, part) for part in PROTECTED}:
        client = aws.client("cloudformation")
        client.update_termination_protection(StackName=stack.name, EnableTerminationProtection=False)


def let_replace(experiment: Experiment, aws: Aws) -> None:
    """Disable the protection of a stack whose first deployment failed, because the CDK cannot delete it otherwise."""
    for stack in deployed(experiment, aws):
        if stack.status in ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED"):
            lift_protection(stack, experiment, aws)


def failures(name: str, aws: Aws) -> list[str]:
    """Return the resources that CloudFormation could not delete, the newest first."""
    events = aws.client("cloudformation").paginate("describe_stack_events", "StackEvents", StackName=name)
    return [
        f"{event['LogicalResourceId']}: {' '.join(event.get('ResourceStatusReason', 'no reason given').split())}"
        for event in events
        if event["ResourceStatus"] == "DELETE_FAILED" and event["LogicalResourceId"] != name
    ]


def incomplete_stacks(stacks: Iterable[Stack], experiment: Experiment, aws: Aws) -> list[Finding]:
    """Return a finding for each stack that a deployment or a teardown left incomplete."""
    broken = [stack for stack in stacks if stack.status in _REMEDIES]
    commands = {"deploy": to_deploy(experiment, aws.account), "teardown": teardown_command(experiment)}
    return [
        Finding(
            f"stack {stack.name}",
            None,
            f"is {stack.status}" + (f" ({stack.reason.rstrip('.')})" if stack.reason else ""),
            _REMEDIES[stack.status].format(name=stack.name, region=aws.region, **commands),
        )
        for stack in broken
    ]


@dataclass(frozen=True, kw_only=True)
class OrphanedStacks:
    """The stacks of one experiment in one region that no file describes."""

    experiment: str
    region: str
    stacks: tuple[str, ...]

    def finding(self) -> Finding:
        names = ", ".join(self.stacks)
        why = f"{count(len(self.stacks), 'stack')} exist and are billed ({names}), and no file here describes them"
        remedy = f"remove them with {removal(self.experiment, self.region)}, or take the change of the file's name or region back"
        return Finding(f"{self.experiment} in {self.region}", None, why, remedy)


def removal(name: str, region: str) -> str:
    return f"./trnspec teardown --name {name} --region {region}"


def orphaned_stacks(
    experiment: Experiment, aws: Aws, *, files: Path = FILES
) -> tuple[list[OrphanedStacks], list[str]]:
    """Return the stacks without a file in every region of the catalogue that the account has enabled, and one line for each region that
    could not be read. A file that is refused at present keeps the stacks of its name."""
    described, refused = {(experiment.name, experiment.cluster.region)}, set[str]()
    for path in sorted(files.glob("*.yaml")):
        try:
            other = load(path)
            described.add((other.name, other.cluster.region))
        except InvalidExperiment:
            refused.add(_name_in(path))
    orphaned, unread, regions = list[OrphanedStacks](), list[str](), {aws.region}
    try:
        enabled = {region["RegionName"] for region in aws.client("ec2").describe_regions()["Regions"]}
        regions = {aws.region, *ZONES} & enabled
    except AwsError as error:
        unread.append(f"other regions: {_NOT_LOOKED} ({error})")
    for region in sorted(regions):
        try:
            stacks = by_experiment(aws if region == aws.region else Aws(region, account=aws.account))
        except AwsError as error:
            unread.append(f"{region}: {_NOT_LOOKED} ({error})")
            continue
        names = sorted(name for name in stacks.keys() - refused if (name, region) not in described)
        for name in names:
            found = tuple(sorted(stacks[name]))
            orphaned.append(OrphanedStacks(experiment=name, region=region, stacks=found))
    return orphaned, unread


_NOT_LOOKED = "stacks that no file describes were not looked for"


def by_experiment(aws: Aws) -> dict[str, list[str]]:
    """Return the stacks of this project in a region, by the experiment in their tag."""
    names: dict[str, list[str]] = {}
    for stack in _all(aws):
        if stack.name in {f"{stack.owner}-{part}" for part in _ORDER}:
            names.setdefault(stack.owner, []).append(stack.name)
    return names


def _name_in(path: Path) -> str:
    """Return the experiment's name, or the name of the file if it cannot be read."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return path.stem
    return str(data.get("name", path.stem)) if isinstance(data, dict) else path.stem
