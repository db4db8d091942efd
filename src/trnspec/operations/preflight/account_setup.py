"""What an account and a region must have before a deployment: pinned versions that EKS offers, the bootstrap of the CDK, the key, and
no remains of an earlier deployment."""

from __future__ import annotations

from dataclasses import replace

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
BOOTSTRAP_VERSION = 6
"""Minimum that the default synthesizer accepts (https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html)."""
_ANY_ROLE = "a-role-of-nobody"


def kubernetes_version(experiment: Experiment, aws: Aws) -> Finding:
    """Check that EKS offers the version with standard support."""
    version = experiment.cluster.kubernetes
    entries = aws.client("eks").paginate("describe_cluster_versions", "clusterVersions")
    versions = {entry["clusterVersion"]: entry["versionStatus"] for entry in entries}
    if version not in versions:
        remedy = f"set cluster.kubernetes to one of {', '.join(sorted(versions))}"
        return finding(f"EKS does not offer {version} in {aws.region}", remedy)
    if versions[version] != "STANDARD_SUPPORT":
        why = f"EKS {version} is not in standard support, so the control plane costs $0.60 per hour"
        return finding(why, "set cluster.kubernetes to a version in standard support")
    return fine(f"EKS {version}, standard support")


def cluster_version(experiment: Experiment, aws: Aws) -> Finding:
    """Compare the file's version with the cluster's. EKS upgrades a cluster after standard support, by one minor version at a time, and
    cannot downgrade it (https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html)."""
    name, version = cluster_name(experiment), experiment.cluster.kubernetes
    found = aws.client("eks").find("describe_cluster", "ResourceNotFoundException", name=name)
    if found is None:
        return fine(f"there is no cluster {name} yet")
    actual = str(found["cluster"]["version"])
    minor, wanted = (int(one.partition(".")[2]) for one in (actual, version))
    if minor <= wanted <= minor + 1:
        return fine(f"cluster {name} has Kubernetes {actual}; the file asks for {version}")
    why = f"cluster {name} has Kubernetes {actual}, the file asks for {version}; EKS"
    first = actual if minor > wanted else f"1.{minor + 1}"
    write = f'write kubernetes: "{first}" into the section cluster, then make manifests, and deploy'
    if minor < wanted:
        if first not in ADDON_VERSIONS:
            write = f"aws eks update-cluster-version --name {name} --kubernetes-version {first} --region {aws.region}"
        return finding(f"{why} upgrades one minor version at a time", f"{write}; then go on to {version}")
    if actual not in ADDON_VERSIONS:
        write = (
            f"pin {actual} in infra/pins.py and src/trnspec/experiment/catalogue/runtimes.py, then {write}"
        )
    return finding(f"{why} cannot downgrade", write)


def node_images(experiment: Experiment, aws: Aws) -> Finding:
    """Check the images of both node groups by the names that Amazon gives them
    (https://github.com/awslabs/amazon-eks-ami/releases). If a pinned image was removed, a deployment fails after 30 minutes."""
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
        "pin another release in src/trnspec/experiment/catalogue/runtimes.py: "
        f"aws ec2 describe-images --owners amazon --region {aws.region} --filters "
        f"Name=name,Values='amazon-eks-node-al2023-x86_64-neuron-{version}-*' --query 'Images[].Name'",
    )


def addons(experiment: Experiment, aws: Aws) -> Finding:
    """Check that EKS offers the pinned versions of the managed add-ons."""
    eks, version, wrong = aws.client("eks"), experiment.cluster.kubernetes, []
    for name, pinned in sorted(ADDON_VERSIONS.get(version, {}).items()):
        asked = {"kubernetesVersion": version, "addonName": name}
        entries = eks.paginate("describe_addon_versions", "addons", **asked)
        if pinned not in [offer["addonVersion"] for entry in entries for offer in entry["addonVersions"]]:
            wrong.append(f"{name} {pinned}")
    if not wrong:
        return fine(f"all pinned versions are offered for {version}")
    why = f"EKS {version} in {aws.region} does not offer {', '.join(wrong)}"
    return finding(why, "pin an offered version in infra/pins.py, test, review")


def bootstrap(experiment: Experiment, aws: Aws, settings: DeploymentSettings) -> Finding:
    """Check that `cdk bootstrap` was run here, and that its CloudFormation may make this experiment's roles, but not every role."""
    remedy = (
        "deploy infra/bootstrap/policies.yaml (docs/pipeline.md), then "
        f".venv/bin/npx cdk bootstrap aws://{aws.account}/{aws.region} --cloudformation-execution-policies "
        f"arn:aws:iam::{aws.account}:policy/speculation-execution --custom-permissions-boundary speculation-boundary"
    )
    found = aws.client("ssm").find("get_parameter", "ParameterNotFound", Name=BOOTSTRAP_PARAMETER)
    version = found["Parameter"]["Value"] if found else "0"
    if int(version) < BOOTSTRAP_VERSION:
        why = f"version {version}, {BOOTSTRAP_VERSION} or later is needed"
        return finding(why if found else f"{aws.region} of account {aws.account} is not bootstrapped", remedy)
    try:
        decision = _may_make_role(f"{experiment.name}-cluster", aws, settings)
        any_role = _may_make_role(_ANY_ROLE, aws, settings) == "allowed"
    except AwsError as error:
        if not NOT_ALLOWED.fullmatch(error.code):
            raise
        return replace(error.findings[0], state=State.WARNING)
    if decision == "explicitDeny" and not settings.permissions_boundary:
        why = "CloudFormation may make roles with a permissions boundary only, and deployment.yaml names none"
        return finding(why, "write permissions_boundary: speculation-boundary into it, or your policy's name")
    if decision != "allowed":
        why = f"CloudFormation may not make roles whose names begin with {experiment.name}- (IAM says {decision})"
        return finding(why, roles_remedy(experiment.name))
    if any_role:
        why = f"version {version}; CloudFormation has AdministratorAccess, the default, and may make any role: whoever deploys is an administrator"
        return replace(finding(why, remedy), state=State.WARNING)
    return fine(f"version {version}; CloudFormation may create roles of {experiment.name} only")


def _may_make_role(role: str, aws: Aws, settings: DeploymentSettings) -> str:
    """Return what IAM decides about CloudFormation's role of the bootstrap, with the boundary of the settings
    (https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html). Not verified on AWS."""
    account, name = f"arn:aws:iam::{aws.account}", settings.permissions_boundary
    boundary = {
        "ContextKeyName": "iam:PermissionsBoundary",
        "ContextKeyType": "string",
        "ContextKeyValues": [f"{account}:policy/{name}"],
    }
    answer = aws.client("iam").simulate_principal_policy(
        PolicySourceArn=f"{account}:role/cdk-hnb659fds-cfn-exec-role-{aws.account}-{aws.region}",
        ActionNames=["iam:CreateRole"],
        ResourceArns=[f"{account}:role/{role}"],
        ContextEntries=[boundary] if name else [],
    )
    return str(answer["EvaluationResults"][0]["EvalDecision"])


def administrators(aws: Aws, settings: DeploymentSettings) -> Finding:
    """Check that somebody may use the cluster: a deployment makes nobody an administrator of it."""
    if settings.admins:
        return fine(f"{count(len(settings.admins), 'administrator')} of the cluster")
    arn = aws.identity["Arn"]
    if "assumed-role" in arn:
        arn = f"the ARN of your role (aws iam get-role --query Role.Arn --role-name {arn.split('/')[1]})"
    why = "admins of deployment.yaml is empty, so nobody could use kubectl, run or verify on the cluster"
    return finding(why, f"write {arn} there, and commit it")


def imported_key(aws: Aws, settings: DeploymentSettings) -> Finding:
    """Check the state of the KMS key of deployment.yaml; its policy is not read."""
    arn = settings.kms_key
    if not arn:
        return fine("not set: stacks create their keys; logs and disks use AWS managed keys")
    remedy = "name another key in deployment.yaml, or enable this one"
    if (found := aws.client("kms").find("describe_key", "NotFoundException", KeyId=arn)) is None:
        return finding(f"{arn}: no such key", remedy)
    state, kind = found["KeyMetadata"]["KeyState"], found["KeyMetadata"].get("KeySpec")
    if (state, kind) != ("Enabled", "SYMMETRIC_DEFAULT"):
        return finding(f"{arn} is {state}, of kind {kind}; a symmetric key is needed, enabled", remedy)
    return fine(f"{arn} is enabled; its policy needs the statements of docs/yours.md")


def incomplete_stacks(experiment: Experiment, aws: Aws) -> Finding:
    """Check that no earlier deployment or teardown left an incomplete stack."""
    found = cloudformation.incomplete_stacks(cloudformation.deployed(experiment, aws), experiment, aws)
    if not found:
        return fine("no stack is incomplete")
    more = f" ({len(found) - 1} more: ./trnspec status {experiment.file})" if len(found) > 1 else ""
    return replace(found[0], why=f"{found[0].why}{more}")


def leftovers(experiment: Experiment, aws: Aws) -> Finding:
    """Check that no log group or bucket has a name that a stack will use which is not deployed."""
    there = {stack.name for stack in cloudformation.deployed(experiment, aws) if stack.made}
    has_cluster, has_storage = (stack_name(experiment, part) in there for part in ("cluster", "storage"))
    groups = [] if has_cluster else experiment_resources.log_groups(experiment, aws)
    buckets = [] if has_storage else experiment_resources.buckets(experiment, aws)
    if not (groups or buckets):
        return fine("an earlier deployment left nothing")
    emptied = "; copy what you need out of the buckets and empty them, all versions, first" if buckets else ""
    why = f"{', '.join((*groups, *buckets))}: the next deployment makes these names, and no stack owns them{emptied}"
    commands = [f"aws logs delete-log-group --log-group-name {name} --region {aws.region}" for name in groups]
    commands += [f"aws s3api delete-bucket --bucket {name} --region {aws.region}" for name in buckets]
    return finding(why, " && ".join(commands))
