"""`deploy`: the pinned CDK with the committed configuration, for one experiment. A deployment that would replace or delete the cluster,
the buckets or their key is refused. CloudFormation creates the replacement first, under the same name, and fails halfway."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cdk8s_charts.manifests import read
from infra.deployment_file import NAME
from infra.synthesis import app_of, configure
from trnspec.core.checkout import ROOT
from trnspec.core.findings import Finding, Outside, Refusal
from trnspec.experiment import Experiment, load
from trnspec.experiment.naming import PROTECTED, bucket, stack_name
from trnspec.operations.cloud import cloudformation, experiment_resources
from trnspec.operations.cloud.aws import Aws, aws_of
from trnspec.operations.cloud.clock import Clock
from trnspec.operations.options import chosen, dry_run_option, experiments, json_option
from trnspec.operations.preflight.checklist import check_deployable
from trnspec.operations.running.state import MEASURING, RunStore, check_owner

FIXED = {
    "AWS::EKS::Cluster": (
        "AccessConfig/BootstrapClusterCreatorAdminPermissions", "BootstrapSelfManagedAddons", "EncryptionConfig",
        "KubernetesNetworkConfig/IpFamily", "KubernetesNetworkConfig/ServiceIpv4Cidr", "Name", "OutpostConfig",
        "ResourcesVpcConfig/SubnetIds", "RoleArn",
    ),
    "AWS::KMS::Key": (),
    "AWS::S3::Bucket": ("BucketEncryption", "BucketName", "BucketNamePrefix", "BucketNamespace"),
}  # fmt: skip
"""`createOnlyProperties` of the schemas of CloudFormation's registry; the key of a bucket, because with another one pods could not read
what is stored; the subnets of a cluster, because EKS takes no other zones
(https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html)."""
Template = Mapping[str, Any]
_AT_ONCE = "3"
"""Stacks that do not depend on each other: network, storage and observability."""


@click.command()
@click.argument(
    "words",
    nargs=-1,
    metavar="[EXPERIMENT] [-- CDK OPTION ...]",
    shell_complete=lambda _ctx, _param, incomplete: experiments(incomplete),
)
@dry_run_option
@json_option
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Deploy all stacks and Kubernetes objects of an experiment, with 0 Trn2 nodes.

    It stops if preflight finds a problem, while a run measures, and before it would replace the cluster, the buckets or their
    key. Options after -- go to `cdk deploy`. With -- --require-approval never it asks no question and deploys independent
    stacks at the same time. --dry-run shows what would change (`cdk diff`).
    """
    given = [word for word in words[:1] if not word.startswith("-")]
    path = chosen(ctx, None, tuple(given)).resolve()
    experiment = load(path)
    read(experiment, ROOT / "manifests")
    if not {"--help", "-h"} & set(words):
        aws = aws_of(experiment)
        _ = aws.identity  # refused before the synthesis
        if not dry_run:
            _refuse_without_builder()
            _refuse_under_a_run(experiment, aws)
            check_deployable(experiment, aws)
            refuse_replacements(path, experiment, aws)
            cloudformation.let_replace(experiment, aws)
    npx = Path(sys.prefix) / "bin" / "npx"
    if not npx.exists():
        raise Outside(f"{npx}: does not exist, and the CDK is started with it; run scripts/setup")
    os.chdir(ROOT)
    act = ["diff"] if dry_run else ["deploy", "--all"]
    asks_nothing = any(
        word.endswith("never") for word in words
    )  # the CDK asks about one stack at a time only
    if asks_nothing and not dry_run:
        act += ["--concurrency", _AT_ONCE]
    os.execv(npx, [str(npx), "cdk", *act, "-c", f"experiment={path}", *words[len(given) :]])


def _refuse_without_builder() -> None:
    """Raise `Outside` if the program with which the CDK builds images is not there."""
    builder = os.environ.get("CDK_DOCKER") or "docker"
    if shutil.which(builder) is None:
        why = "is not on PATH, and images are built with it"
        raise Outside(f"{builder}: {why}; install Docker, or name finch or podman: export CDK_DOCKER=finch")


def _refuse_under_a_run(experiment: Experiment, aws: Aws) -> None:
    """Raise `Refusal` while a run measures, because the manifests set every arm to 0 replicas."""
    if bucket(experiment, "results", aws.account) not in experiment_resources.buckets(experiment, aws):
        return
    held = RunStore(experiment, aws).current()
    if held is not None and held.state.step.startswith(MEASURING):
        wait = f"wait for its end (./trnspec status {experiment.file})"
        remedy = f"a deployment would set its arms to 0: {wait}, or interrupt it (Ctrl-C), deploy and run it again to go on"
        check_owner(held.state, now=Clock().now(), remedy=remedy)


def refuse_replacements(path: Path, experiment: Experiment, aws: Aws) -> None:
    """Raise `Refusal` with a line for each stack of which the deployment would replace or lose something. Takes seconds, if something is
    deployed."""
    names = {stack_name(experiment, part) for part in PROTECTED}
    standing = [
        stack.name for stack in cloudformation.deployed(experiment, aws) if stack.made and stack.name in names
    ]
    if not standing:
        return
    print(f"comparing with what is deployed: {', '.join(standing)} (10 s)", file=sys.stderr)
    after = synthesized(path)
    client = aws.client("cloudformation")
    before = {name: client.get_template(StackName=name)["TemplateBody"] for name in standing}
    if lost := [found for name in standing if (found := replaced(name, before[name], after[name]))]:
        raise Refusal(*lost)


def synthesized(path: Path) -> dict[str, Template]:
    """Return the templates of an experiment's file, by name of stack."""
    with tempfile.TemporaryDirectory(prefix="deploy-") as outdir:
        assembly = app_of(configure({"experiment": str(path)}), outdir=outdir, validation=False).synth()
        return {stack.stack_name: stack.template for stack in assembly.stacks}


def replaced(stack: str, before: Template, after: Template) -> Finding | None:
    """Return a finding that names each resource that the second template lacks, or has with another value that only a creation sets."""
    lost = []
    for name, old in before["Resources"].items():
        new, paths = after["Resources"].get(name), FIXED.get(old["Type"])
        if paths is None:
            continue
        changed = [path for path in paths if new and _at(old, path) != _at(new, path)]
        if changed or new is None:
            lost.append(f"{name} ({', '.join([old['Type'], *changed])})")
    if not lost:
        return None
    why = f"this deployment would remove or replace {', '.join(lost)}, which must stay as it was created"
    back = f"take the change of {NAME} (kms_key) or of the file back, or deploy under another name of the experiment"
    return Finding(f"stack {stack}", None, why, back)


def _at(resource: Template, path: str) -> Any:
    value: Any = resource.get("Properties", {})
    for step in path.split("/"):
        value = value.get(step) if isinstance(value, Mapping) else None
    return sorted(value, key=str) if isinstance(value, list) else value
