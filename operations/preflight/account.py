"""What the account and the region must have: credentials, versions, the CDK's bootstrap, no leftovers."""

from __future__ import annotations

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from core.findings import Finding, finding, fine
from experiment import Experiment
from experiment.catalogue.node_images import images_of
from experiment.naming import stack_name
from infra.deployment_file import Lasting
from infra.pins import ADDON_VERSIONS
from operations.cloud import cloudformation, markers
from operations.cloud.aws import Aws

_USE = "Decrypt", "GenerateDataKey"
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
BOOTSTRAP_VERSION = 6
"""The least that the default synthesizer takes (https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html)."""


def credentials(aws: Aws) -> Finding:
    """Who is asking."""
    identity = aws.identity
    return fine(f"{identity['Arn']} in account {identity['Account']}, {aws.region}")


def kubernetes_version(experiment: Experiment, aws: Aws) -> Finding:
    """Whether EKS offers the version, and with standard support."""
    version = experiment.cluster.kubernetes
    offered = {
        entry["clusterVersion"]: entry
        for entry in aws.client("eks").every("describe_cluster_versions", "clusterVersions")
    }
    if version not in offered:
        remedy = f"set cluster.kubernetes to one of {', '.join(sorted(offered)) or 'those that EKS names'}"
        return finding(f"EKS does not offer {version} in {aws.region}", remedy)
    entry = offered[version]
    if entry["versionStatus"] != "STANDARD_SUPPORT":
        support = entry["versionStatus"].lower().replace("_", " ")
        why = f"EKS {version} is in {support}, where the control plane costs $0.60 an hour"
        return finding(why, "set cluster.kubernetes to a version in standard support")
    ends = entry.get("endOfStandardSupportDate")
    return fine(f"EKS {version}, standard support" + (f" until {ends:%Y-%m-%d}" if ends else ""))


def node_images(experiment: Experiment, aws: Aws) -> Finding:
    """The images of both node groups, by the names that Amazon publishes them under
    (https://github.com/awslabs/amazon-eks-ami/releases). A pin that is gone fails a deployment after half an hour of
    making a cluster."""
    version, chosen = experiment.cluster.kubernetes, experiment.node_image
    assert chosen is not None, "experiments without Neuron devices are not deployed"
    dates = {"neuron": chosen.date, "standard": images_of(version)[0].date}
    names = {f"amazon-eks-node-al2023-x86_64-{kind}-{version}-v{date}" for kind, date in dates.items()}
    answer = aws.client("ec2").describe_images(
        Owners=["amazon"], Filters=[{"Name": "name", "Values": sorted(names)}]
    )
    missing = names - {image["Name"] for image in answer["Images"]}
    if not missing:
        return fine(f"release {chosen.release} with Neuron driver {chosen.neuron_driver}")
    return finding(
        f"{aws.region} has no {', '.join(sorted(missing))}",
        "pin a release in experiment/catalogue/node_images.py that the region offers and whose driver serves the "
        f"runtimes: `aws ec2 describe-images --owners amazon --region {aws.region} --filters "
        f"Name=name,Values='amazon-eks-node-al2023-x86_64-neuron-{version}-*' --query 'Images[].Name'`; the driver "
        "stands in https://github.com/awslabs/amazon-eks-ami/releases",
    )


def addons(experiment: Experiment, aws: Aws) -> Finding:
    """The pinned versions of the managed add-ons."""
    eks, version, wrong = aws.client("eks"), experiment.cluster.kubernetes, []
    for name, pinned in sorted(ADDON_VERSIONS.get(version, {}).items()):
        asked = {"kubernetesVersion": version, "addonName": name}
        entries = eks.every("describe_addon_versions", "addons", **asked)
        offered = [one["addonVersion"] for entry in entries for one in entry.get("addonVersions", ())]
        if pinned not in offered:
            wrong.append(f"{name} {pinned} (newest: {offered[0] if offered else 'none at all'})")
    if not wrong:
        return fine(f"all pinned versions are offered for {version}")
    why = f"EKS {version} in {aws.region} does not offer {', '.join(wrong)}"
    return finding(why, "pin an offered version in infra/pins.py, test, review")


def bootstrap(aws: Aws) -> Finding:
    """Whether `cdk bootstrap` was run here, with a version that still counts."""
    remedy = f".venv/bin/npx cdk bootstrap aws://{aws.account}/{aws.region}"
    found = aws.client("ssm").find("get_parameter", "ParameterNotFound", Name=BOOTSTRAP_PARAMETER)
    if found is None:
        return finding(f"{aws.region} of account {aws.account} is not bootstrapped", remedy)
    version = found["Parameter"]["Value"]
    if int(version) < BOOTSTRAP_VERSION:
        return finding(f"version {version}, {BOOTSTRAP_VERSION} or later is needed", remedy)
    return fine(f"version {version}")


def imported_key(aws: Aws, lasting: Lasting) -> Finding:
    """Whether the KMS key of deployment.yaml can be used, as far as its state and policy can be read; conditions are not judged."""
    arn = lasting.kms_key
    if not arn:
        return fine("not set: stacks create their keys; logs and disks use AWS managed keys")
    found = aws.client("kms").find("describe_key", "NotFoundException", KeyId=arn)
    remedy = "name another key in deployment.yaml, or enable this one"
    if found is None:
        return finding(f"{arn}: no such key", remedy)
    known = found["KeyMetadata"]
    state, kind = known["KeyState"], known.get("KeySpec")
    if (state, kind) != ("Enabled", "SYMMETRIC_DEFAULT"):
        return finding(f"{arn} is {state}, of kind {kind}; a symmetric key is needed, enabled", remedy)
    policy = json.loads(aws.client("kms").get_key_policy(KeyId=arn, PolicyName="default")["Policy"])
    wanted = {
        f"arn:aws:iam::{aws.account}:root": ("CreateGrant", "DescribeKey", *_USE),
        f"logs.{aws.region}.amazonaws.com": ("Encrypt", "ReEncryptTo", "DescribeKey", *_USE),
        "cloudwatch.amazonaws.com": _USE,
    }
    missing = [
        f"{who} kms:{action}"
        for who, actions in wanted.items()
        for action in actions
        if not any(_allows(statement, who, f"kms:{action}") for statement in _listed(policy["Statement"]))
    ]
    if missing:
        why = f"the policy of {arn} does not allow {', '.join(missing)}"
        return finding(why, "add the statements of docs/what-you-have.md to it (aws kms put-key-policy)")
    return fine(f"{arn}: the account, CloudWatch Logs and the alarms can use it")


def _allows(statement: dict[str, Any], who: str, action: str) -> bool:
    named = statement.get("Principal", {})
    principals = (
        [named] if isinstance(named, str) else [one for some in named.values() for one in _listed(some)]
    )
    account = who.split(":")[4] if who.startswith("arn:") else who
    actions = (str(one).lower() for one in _listed(statement.get("Action", ())))
    return (
        statement["Effect"] == "Allow"
        and not {"*", who, account}.isdisjoint(principals)
        and any(fnmatchcase(action.lower(), one) for one in actions)
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def halfway_stacks(experiment: Experiment, aws: Aws) -> Finding:
    """Whether an earlier deployment or teardown left something that stands in the way of the next."""
    stacks = cloudformation.deployed(experiment, aws)
    found = cloudformation.halfway(stacks, experiment, aws)
    if not found:
        return fine("no stack is half done")
    more = f" ({len(found) - 1} more: ./trnspec status)" if len(found) > 1 else ""
    return replace(found[0], why=f"{found[0].why}{more}")


def what_was_left(experiment: Experiment, aws: Aws) -> Finding:
    """Whether something stands under a name that a stack which is not there will give."""
    there = {stack.name for stack in cloudformation.deployed(experiment, aws) if stack.made}
    part = "nodes" if experiment.cluster.existing else "cluster"
    groups = [] if stack_name(experiment, part) in there else markers.log_groups(experiment, aws)
    stores = [] if stack_name(experiment, "storage") in there else markers.buckets(experiment, aws)
    if not (groups or stores):
        return fine("nothing is left of an earlier deployment")
    if groups and experiment.cluster.existing:  # an agent of the cluster's owner may be writing to them
        why = f"{', '.join(groups)}: no stack of this experiment made what its deployment would make"
        remedy = "add amazon-cloudwatch-observability to cluster.provided; where no agent of the cluster writes to them, let its owner delete them"
        return finding(why, remedy)
    emptied = "; copy what you need out of the buckets and empty them, all versions, first" if stores else ""
    return finding(
        f"{', '.join((*groups, *stores))}: no stack owns what the next deployment would make{emptied}",
        " && ".join(markers.commands(groups, stores, region=aws.region)),
    )
