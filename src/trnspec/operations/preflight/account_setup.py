"""What an account and a region must have before a deployment: pinned versions that EKS offers, the bootstrap of the CDK, the key, and
no remains of an earlier deployment."""

from __future__ import annotations

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from infra.deployment_file import DeploymentSettings
from infra.pins import ADDON_VERSIONS
from infra.pipeline.pipeline_file import roles_remedy
from trnspec.core.findings import Finding, State, finding, fine
from trnspec.core.words import count
from trnspec.experiment import Experiment
from trnspec.experiment.catalogue.runtimes import images_of
from trnspec.experiment.naming import cluster_name, stack_name
from trnspec.operations.cloud import cloudformation, experiment_resources
from trnspec.operations.cloud.aws import NOT_ALLOWED, Aws, AwsError

BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
_ANY_ROLE = "a-role-of-nobody"
BOOTSTRAP_VERSION = 6
"""Minimum that the default synthesizer accepts (https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html)."""
_USE = "Decrypt", "GenerateDataKey"


def kubernetes_version(experiment: Experiment, aws: Aws) -> Finding:
    """Check that EKS offers the version with standard support."""
    version = experiment.cluster.kubernetes
    entries = aws.client("eks").every("describe_cluster_versions", "clusterVersions")
    versions = {entry["clusterVersion"]: entry for entry in entries}
    if version not in versions:
        remedy = f"set cluster.kubernetes to one of {', '.join(sorted(versions)) or 'those that EKS names'}"
        return finding(f"EKS does not offer {version} in {aws.region}", remedy)
    entry = versions[version]
    if entry["versionStatus"] != "STANDARD_SUPPORT":
        support = entry["versionStatus"].lower().replace("_", " ")
        why = f"EKS {version} is in {support}, where the control plane costs $0.60 per hour"
        return finding(why, "set cluster.kubernetes to a version in standard support")
    ends = entry.get("endOfStandardSupportDate")
    return fine(f"EKS {version}, standard support" + (f" until {ends:%Y-%m-%d}" if ends else ""))


def cluster_version(experiment: Experiment, aws: Aws) -> Finding:
    """Compare the file's version with the cluster's: EKS upgrades a cluster whose standard support ended, and takes none back
    (https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html)."""
    name, version = cluster_name(experiment), experiment.cluster.kubernetes
    found = aws.client("eks").find("describe_cluster", "ResourceNotFoundException", name=name)
    if found is None:
        return fine(f"there is no cluster {name} yet")
    there = found["cluster"]["version"]
    if _minor(there) <= _minor(version):
        return fine(f"cluster {name} has Kubernetes {there}, the file {version}")
    remedy = f'write kubernetes: "{there}" into the section cluster, then make manifests, and deploy'
    if there not in ADDON_VERSIONS:
        remedy = (
            f"pin {there} in infra/pins.py and src/trnspec/experiment/catalogue/runtimes.py, then {remedy}"
        )
    return finding(
        f"cluster {name} has Kubernetes {there}, the file asks for {version}, and EKS takes no version back",
        remedy,
    )


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


def node_images(experiment: Experiment, aws: Aws) -> Finding:
    """Check the images of both node groups, by the names under which Amazon publishes them
    (https://github.com/awslabs/amazon-eks-ami/releases). A pinned image that was removed makes a deployment fail after it has spent 30 minutes on
    the cluster."""
    version, chosen = experiment.cluster.kubernetes, experiment.node_image
    assert chosen is not None, "experiments without Neuron devices are not deployed"
    dates = {"neuron": chosen.date, "standard": images_of(version)[0].date}
    names = {f"amazon-eks-node-al2023-x86_64-{kind}-{version}-v{date}" for kind, date in dates.items()}
    filters = [{"Name": "name", "Values": sorted(names)}]
    answer = aws.client("ec2").describe_images(Owners=["amazon"], Filters=filters)
    missing = names - {image["Name"] for image in answer["Images"]}
    if not missing:
        return fine(f"release {chosen.release} with Neuron driver {chosen.neuron_driver}")
    return finding(
        f"{aws.region} has no {', '.join(sorted(missing))}",
        "pin a release in src/trnspec/experiment/catalogue/runtimes.py that the region offers and whose driver serves the "
        f"runtimes: `aws ec2 describe-images --owners amazon --region {aws.region} --filters "
        f"Name=name,Values='amazon-eks-node-al2023-x86_64-neuron-{version}-*' --query 'Images[].Name'`; the driver "
        "is listed in https://github.com/awslabs/amazon-eks-ami/releases",
    )


def addons(experiment: Experiment, aws: Aws) -> Finding:
    """Check the pinned versions of the managed add-ons."""
    eks, version, wrong = aws.client("eks"), experiment.cluster.kubernetes, []
    for name, pinned in sorted(ADDON_VERSIONS.get(version, {}).items()):
        asked = {"kubernetesVersion": version, "addonName": name}
        entries = eks.every("describe_addon_versions", "addons", **asked)
        offers = [offer for entry in entries for offer in entry.get("addonVersions", ())]
        versions = [offer["addonVersion"] for offer in offers]
        if pinned not in versions:
            wrong.append(f"{name} {pinned} (newest: {versions[0] if versions else 'none at all'})")
    if not wrong:
        return fine(f"all pinned versions are offered for {version}")
    why = f"EKS {version} in {aws.region} does not offer {', '.join(wrong)}"
    return finding(why, "pin an offered version in infra/pins.py, test, review")


def bootstrap(experiment: Experiment, aws: Aws, settings: DeploymentSettings) -> Finding:
    """Check that `cdk bootstrap` was run here, with a version that is new enough, and that its CloudFormation may make this
    experiment's roles, but not every role."""
    account = f"arn:aws:iam::{aws.account}"
    remedy = (
        f"deploy infra/bootstrap/policies.yaml (docs/pipeline.md), then .venv/bin/npx cdk bootstrap aws://{aws.account}/{aws.region} "
        f"--cloudformation-execution-policies {account}:policy/speculation-execution --custom-permissions-boundary speculation-boundary"
    )
    found = aws.client("ssm").find("get_parameter", "ParameterNotFound", Name=BOOTSTRAP_PARAMETER)
    if found is None:
        return finding(f"{aws.region} of account {aws.account} is not bootstrapped", remedy)
    version = found["Parameter"]["Value"]
    if int(version) < BOOTSTRAP_VERSION:
        return finding(f"version {version}, {BOOTSTRAP_VERSION} or later is needed", remedy)
    try:
        own, other = (
            _may_make_role(name, aws, settings) for name in (f"{experiment.name}-cluster", _ANY_ROLE)
        )
    except AwsError as error:
        if not NOT_ALLOWED.fullmatch(error.code):
            raise
        return replace(error.findings[0], state=State.WARNING)
    if own == "explicitDeny" and not settings.permissions_boundary:
        why = "CloudFormation may make roles with a permissions boundary only, and deployment.yaml names none"
        return finding(why, "write permissions_boundary: speculation-boundary into it, or your policy's name")
    if own != "allowed":
        why = f"CloudFormation may not make roles whose names begin with {experiment.name}- (IAM says {own})"
        return finding(why, roles_remedy(experiment.name))
    if other == "allowed":
        why = f"version {version}; CloudFormation may make any role (AdministratorAccess, the default); who deploys is then an administrator"
        return replace(finding(why, remedy), state=State.WARNING)
    return fine(f"version {version}; CloudFormation may make roles of {experiment.name}, and not any role")


def _may_make_role(name: str, aws: Aws, settings: DeploymentSettings) -> str:
    """Return IAM's decision about CloudFormation's role of the bootstrap, with its boundary
    (https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html). Not verified on AWS."""
    account = f"arn:aws:iam::{aws.account}"
    given = settings.permissions_boundary and f"{account}:policy/{settings.permissions_boundary}"
    boundary = {
        "ContextKeyName": "iam:PermissionsBoundary",
        "ContextKeyType": "string",
        "ContextKeyValues": [given],
    }
    answer = aws.client("iam").simulate_principal_policy(
        PolicySourceArn=f"{account}:role/cdk-hnb659fds-cfn-exec-role-{aws.account}-{aws.region}",
        ActionNames=["iam:CreateRole"],
        ResourceArns=[f"{account}:role/{name}"],
        ContextEntries=[boundary] if given else [],
    )
    return str(answer["EvaluationResults"][0]["EvalDecision"])


def administrators(aws: Aws, settings: DeploymentSettings) -> Finding:
    """Check that somebody may use the cluster: deploying makes nobody an administrator of it."""
    if settings.admins:
        return fine(f"{count(len(settings.admins), 'administrator')} of the cluster")
    arn = aws.identity["Arn"]
    role = (
        f"the ARN of your role (aws iam get-role --query Role.Arn --role-name {arn.split('/')[1]})"
        if "assumed-role" in arn
        else arn
    )
    why = "admins of deployment.yaml is empty, so nobody could use kubectl, run or verify on the cluster"
    return finding(why, f"write {role} there, and commit it")


def imported_key(aws: Aws, settings: DeploymentSettings) -> Finding:
    """Check the state and the policy of the KMS key of deployment.yaml; conditions of the policy are not checked."""
    arn, kms = settings.kms_key, aws.client("kms")
    if not arn:
        return fine("not set: stacks create their keys; logs and disks use AWS managed keys")
    remedy = "name another key in deployment.yaml, or enable this one"
    if (found := kms.find("describe_key", "NotFoundException", KeyId=arn)) is None:
        return finding(f"{arn}: no such key", remedy)
    state, kind = found["KeyMetadata"]["KeyState"], found["KeyMetadata"].get("KeySpec")
    if (state, kind) != ("Enabled", "SYMMETRIC_DEFAULT"):
        return finding(f"{arn} is {state}, of kind {kind}; a symmetric key is needed, enabled", remedy)
    policy = json.loads(kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"])
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
        return finding(why, "add the statements of docs/yours.md to it (aws kms put-key-policy)")
    return fine(f"{arn}: the account, CloudWatch Logs and the alarms can use it")


def _allows(statement: dict[str, Any], who: str, action: str) -> bool:
    named = statement.get("Principal", {})
    kinds = [named] if isinstance(named, str) else [*named.values()]
    principals = [principal for kind in kinds for principal in _listed(kind)]
    account = who.split(":")[4] if who.startswith("arn:") else who
    actions = (str(action).lower() for action in _listed(statement.get("Action", ())))
    return (
        statement["Effect"] == "Allow"
        and not {"*", who, account}.isdisjoint(principals)
        and any(fnmatchcase(action.lower(), pattern) for pattern in actions)
    )


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def halfway_stacks(experiment: Experiment, aws: Aws) -> Finding:
    """Check that no earlier deployment or teardown left an incomplete stack."""
    found = cloudformation.halfway(cloudformation.deployed(experiment, aws), experiment, aws)
    if not found:
        return fine("no stack is half done")
    more = f" ({len(found) - 1} more: ./trnspec status)" if len(found) > 1 else ""
    return replace(found[0], why=f"{found[0].why}{more}")


def leftovers(experiment: Experiment, aws: Aws) -> Finding:
    """Check that no resource exists under a name that a stack will use which is not deployed."""
    there = {stack.name for stack in cloudformation.deployed(experiment, aws) if stack.made}
    groups = (
        [] if stack_name(experiment, "cluster") in there else experiment_resources.log_groups(experiment, aws)
    )
    stores = (
        [] if stack_name(experiment, "storage") in there else experiment_resources.buckets(experiment, aws)
    )
    if not (groups or stores):
        return fine("nothing is left of an earlier deployment")
    emptied = "; copy what you need out of the buckets and empty them, all versions, first" if stores else ""
    why = f"{', '.join((*groups, *stores))}: no stack owns what the next deployment would make{emptied}"
    commands = [f"aws logs delete-log-group --log-group-name {name} --region {aws.region}" for name in groups]
    commands += [f"aws s3api delete-bucket --bucket {name} --region {aws.region}" for name in stores]
    return finding(why, " && ".join(commands))
