"""CloudFormation can deploy the stacks, and neither it nor a role that it makes can become more."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import botocore.session
import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER
from moto.iam.aws_managed_policies import aws_managed_policies_data

from tests.infra.pipeline.bootstrap import ACCOUNT, EXECUTOR, statements
from tests.infra.pipeline.conftest import Template, of_type
from tests.infra.pipeline.iam import Request, allows
from tests.infra.templates import as_list, resolved

BOUNDARY_ARN = f"arn:aws:iam::{ACCOUNT}:policy/speculation-boundary"
OWN = f"arn:aws:iam::{ACCOUNT}:role/qwen3-32b-identity-ServingRole"
ADMIN = f"arn:aws:iam::{ACCOUNT}:role/Admin"
BOOTSTRAP = f"arn:aws:iam::{ACCOUNT}:role/cdk-hnb659fds-deploy-role-{ACCOUNT}-us-east-2"
SERVICE_ROLES = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role"
BALANCERS_ROLE = f"{SERVICE_ROLES}/elasticloadbalancing.amazonaws.com/AWSServiceRoleForElasticLoadBalancing"
EVERYTHING = [{"Effect": "Allow", "Action": "*", "Resource": "*"}]


def deployer(action: str, resource: str, **context: str | None) -> bool:
    """Whether CloudFormation may, with the execution policy inside the boundary."""
    known = {
        "aws:PrincipalArn": EXECUTOR,
        **{key.replace("__", ":"): value for key, value in context.items()},
    }
    return allows(Request(action, resource, known), statements("Execution"), boundary=statements("Boundary"))


def made_role(action: str, resource: str, **context: str | None) -> bool:
    """Whether a role that a stack made may, were its own policy to allow everything."""
    known = {"aws:PrincipalArn": OWN, **{key.replace("__", ":"): value for key, value in context.items()}}
    return allows(Request(action, resource, known), EVERYTHING, boundary=statements("Boundary"))


PLACES = {
    "OWN": OWN,
    "OWN_PROFILE": OWN.replace("role/", "instance-profile/"),
    "ADMIN": ADMIN,
    "BOOTSTRAP": BOOTSTRAP,
    "BOUNDARY": BOUNDARY_ARN,
    "EXECUTION": f"arn:aws:iam::{ACCOUNT}:policy/speculation-execution",
    "BALANCERS": BALANCERS_ROLE,
    "SPOT": f"{SERVICE_ROLES}/spot.amazonaws.com/AWSServiceRoleForEC2Spot",
    "USER": f"arn:aws:iam::{ACCOUNT}:user/x",
    "PROVIDER": f"arn:aws:iam::{ACCOUNT}:oidc-provider/x",
    "QUEUE": f"arn:aws:sqs:us-east-2:{ACCOUNT}:orders",
    "*": "*",
}
NONE: dict[str, str | None] = {"iam__PermissionsBoundary": None}
ADMINISTRATOR: dict[str, str | None] = {
    "iam__PermissionsBoundary": "arn:aws:iam::aws:policy/AdministratorAccess"
}
BOUND: dict[str, str | None] = {"iam__PermissionsBoundary": BOUNDARY_ARN}
CLOUDFORMATION_CANNOT: list[tuple[str, dict[str, str | None]]] = [
    ("iam:CreateRole OWN, iam:PutRolePolicy OWN", NONE),
    ("iam:CreateRole OWN", ADMINISTRATOR),
    ("iam:CreateRole ADMIN, iam:AttachRolePolicy ADMIN, iam:PutRolePolicy BOOTSTRAP", BOUND),
    ("iam:PutRolePermissionsBoundary OWN", BOUND),
    ("iam:PassRole OWN", {"iam__PassedToService": "sagemaker.amazonaws.com"}),
    ("iam:UpdateAssumeRolePolicy ADMIN, iam:UpdateAssumeRolePolicy BOOTSTRAP, sts:AssumeRole ADMIN", {}),
    ("iam:PassRole ADMIN, iam:PassRole BOOTSTRAP, iam:DeleteRolePermissionsBoundary OWN", {}),
    ("iam:CreatePolicyVersion BOUNDARY, iam:SetDefaultPolicyVersion EXECUTION", {}),
    ("iam:CreateUser USER, iam:CreateAccessKey USER, iam:CreateOpenIDConnectProvider PROVIDER", {}),
    ("organizations:LeaveOrganization *, account:CloseAccount *, cloudtrail:StopLogging *", {}),
    ("sqs:DeleteQueue QUEUE, ssm:SendCommand *, ssm:StartSession *", {}),
]
A_ROLE_CANNOT = (
    "iam:CreateRole OWN, iam:PutRolePolicy OWN, iam:UpdateAssumeRolePolicy OWN, iam:UpdateAssumeRolePolicy ADMIN",
    "iam:CreateUser USER, iam:CreateAccessKey USER, iam:CreatePolicyVersion BOUNDARY, iam:PassRole ADMIN",
    "iam:CreateServiceLinkedRole SPOT, iam:DeleteServiceLinkedRole BALANCERS, iam:DeleteRolePermissionsBoundary OWN",
    "sqs:SendMessage QUEUE, sts:AssumeRole ADMIN, codeconnections:CreateConnection *",
    "codeconnections:DeleteConnection *, organizations:LeaveOrganization *, cloudtrail:StopLogging *",
)


def asked(wanted: str) -> list[tuple[str, str]]:
    pairs = (one.split() for one in wanted.split(", "))
    return [(action, PLACES[place]) for action, place in pairs]


@pytest.mark.parametrize(("wanted", "context"), CLOUDFORMATION_CANNOT)
def test_cloudformation_cannot(wanted: str, context: dict[str, str | None]) -> None:
    assert [action for action, place in asked(wanted) if deployer(action, place, **context)] == []


@pytest.mark.parametrize("wanted", A_ROLE_CANNOT)
def test_a_role_made_with_every_right_still_cannot(wanted: str) -> None:
    assert [action for action, place in asked(wanted) if made_role(action, place, **BOUND)] == []


def test_the_evaluation_is_of_the_boundary_and_not_of_nothing() -> None:
    assert made_role("s3:GetObject", "arn:aws:s3:::qwen3-32b-results/x")
    assert made_role("sts:AssumeRole", "arn:aws:iam::444455556666:role/qwen3-32b-us-east-2-delivery-start")
    assert deployer("iam:CreateRole", OWN, iam__PermissionsBoundary=BOUNDARY_ARN)
    assert deployer("iam:PassRole", OWN, iam__PassedToService="pods.eks.amazonaws.com")


def test_a_role_made_with_every_right_creates_nothing_else_in_iam() -> None:
    operations = botocore.session.get_session().get_service_model("iam").operation_names
    creating = [one for one in operations if one.startswith("Create")]
    assert len(creating) > 10
    for resource in ("*", OWN, ADMIN, f"arn:aws:iam::{ACCOUNT}:user/x"):
        assert [one for one in creating if made_role(f"iam:{one}", resource)] == []


def managed_policy(name: str) -> list[dict[str, Any]]:
    """Statements of a policy that AWS keeps, as moto has copied it."""
    found: list[dict[str, Any]] = json.loads(aws_managed_policies_data)[name]["Document"]["Statement"]
    return found


def test_the_clusters_role_can_make_network_load_balancers_inside_the_boundary() -> None:
    """EKS runs Kubernetes' AWS cloud provider with the cluster's role, and `promote --certificate` asks it for one."""
    cluster = managed_policy("AmazonEKSClusterPolicy")
    known = {"aws:PrincipalArn": OWN, "iam:AWSServiceName": "elasticloadbalancing.amazonaws.com"}

    def may(action: str, resource: str = "*") -> bool:
        return allows(Request(action, resource, known), cluster, boundary=statements("Boundary"))

    operations = set(botocore.session.get_session().get_service_model("elbv2").operation_names)
    granted = {
        action.removeprefix("elasticloadbalancing:")
        for action in cluster[0]["Action"]
        if action.startswith("elasticloadbalancing:")
    }
    assert {"CreateLoadBalancer", "CreateListener", "CreateTargetGroup", "RegisterTargets"} <= granted
    assert {one for one in granted if may(f"elasticloadbalancing:{one}")} == granted & operations
    assert may("iam:CreateServiceLinkedRole", BALANCERS_ROLE)


def test_the_boundary_cuts_nothing_that_a_role_of_the_stacks_is_given(
    pipeline: Template, stages: dict[str, dict[str, Template]]
) -> None:
    """But load balancers of the first kind, which nothing asks for, and a wildcard over roles, which it narrows on purpose."""
    stacks = {f"qwen3-32b-{part}": one for stage in stages.values() for part, one in stage.items()}
    granted = {
        (action, meant(action, str(resource), stack))
        for stack, template in {"speculation-delivery": pipeline, **stacks}.items()
        for statement in granted_in(template)
        for action in as_list(statement["Action"])
        for one in as_list(statement["Resource"])
        for resource in as_list(resolved(one))
    }
    assert len(granted) > 300
    classic = botocore.session.get_session().get_service_model("elb").operation_names
    known = {("sts:AssumeRole", f"arn:*:iam::{ACCOUNT}:role/*")}
    known |= {(f"elasticloadbalancing:{operation}", "*") for operation in classic}
    assert {one for one in granted if not made_role(*one)} - known == set()


def meant(action: str, resource: str, stack: str) -> str:
    """What stands for a resource: of one that the template makes, a name as CloudFormation begins it."""
    if action == "iam:CreateServiceLinkedRole":
        return BALANCERS_ROLE
    kind = {"sts": f"iam::{ACCOUNT}:role/", "sqs": f"sqs:us-east-2:{ACCOUNT}:"}.get(action.partition(":")[0])
    own = re.match(r"<(\w+)", resource)
    return f"arn:aws:{kind}{stack}-{own[1]}-1A2B3C" if kind and own else resource


def granted_in(template: Template) -> list[dict[str, Any]]:
    """Every statement that allows something to a role, those of managed policies too."""
    documents = [
        policy["PolicyDocument"]
        for properties in of_type(template, "AWS::IAM::Role").values()
        for policy in properties.get("Policies", ())
    ] + [properties["PolicyDocument"] for properties in of_type(template, "AWS::IAM::Policy").values()]
    found = [statement for document in documents for statement in as_list(document["Statement"])]
    for properties in of_type(template, "AWS::IAM::Role").values():
        for arn in properties.get("ManagedPolicyArns", ()):
            found += managed_policy(str(resolved(arn)).rpartition("/")[2])
    return [statement for statement in found if statement["Effect"] == "Allow"]


OTHERS_POLICIES = re.compile(r"iam:(Get|Put)(User|Group)Policy")
"""`AWS::IAM::Policy` could also be one of a user or a group; here it is a role's."""


def making(type_: str) -> list[str]:
    """What CloudFormation's schema says that making a resource asks of the resource's own service."""
    if type_ == "AWS::CodeBuild::Project":
        return ["codebuild:CreateProject"]  # its schema names none
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-2", type_).schema
    service = type_.split("::")[1].lower()
    asked: list[str] = schema["handlers"]["create"]["permissions"]
    return [one for one in asked if one.startswith(f"{service}:") and not OTHERS_POLICIES.fullmatch(one)]


def test_cloudformation_can_make_every_resource_that_the_stacks_have(
    pipeline: Template, stages: dict[str, dict[str, Template]]
) -> None:
    templates = [pipeline, *(template for stage in stages.values() for template in stage.values())]
    made = {(one["Type"], name) for template in templates for name, one in template["Resources"].items()}
    types = {type_ for type_, _ in made if not type_.startswith(("Custom::", "AWS::CloudFormation::"))}
    queues = [name for type_, name in made if type_ == "AWS::SQS::Queue"]
    assert queues
    for type_ in types:
        resources = [PLACES["OWN_PROFILE"] if type_ == "AWS::IAM::InstanceProfile" else OWN]
        if type_.startswith("AWS::SQS::"):  # which CloudFormation names after stack and construct
            resources = [f"arn:aws:sqs:us-east-2:{ACCOUNT}:qwen3-32b-nodes-{one}-1A2B3C" for one in queues]
            assert all(made_role("sqs:SendMessage", one) for one in resources)
        for action, resource in product(making(type_), resources):
            assert deployer(action, resource, iam__PermissionsBoundary=BOUNDARY_ARN), (type_, action)


def test_every_role_and_profile_that_the_stacks_make_has_a_name_that_the_policy_knows(
    pipeline: Template, stages: dict[str, dict[str, Template]]
) -> None:
    """CloudFormation begins a name with the stack's, unless the template gives one."""
    patterns = statements("Execution")
    (own,) = [one for one in patterns if one["Sid"] == "OwnRoles"]
    known = [pattern.rpartition("/")[2].rstrip("*") for pattern in own["Resource"]]
    for template in (pipeline, *(template for stage in stages.values() for template in stage.values())):
        for resource in template["Resources"].values():
            name = resource.get("Properties", {}).get("RoleName")
            if resource["Type"] == "AWS::IAM::Role" and isinstance(name, str):
                assert any(name.startswith(prefix) for prefix in known), name


def test_the_policies_fit_into_what_iam_takes() -> None:
    for name in ("Boundary", "Execution"):
        text = re.sub(r"\s", "", json.dumps({"Version": "2012-10-17", "Statement": statements(name)}))
        assert len(text) <= 6144, name


def test_no_statement_of_the_execution_policy_is_a_wildcard_over_iam() -> None:
    actions: list[Any] = [
        action
        for one in statements("Execution")
        for action in (one["Action"] if isinstance(one["Action"], list) else [one["Action"]])
    ]
    assert "*" not in actions
    assert not [action for action in actions if action.startswith("iam:") and "*" in action]
