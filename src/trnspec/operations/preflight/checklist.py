"""`preflight`: what is missing before an experiment can be deployed and run. A check is a function that returns a finding. Checks
of the account and the region are in this module."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from infra.deployment_file import DeploymentSettings, read_deployment
from infra.off_schedules import BEFORE_BLOCK_ENDS
from infra.pins import ADDON_VERSIONS
from infra.synthesis import DEPLOYMENT
from trnspec.core.console import print_json, print_table, progress
from trnspec.core.findings import Finding, Outside, Refusal, State, finding, fine
from trnspec.experiment import Experiment, load
from trnspec.experiment.catalogue.node_images import images_of
from trnspec.experiment.cost import SYSTEM_NODES
from trnspec.experiment.naming import stack_name
from trnspec.operations.cloud import cloudformation, experiment_resources
from trnspec.operations.cloud.aws import Aws, aws_of
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.cloud.spot_price import usd_per_hour
from trnspec.operations.options import on_aws
from trnspec.operations.preflight import external_services
from trnspec.operations.preflight.existing_vpc import ExistingVpc

TRN_QUOTA = "L-2C3B7624"
"""`Running On-Demand Trn instances`, in vCPUs: the code that `aws service-quotas list-service-quotas --service-code ec2`
prints for it, as recorded in several public listings of accounts."""
SPOT_QUOTA = "L-6B0D517C"
"""`All Trn Spot Instance Requests`, in vCPUs, 0 in a new account
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-limits.html)."""
STANDARD_QUOTA = "L-1216C47A"
"""`Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances`, in vCPUs; new accounts begin with 5
(https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html)."""
STANDARD_VCPUS = SYSTEM_NODES * 4 + 2
"""vCPUs of the system nodes and the bastion."""
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
BOOTSTRAP_VERSION = 6
"""Minimum that the default synthesizer accepts (https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html)."""
_USE = "Decrypt", "GenerateDataKey"
Checks = dict[str, Callable[[], Finding]]


@on_aws
def command(path: Path, account: str | None, as_json: bool) -> int:
    """Is everything there that an experiment needs? Each finding comes with its remedy. Changes nothing.

    Exit 0 if everything is fine, 1 with findings, 3 without findings if something could not be asked.
    """
    experiment = load(path)
    aws, now, web, findings = (
        aws_of(experiment, account),
        datetime.now(UTC),
        external_services.Web(),
        list[Finding](),
    )
    total = 1 + len(_of_account(experiment, aws, now)) + len([*_of_external_services(experiment, web)])
    with progress(f"preflight {experiment.name}", total) as advance:
        for check in judge(experiment, aws, web, now=now):
            print(f"    {check.check}: {check.state}", file=sys.stderr)
            findings.append(check)
            advance(steps=1)
    if as_json:
        print_json({"experiment": experiment.name, "checks": [check.as_json() for check in findings]})
    else:
        rows = [(check.check, check.state, check.line()) for check in findings]
        print_table(("check", "state", "what"), rows)
    states = {check.state for check in findings}
    return 1 if State.FINDING in states else 3 if State.UNKNOWN in states else 0


def judge(
    experiment: Experiment, aws: Aws, web: external_services.Web, *, now: datetime
) -> Iterator[Finding]:
    """Yield findings in the order of the checks; without credentials, one finding replaces all checks that need them."""
    first = run_check("credentials", partial(credentials, aws))
    yield first
    if first.state is State.FINE:
        for name, check in _of_account(experiment, aws, now).items():
            yield run_check(name, check)
    else:
        why = "quotas, instance, capacity, versions, bootstrap and stacks were not asked about"
        remedy = "correct the credentials, then run this again"
        yield Finding("", None, why, remedy, check="account", state=State.UNKNOWN)
    for name, check in _of_external_services(experiment, web):
        yield run_check(name, check)


def _of_account(experiment: Experiment, aws: Aws, now: datetime) -> Checks:
    """Return the checks that need credentials."""
    return {
        "quota": lambda: quota(experiment, aws),
        "system quota": lambda: system_quota(aws),
        "instance": lambda: instance_offered(experiment, aws),
        "capacity": lambda: capacity(experiment, aws, now=now),
        "kubernetes": lambda: kubernetes_version(experiment, aws),
        "node images": lambda: node_images(experiment, aws),
        "add-ons": lambda: addons(experiment, aws),
        "bootstrap": lambda: bootstrap(aws),
        "stacks": lambda: halfway_stacks(experiment, aws),
        "leftovers": lambda: leftovers(experiment, aws),
        "kms key": lambda: imported_key(aws, read_deployment(DEPLOYMENT)),
        **ExistingVpc(experiment, aws).checks(),
    }


def _of_external_services(
    experiment: Experiment, web: external_services.Web
) -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Yield the checks that need no credentials of AWS."""
    for image in external_services.images(experiment):
        yield "image", lambda image=image: external_services.image_exists(image, web)
    if external_services.models_with_token(experiment):
        yield "licences", lambda: external_services.licences(experiment, endpoint=web.hub)
    yield "admin_cidrs", lambda: external_services.admin_cidrs(experiment, web)


def refuse_misfits(experiment: Experiment, aws: Aws) -> None:
    """Raise `Refusal` for problems of an existing VPC, before a deployment creates anything there; `Outside` if
    there are none and something could not be asked."""
    findings = [run_check(name, check) for name, check in ExistingVpc(experiment, aws).checks().items()]
    named = [replace(check, where=check.where or f"preflight, {check.check}") for check in findings]
    if found := [check for check in named if check.state is State.FINDING]:
        raise Refusal(*found)
    if unknown := [check for check in named if check.state is State.UNKNOWN]:
        raise Outside(*unknown)


def run_check(name: str, check: Callable[[], Finding]) -> Finding:
    """Run a check and return its finding; a check that is refused does not stop the others."""
    try:
        return replace(check(), check=name)
    except Refusal as error:
        return replace(error.findings[0], check=name)


def credentials(aws: Aws) -> Finding:
    """Check the credentials."""
    identity = aws.identity
    return fine(f"{identity['Arn']} in account {identity['Account']}, {aws.region}")


def quota(experiment: Experiment, aws: Aws) -> Finding:
    """Check the quota of vCPUs for Trn instances, on demand or by spot. Capacity blocks do not count against either
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html)."""
    cluster = experiment.cluster
    if cluster.capacity.kind == "capacity-block":
        return fine("a capacity block does not count against the on-demand quota")
    user, need = (
        f"{cluster.max_nodes} x {cluster.instance} need",
        experiment.instance.vcpus * cluster.max_nodes,
    )
    if cluster.capacity.kind == "spot":
        return _vcpus(aws, SPOT_QUOTA, need, f"Trn spot instances, {user}")
    return _vcpus(aws, TRN_QUOTA, need, f"on-demand Trn instances, {user}")


def system_quota(aws: Aws) -> Finding:
    """Check the quota of vCPUs for system nodes and bastion, without regard to other instances of the account."""
    return _vcpus(
        aws,
        STANDARD_QUOTA,
        STANDARD_VCPUS,
        "on-demand standard instances, system nodes and the bastion need",
    )


def _vcpus(aws: Aws, code: str, need: int, what: str) -> Finding:
    asked = {"ServiceCode": "ec2", "QuotaCode": code}
    found = aws.client("service-quotas").find("get_service_quota", "NoSuchResourceException", **asked)
    have = float(found["Quota"]["Value"]) if found else 0.0  # an account that never had a value applied
    why = f"{have:g} vCPUs for running {what} {need}"
    raise_it = f"--quota-code {code} --desired-value {need} --region {aws.region}"
    command = f"aws service-quotas request-service-quota-increase --service-code ec2 {raise_it}"
    return fine(why) if have >= need else finding(why, command)


def instance_offered(experiment: Experiment, aws: Aws) -> Finding:
    """Check that EC2 offers the instance type in the zone."""
    instance, zone = experiment.instance.name, experiment.cluster.trn2_zone
    asked = "describe_instance_type_offerings", "InstanceTypeOfferings"
    named = [{"Name": "instance-type", "Values": [instance]}]
    entries = aws.client("ec2").every(*asked, LocationType="availability-zone", Filters=named)
    zones = sorted(entry["Location"] for entry in entries)
    if zone in zones:
        return fine(f"{instance} is offered in {zone}")
    if zones:
        why = f"{instance} is offered in {', '.join(zones)}, not in {zone}"
        return finding(why, f"begin cluster.availability_zones with {zones[0]}")
    command = f"aws ec2 describe-instance-type-offerings --filters Name=instance-type,Values={instance} --region ..."
    remedy = f"change cluster.region and cluster.availability_zones; `{command}` lists the zones"
    return finding(f"{instance} is not offered in {aws.region}", remedy)


def capacity(experiment: Experiment, aws: Aws, *, now: datetime) -> Finding:
    """Check that the reservation exists, matches, and how long it lasts; for spot, check the current price."""
    cluster, name = experiment.cluster, experiment.cluster.capacity.reservation_id
    if cluster.capacity.kind == "spot":
        return _by_spot(experiment, aws, now=now)
    if name is None:
        return fine("on demand: capacity is known only when nodes are started")
    codes = ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed")
    answer = aws.client("ec2").find("describe_capacity_reservations", *codes, CapacityReservationIds=[name])
    if not answer or not answer["CapacityReservations"]:
        why = f"{name}: no such reservation in account {aws.account}, {aws.region}"
        return finding(why, "check cluster.capacity.reservation_id, AWS_PROFILE and cluster.region")
    found = answer["CapacityReservations"][0]
    if found["InstanceType"] != cluster.instance:
        why = f"{name} reserves {found['InstanceType']}, the experiment wants {cluster.instance}"
        return finding(why, "name another reservation in cluster.capacity.reservation_id")
    if (zone := found["AvailabilityZone"]) != cluster.trn2_zone:
        why = f"{name} is in {zone}, the experiment in {cluster.trn2_zone}"
        return finding(why, f"set cluster.capacity.availability_zone to {zone}")
    if found["State"] in ("scheduled", "payment-pending", "pending", "assessing"):
        starts = f" and starts at {stamp(found['StartDate'])}" if found.get("StartDate") else ""
        why = f"{name} is {found['State']}{starts}"
        return finding(why, "start nodes after that; deploying with 0 nodes works before")
    if found["State"] != "active":
        return finding(f"{name} is {found['State']}", "buy another one and name it in cluster.capacity")
    ends = found["EndDate"].astimezone(UTC) if found.get("EndDate") else None
    if ends is not None and ends - BEFORE_BLOCK_ENDS <= now:
        return finding(f"{name} ends at {stamp(ends)}", "buy another block, or extend this one")
    written = cluster.capacity.ends_at  # the scale-down before the end of a block is deployed from the file
    if written is not None and (ends is None or moment(written) != ends):
        remedy = "remove cluster.capacity.ends_at"
        if ends is not None:
            remedy = f"write ends_at: {stamp(ends)!r} and deploy again"
        why = f"EC2 says {stamp(ends) if ends else 'no end'}, cluster.capacity.ends_at says {written}"
        return finding(why, remedy)
    if (instances := found["TotalInstanceCount"]) < cluster.max_nodes:
        why = f"{name} has {instances} instances, cluster.max_nodes is {cluster.max_nodes}"
        return finding(why, f"set cluster.max_nodes to {instances}")
    until = f" until {stamp(ends)}, {(ends - now) / timedelta(hours=1):.1f} hours from now" if ends else ""
    return fine(f"{name} is active{until}")


def _by_spot(experiment: Experiment, aws: Aws, *, now: datetime) -> Finding:
    cluster, usd = experiment.cluster, usd_per_hour(experiment, aws, now=now)
    if usd is None:
        why = f"EC2 has no spot price for {cluster.instance} in {cluster.trn2_zone}"
        return finding(why, "begin cluster.availability_zones with a zone that has one (./trnspec capacity)")
    why = f"by spot a {cluster.instance} costs ${usd:.2f} per hour in {cluster.trn2_zone}"
    maximum = cluster.capacity.max_usd_per_hour
    if maximum is not None and usd > maximum:
        remedy = "wait, use another zone (./trnspec capacity), or raise cluster.capacity.max_usd_per_hour"
        return finding(f"{why}, more than max_usd_per_hour {maximum:g}", remedy)
    return fine(f"{why}; whether one is there is known only when nodes are started")


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
        "pin a release in src/trnspec/experiment/catalogue/node_images.py that the region offers and whose driver serves the "
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


def bootstrap(aws: Aws) -> Finding:
    """Check that `cdk bootstrap` was run here, with a version that is new enough."""
    remedy = f".venv/bin/npx cdk bootstrap aws://{aws.account}/{aws.region}"
    found = aws.client("ssm").find("get_parameter", "ParameterNotFound", Name=BOOTSTRAP_PARAMETER)
    if found is None:
        return finding(f"{aws.region} of account {aws.account} is not bootstrapped", remedy)
    version = found["Parameter"]["Value"]
    if int(version) < BOOTSTRAP_VERSION:
        return finding(f"version {version}, {BOOTSTRAP_VERSION} or later is needed", remedy)
    return fine(f"version {version}")


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
        return finding(why, "add the statements of docs/what-you-have.md to it (aws kms put-key-policy)")
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
