"""What a deployment must not replace or lose: the cluster, the buckets and their key. CloudFormation would make another one before
it deletes the first, under the same name, which AWS refuses in the middle of the deployment."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.deployment_file import NAME
from infra.synthesis import app_of, configure
from trnspec.core.findings import Finding, Refusal
from trnspec.experiment import Experiment
from trnspec.experiment.naming import PROTECTED, stack_name
from trnspec.operations.cloud import cloudformation
from trnspec.operations.cloud.aws import Aws

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


def refuse(path: Path, experiment: Experiment, aws: Aws) -> None:
    """Raise `Refusal` with a line for each stack of which the deployment would replace or lose something. Takes seconds, if something is
    deployed."""
    names = {stack_name(experiment, part) for part in PROTECTED}
    standing = [
        stack.name for stack in cloudformation.deployed(experiment, aws) if stack.made and stack.name in names
    ]
    if not standing:
        return
    print(f"comparing with the stacks {' and '.join(standing)} (10 s)", file=sys.stderr)
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
