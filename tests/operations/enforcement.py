"""Calls of boto3 under IAM policies: one that its caller's statements do not allow is answered as AWS would answer it.

The evaluator is ours (`tests/infra/pipeline/iam.py`), not AWS's. Actions, their resource types and ARN formats are those of AWS's
Service Authorization Reference, of which cfn-lint has a copy. How a call names its resource is written here: each ARN must
fit a format of its action, and an action that takes a resource must have one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import cfnlint
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from moto.core.models import DEFAULT_ACCOUNT_ID

from tests.conftest import ROOT
from tests.infra.pipeline.iam import Request, Statement, allows, committed, template_of, unknown_keys
from trnspec.operations.__main__ import VERBS

KEY = f"arn:aws:kms:us-east-2:{DEFAULT_ACCOUNT_ID}:key/0a1b2c3d-0000-4000-8000-000000000000"
"""That the buckets are encrypted with."""
_PREFIXES = {"resourcegroupstaggingapi": "tag", "service-quotas": "servicequotas"}
"""Of actions, where they are not the name of boto3's client."""
_ACTIONS = {
    "s3:HeadBucket": "ListBucket",
    "s3:ListObjectsV2": "ListBucket",
    "s3:HeadObject": "GetObject",
    "s3:CreateMultipartUpload": "PutObject",
    "s3:UploadPart": "PutObject",
    "s3:CompleteMultipartUpload": "PutObject",
}
"""Of operations, where they have another name: https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html"""
_STACK = "arn:aws:cloudformation:{region}:{account}:stack/{StackName}/0a1b"
_CLUSTER = "arn:aws:eks:{region}:{account}:cluster/{clusterName}"
_SCHEDULE = "arn:aws:scheduler:{region}:{account}:schedule/{GroupName}/{Name}"
_GROUP = "arn:aws:eks:{region}:{account}:nodegroup/{clusterName}/{nodegroupName}/0a1b"
_ENTRY = "arn:aws:eks:{region}:{account}:access-entry/{clusterName}/role/{account}/{principal}/0a1b"
_OBJECT = "arn:aws:s3:::{Bucket}/{Key}"
_ARNS = {
    "cloudformation:DeleteStack": _STACK,
    "cloudformation:DescribeStackEvents": _STACK,
    "cloudformation:DescribeStacks": _STACK,
    "cloudformation:GetTemplate": _STACK,
    "cloudformation:ListStackResources": _STACK,
    "cloudformation:UpdateTerminationProtection": _STACK,
    "codebuild:BatchGetBuilds": "arn:aws:codebuild:{region}:{account}:project/{project}",
    "codebuild:ListBuildsForProject": "arn:aws:codebuild:{region}:{account}:project/{projectName}",
    "codebuild:StartBuild": "arn:aws:codebuild:{region}:{account}:project/{projectName}",
    "codebuild:StopBuild": "arn:aws:codebuild:{region}:{account}:project/{project}",
    "ec2:DeleteNetworkInterface": "arn:aws:ec2:{region}:{account}:network-interface/{NetworkInterfaceId}",
    "ec2:DeleteSecurityGroup": "arn:aws:ec2:{region}:{account}:security-group/{GroupId}",
    "ec2:DescribeVpcAttribute": "arn:aws:ec2:{region}:{account}:vpc/{VpcId}",
    "ec2:GetManagedPrefixListEntries": "arn:aws:ec2:{region}:aws:prefix-list/{PrefixListId}",
    "ecr:DescribeImages": "arn:aws:ecr:{region}:{account}:repository/{repositoryName}",
    "eks:DeleteAccessEntry": _ENTRY,
    "eks:DescribeAccessEntry": _ENTRY,
    "eks:DescribeAddon": "arn:aws:eks:{region}:{account}:addon/{clusterName}/{addonName}/0a1b",
    "eks:DescribeCluster": "arn:aws:eks:{region}:{account}:cluster/{name}",
    "eks:DescribeNodegroup": _GROUP,
    "eks:ListAccessEntries": _CLUSTER,
    "eks:ListAddons": _CLUSTER,
    "eks:ListNodegroups": _CLUSTER,
    "eks:ListPodIdentityAssociations": _CLUSTER,
    "eks:UpdateNodegroupConfig": _GROUP,
    "iam:SimulatePrincipalPolicy": "{PolicySourceArn}",
    "kms:DescribeKey": "{KeyId}",
    "kms:GetKeyPolicy": "{KeyId}",
    # The form without `:*` is for tags only:
    # https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/iam-access-control-overview-cwl.html
    "logs:DeleteLogGroup": "arn:aws:logs:{region}:{account}:log-group:{logGroupName}:*",
    "logs:GetLogEvents": "arn:aws:logs:{region}:{account}:log-group:{logGroupName}:log-stream:{logStreamName}",
    "s3:AbortMultipartUpload": _OBJECT,
    "s3:DeleteObject": _OBJECT,
    "s3:DeleteObjectTagging": _OBJECT,
    "s3:GetObject": _OBJECT,
    "s3:GetObjectTagging": _OBJECT,
    "s3:ListBucket": "arn:aws:s3:::{Bucket}",
    "s3:PutObject": _OBJECT,
    "s3:PutObjectTagging": _OBJECT,
    "scheduler:CreateSchedule": _SCHEDULE,
    "scheduler:DeleteSchedule": _SCHEDULE,
    "scheduler:GetSchedule": _SCHEDULE,
    "scheduler:UpdateSchedule": _SCHEDULE,
    "servicequotas:GetAWSDefaultServiceQuota": "arn:aws:servicequotas:{region}:{account}:{ServiceCode}/{QuotaCode}",
    "servicequotas:GetServiceQuota": "arn:aws:servicequotas:{region}:{account}:{ServiceCode}/{QuotaCode}",
    "sns:ListSubscriptionsByTopic": "{TopicArn}",
    "sns:Publish": "{TopicArn}",
    "ssm:GetParameter": "arn:aws:ssm:{region}:{account}:parameter{Name}",
    "ssm:StartSession": "arn:aws:ec2:{region}:{account}:instance/{Target}",
    "ssm:TerminateSession": "arn:aws:ssm:{region}:{account}:session/{SessionId}",
    "sts:AssumeRole": "{RoleArn}",
}
_UNRESTRICTED = {"cloudwatch:DescribeAlarms", "cloudwatch:PutMetricData"}
"""Whose resource type does not narrow what is called here: alarms that are listed, metrics without a dataset."""
_CODES = {"ec2": "UnauthorizedOperation"} | dict.fromkeys(
    ("cloudformation", "cloudwatch", "iam", "s3", "sts"), "AccessDenied"
)
_ABSENT = ("NoSuchKey", "404")
_PRODUCT = tuple(f"{ROOT}/src/trnspec/{room}/" for room in ("operations", "store", "benchmark", "core"))
_OPERATIONS = f"{ROOT}/src/trnspec/operations"
_NOT_THE_OPERATORS = (f"{_OPERATIONS}/delivery.py", f"{_OPERATIONS}/running/in_build.py")
"""What the pipeline and the builds call, they call with roles of their own."""


@dataclass(frozen=True)
class Caller:
    """Somebody with these statements, by region, inside a boundary if there is one. `always`: also calls that the product does
    not make are this caller's."""

    arn: str
    statements: Callable[[str], tuple[Statement, ...]]
    boundary: tuple[Statement, ...] | None = None
    key: str = KEY
    always: bool = False


OPERATOR = ROOT / "infra" / "bootstrap" / "operator.yaml"
NAMES = ("Name", "Name2", "Name3")
"""Parameters of that template: how the experiments' names begin."""


@cache
def operator(verb: str) -> Caller:
    """Somebody with the committed policies that name this verb, deployed in every region and for every experiment: the tests have
    several."""

    @cache
    def statements(region: str) -> tuple[Statement, ...]:
        given = {"AWS__Region": region, "AWS__AccountId": DEFAULT_ACCOUNT_ID} | dict.fromkeys(NAMES, "*")
        return tuple(
            statement
            for name, policy in template_of(OPERATOR)["Resources"].items()
            if verb in policy["Metadata"]["Verbs"]
            for statement in committed(OPERATOR, name, **given)
        )

    return Caller(f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/operator", statements)


@dataclass
class Enforcement:
    """Who calls at present, and what was refused to whom, or could not be judged."""

    caller: Caller | None = None
    by_module: bool = False
    """Nobody acts, but what the product calls is judged as the verb whose module a test calls."""
    denied: list[str] = field(default_factory=list)
    allowed: set[str] = field(default_factory=set)
    """Actions that somebody needed."""
    roles: dict[str, Caller] = field(default_factory=dict)
    """Who a caller is once it has taken on a role, by ARN."""

    @contextmanager
    def acting_as(self, caller: Caller | None) -> Iterator[None]:
        """As long as it lasts."""
        before, self.caller = self.caller, caller
        try:
            yield
        finally:
            self.caller = before


@contextmanager
def enforcing() -> Iterator[Enforcement]:
    """Every client of this process, whenever it was made; nobody is refused anything before a caller is set."""
    state, real = Enforcement(), BaseClient._make_api_call

    def call(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        caller = state.caller
        if caller is None and state.by_module and _by_product() and not _by_builds():
            caller = operator(_verb_under_way())
        if caller is None or not (caller.always or _by_product()):
            return real(client, operation, parameters)
        try:
            for request in requests(client, operation, parameters, caller):
                _judge(state, caller, request, client, operation)
        except AssertionError as error:  # which the product would take for a strange answer
            state.denied.append(str(error))
            raise
        state.caller = state.roles.get(parameters.get("RoleArn", ""), state.caller)
        try:
            return real(client, operation, parameters)
        except ClientError as error:
            if error.response["Error"]["Code"] not in _ABSENT or "Key" not in parameters:
                raise
            # Only who may list the bucket learns that an object is absent.
            listing = Request("s3:ListBucket", f"arn:aws:s3:::{parameters['Bucket']}", {"s3:prefix": None})
            _judge(state, caller, listing, client, operation)
            raise

    BaseClient._make_api_call = call
    try:
        yield state
    finally:
        BaseClient._make_api_call = real


def _by_product() -> bool:
    """Whether the call comes from the product, and not from a test or what stands for a controller. `src/trnspec/operations/cloud/aws.py`,
    which calls for both, says nothing of that; a thread of boto3's uploads has no caller, and only pods upload."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(f"{ROOT}/tests/"):
            return False
        if name.startswith(_PRODUCT) and not name.endswith("/operations/cloud/aws.py"):
            return True
        frame = frame.f_back
    return True


def _by_builds() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename in _NOT_THE_OPERATORS:
            return True
        frame = frame.f_back
    return False


@cache
def _verbs() -> dict[str, str]:
    """The verb of each module of `src/trnspec/operations`, or of each folder that is one verb's."""
    shared, found = ("cloud", "operations"), dict[str, str]()
    for verb in (
        "render",
        *(name for name, one in VERBS.items() if one.group == "AWS" and name != "promote"),
    ):
        path = ROOT / "src" / f"{VERBS[verb].module.replace('.', '/')}.py"
        found[str(path if path.parent.name in shared else path.parent)] = verb
    parts = {"cloud/ec2": "preflight", "cloud/nodegroup": "nodes", "delivery": "run"}
    return found | {f"{_OPERATIONS}/{part}.py": verb for part, verb in parts.items()}


def _verb_under_way() -> str:
    """Of the outermost module of the product; what several verbs share has what each of them has."""
    frame: FrameType | None = sys._getframe(2)
    found = "status"
    while frame is not None and not (path := Path(frame.f_code.co_filename)).is_relative_to(ROOT / "tests"):
        known = _verbs()
        found = known.get(str(path), known.get(str(path.parent), found))
        frame = frame.f_back
    return found


def _judge(state: Enforcement, caller: Caller, request: Request, client: Any, operation: str) -> None:
    own = caller.statements(_region(client))
    assert not (unknown := unknown_keys(request, [*own, *(caller.boundary or ())])), (request, unknown)
    if allows(request, own, boundary=caller.boundary):
        state.allowed.add(request.action)
        return
    state.denied.append(f"{caller.arn}: {request.action} on {request.resource}")
    service = client.meta.service_model.service_name
    why = (
        f"User: {caller.arn} is not authorized to perform: {request.action} on resource: {request.resource} because no "
        f"identity-based policy allows the {request.action} action"
    )
    error: Any = {"Code": _CODES.get(service, "AccessDeniedException"), "Message": why}
    raise ClientError(
        {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 403, "RequestId": "0a1b"}}, operation
    )


def _region(client: Any) -> str:
    """A service without regions is asked by who deployed into the reference's."""
    name = str(client.meta.region_name)
    return "us-east-2" if name == "aws-global" else name


def requests(client: Any, operation: str, parameters: Mapping[str, Any], caller: Caller) -> Iterator[Request]:
    """What a call asks IAM for; what it does on the caller's behalf, too."""
    service, region = client.meta.service_model.service_name, _region(client)
    prefix = _PREFIXES.get(service, service)
    action = f"{prefix}:{_ACTIONS.get(f'{prefix}:{operation}', operation)}"
    if action == "sts:GetCallerIdentity":
        return  # needs no right: https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
    known = {"region": region, "account": DEFAULT_ACCOUNT_ID, **parameters}
    if "principalArn" in parameters:
        known["principal"] = parameters["principalArn"].rpartition("/")[2]
    if service == "codebuild" and (ids := parameters.get("ids", [parameters.get("id", "")])):
        known["project"] = ids[0].partition(":")[0]  # a build is `project:id`
    yield Request(action, resource_of(action, known), {**_BY_EVERYBODY, **_context(action, parameters)})
    if action == "ssm:StartSession":
        yield Request(action, f"arn:aws:ssm:{region}::document/{parameters['DocumentName']}", _BY_EVERYBODY)
    if action in ("scheduler:CreateSchedule", "scheduler:UpdateSchedule"):
        service = {"iam:PassedToService": "scheduler.amazonaws.com"}
        yield Request("iam:PassRole", parameters["Target"]["RoleArn"], {**_BY_EVERYBODY, **service})
    if operation in _USING and re.search(r"-(checkpoints|artifacts|results)-", parameters["Bucket"]):
        bucket = f"arn:aws:s3:::{parameters['Bucket']}"  # they have a bucket key
        through = {"kms:ViaService": f"s3.{region}.amazonaws.com", "kms:EncryptionContext:aws:s3:arn": bucket}
        for used in _USING[operation]:
            yield Request(f"kms:{used}", caller.key, {**_BY_EVERYBODY, **through})


_BY_EVERYBODY: dict[str, str | None] = {
    "aws:PrincipalArn": f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:role/qwen3-32b-somebody"
}
_USING = {
    "GetObject": ("Decrypt",),
    "PutObject": ("GenerateDataKey",),
    "CreateMultipartUpload": ("GenerateDataKey", "Decrypt"),
}
"""Of a key, by S3 for its caller: https://docs.aws.amazon.com/AmazonS3/latest/userguide/UsingKMSEncryption.html"""


_OVERRIDES = {
    "environment.certificate": "certificate",
    "environment.image": "image",
    "environment.type": "environmentType",
    "secondarySources": "secondarySources",
    "serviceRole": "serviceRole",
    "source.buildspec": "buildspec",
    "source.location": "sourceLocation",
}
"""Condition keys of a build that is started, by what overrides its project:
https://docs.aws.amazon.com/codebuild/latest/userguide/action-context-keys.html"""


def _context(action: str, parameters: Mapping[str, Any]) -> dict[str, str | tuple[str, ...] | None]:
    match action:
        case "codebuild:StartBuild":
            variables = parameters.get("environmentVariablesOverride")
            names = tuple(one["name"] for one in variables) if variables else None
            given = {
                f"codebuild:{key}": parameters.get(f"{name}Override") for key, name in _OVERRIDES.items()
            }
            return {"codebuild:environment.environmentVariables.name": names, **given}
        case "s3:ListBucket":
            return {"s3:prefix": parameters.get("Prefix")}
        case "cloudwatch:PutMetricData":
            return {"cloudwatch:namespace": parameters["Namespace"]}
        case "ssm:StartSession":
            return {"ssm:resourceTag/Name": "qwen3-32b-way-in", "ssm:SessionDocumentAccessCheck": "true"}
        case "ec2:DeleteNetworkInterface":  # the tests of teardown have one cluster
            return {"aws:ResourceTag/cluster.k8s.amazonaws.com/name": "qwen3-32b"}
        case "ec2:DeleteSecurityGroup":
            return {"aws:ResourceTag/aws:eks:cluster-name": "qwen3-32b"}
        case "ssm:TerminateSession":  # its own: the variable is the same on both sides
            return {"ssm:resourceTag/aws:ssmmessages:session-id": "${aws:userid}"}
    return {}


def resource_of(action: str, known: Mapping[str, Any]) -> str:
    """The ARN that a call names, held against the formats of its action; `*` where the action takes no resource, or the call
    lists everything."""
    formats = arn_formats(action)
    needed = _ARNS.get(action, "*")
    names = re.findall(r"\{(\w+)\}", needed)
    if needed == "*" or not names or not all(name in known for name in names):
        takes = formats and action not in _UNRESTRICTED | {"cloudformation:DescribeStacks"}
        assert not takes, f"{action}: say in {__file__} which resource {sorted(known)} name"
        return "*"
    arn = needed.format_map(dict(known))
    assert any(one.fullmatch(arn) for one in formats), f"{action}: {arn} is not a resource that it takes"
    return arn


@cache
def arn_formats(action: str) -> tuple[re.Pattern[str], ...]:
    """Of the resource types of an action."""
    service, _, name = action.partition(":")
    about = _reference()[service]
    assert name.lower() in about["Actions"], f"{action} is not an action of IAM"
    types = about["Actions"][name.lower()].get("Resources", ())
    formats = [text for one in types for text in about["Resources"][one]["ARNFormats"]]
    # An AWS-managed object has no account, or the word `aws`.
    fields = {"Partition": "aws", "Region": "[a-z0-9-]*", "Account": "([0-9]{12}|aws)?"}
    return tuple(re.compile(re.sub(r"\$\{(\w+)\}", lambda found: fields[found[1]], one)) for one in formats)


@cache
def _reference() -> dict[str, Any]:
    file = Path(cfnlint.__file__).parent / "data" / "AdditionalSpecs" / "Policies.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
