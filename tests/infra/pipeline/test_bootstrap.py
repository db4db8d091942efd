"""CloudFormation can deploy the stacks, and neither it nor a role that it makes can become more.

By the committed policies as an administrator would deploy them in account 111122223333.
"""

from __future__ import annotations

import json
import re
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER
from moto.iam.aws_managed_policies import aws_managed_policies_data

from infra.pipeline.pipeline_file import BOOTSTRAP
from tests.conftest import ROOT
from tests.infra.pipeline.iam import Request, allows, committed
from tests.infra.templates import ACCOUNT, Deployment, as_list, resolved
from trnspec.experiment import load

Context = dict[str, str | None]
Statements = list[dict[str, Any]]
IAM = f"arn:aws:iam::{ACCOUNT}"
BOUNDARY_ARN = f"{IAM}:policy/speculation-boundary"
EXECUTOR = f"{IAM}:role/cdk-hnb659fds-cfn-exec-role-{ACCOUNT}-us-east-2"
OWN = f"{IAM}:role/qwen3-32b-identity-ServingRole"
ADMIN = f"{IAM}:role/Admin"
SERVICE_ROLES = f"{IAM}:role/aws-service-role"
BALANCERS_ROLE = f"{SERVICE_ROLES}/elasticloadbalancing.amazonaws.com/AWSServiceRoleForElasticLoadBalancing"
EVERYTHING = [{"Effect": "Allow", "Action": "*", "Resource": "*"}]


def statements(name: str) -> list[dict[str, Any]]:
    return committed(BOOTSTRAP, name)


def may(principal: str, policy: Statements, action: str, resource: str, **context: str | None) -> bool:
    """Whether a principal may, with this policy inside the boundary."""
    known = {"aws:PrincipalArn": principal, **{key.replace("__", ":"): one for key, one in context.items()}}
    return allows(Request(action, resource, known), policy, boundary=statements("Boundary"))


deployer = partial(may, EXECUTOR, statements("Execution"))
"""CloudFormation, with the execution policy."""
made_role = partial(may, OWN, EVERYTHING)
"""A role that a stack made, were its own policy to allow everything."""


PLACES = {
    "OWN": OWN,
    "OWN_PROFILE": OWN.replace("role/", "instance-profile/"),
    "ADMIN": ADMIN,
    "BOOTSTRAP": f"{IAM}:role/cdk-hnb659fds-deploy-role-{ACCOUNT}-us-east-2",
    "BOUNDARY": BOUNDARY_ARN,
    "EXECUTION": f"{IAM}:policy/speculation-execution",
    "BALANCERS": BALANCERS_ROLE,
    "SPOT": f"{SERVICE_ROLES}/spot.amazonaws.com/AWSServiceRoleForEC2Spot",
    "USER": f"{IAM}:user/x",
    "PROVIDER": f"{IAM}:oidc-provider/x",
    "QUEUE": f"arn:aws:sqs:us-east-2:{ACCOUNT}:orders",
    "*": "*",
}
NONE: Context = {"iam__PermissionsBoundary": None}
ADMINISTRATOR: Context = {"iam__PermissionsBoundary": "arn:aws:iam::aws:policy/AdministratorAccess"}
BOUND: Context = {"iam__PermissionsBoundary": BOUNDARY_ARN}
CLOUDFORMATION_CANNOT: list[tuple[str, Context]] = [
    ("iam:CreateRole OWN, iam:PutRolePolicy OWN", NONE),
    ("iam:CreateRole OWN", ADMINISTRATOR),
    ("iam:CreateRole ADMIN, iam:AttachRolePolicy ADMIN, iam:PutRolePolicy BOOTSTRAP", BOUND),
    ("iam:PutRolePermissionsBoundary ADMIN, iam:PutRolePermissionsBoundary BOOTSTRAP", BOUND),
    ("iam:PutRolePermissionsBoundary OWN", ADMINISTRATOR),
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
    "iam:CreateServiceLinkedRole SPOT, iam:CreateServiceLinkedRole BALANCERS, iam:DeleteRolePermissionsBoundary OWN",
    "sqs:SendMessage QUEUE, sts:AssumeRole ADMIN, codeconnections:CreateConnection *",
    "codeconnections:DeleteConnection *, organizations:LeaveOrganization *, cloudtrail:StopLogging *",
)


def asked(wanted: str) -> list[tuple[str, str]]:
    pairs = (one.split() for one in wanted.split(", "))
    return [(action, PLACES[place]) for action, place in pairs]


@pytest.mark.parametrize(("wanted", "context"), CLOUDFORMATION_CANNOT)
def test_cloudformation_cannot(wanted: str, context: Context) -> None:
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
    for resource in ("*", OWN, ADMIN, f"{IAM}:user/x"):
        assert [one for one in creating if made_role(f"iam:{one}", resource)] == []


@pytest.fixture(scope="module")
def stacks(pipeline: Deployment, stages: dict[str, Deployment]) -> dict[str, Deployment]:
    """Everything that the pipeline deploys, by the beginning of its stacks' names."""
    return {"speculation-delivery": pipeline} | {f"qwen3-32b ({name})": one for name, one in stages.items()}


def test_the_boundary_cuts_nothing_that_a_role_of_the_stacks_is_given(stacks: dict[str, Deployment]) -> None:
    """But load balancers with their service-linked role, which EKS' own policy opens to the cluster's role and nothing asks for, and a
    wildcard over roles, which it narrows on purpose."""
    granted = {
        (action, meant(action, str(resource), name.partition(" ")[0], stack))
        for name, deployment in stacks.items()
        for stack in deployment.templates
        for statement in granted_in(deployment, stack)
        for action in as_list(statement["Action"])
        for one in as_list(statement["Resource"])
        for resource in as_list(resolved(one))
    }
    assert len(granted) > 300
    left_out = ("elasticloadbalancing:", "iam:CreateServiceLinkedRole")
    kept = {one for one in granted if not one[0].startswith(left_out)}
    assert {one for one in kept if not made_role(*one)} <= {
        ("sts:AssumeRole", f"arn:*:iam::{ACCOUNT}:role/*")
    }


def meant(action: str, resource: str, name: str, stack: str) -> str:
    """What stands for a resource: of one that the template makes, a name as CloudFormation begins it."""
    kind = {"sts": f"iam::{ACCOUNT}:role/", "sqs": f"sqs:us-east-2:{ACCOUNT}:"}.get(action.partition(":")[0])
    own = re.match(r"<(\w+)", resource)
    return f"arn:aws:{kind}{name}-{stack}-{own[1]}-1A2B3C" if kind and own else resource


def granted_in(deployment: Deployment, stack: str) -> list[dict[str, Any]]:
    """Every statement that allows something to a role, those of managed policies too, as moto has copied them."""
    found = [statement for statements in deployment.rights(stack).values() for statement in statements]
    for role in deployment.properties("AWS::IAM::Role", stack):
        for arn in role.get("ManagedPolicyArns", ()):
            policy = json.loads(aws_managed_policies_data)[str(resolved(arn)).rpartition("/")[2]]
            found += policy["Document"]["Statement"]
    return [statement for statement in found if statement["Effect"] == "Allow"]


NOT_ASKED = re.compile(r"iam:((Get|Put|Delete)(User|Group)Policy|DeleteRolePermissionsBoundary)")
"""`AWS::IAM::Policy` could also be one of a user or a group; here it is a role's. A boundary is not taken away again."""


def making(type_: str) -> list[str]:
    """What CloudFormation's schema says that making, changing and deleting a resource asks of the resource's own service."""
    if type_ == "AWS::CodeBuild::Project":
        return ["codebuild:CreateProject"]  # its schema names none
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-2", type_).schema
    service = type_.split("::")[1].lower()
    handlers = [schema["handlers"].get(act, {}) for act in ("create", "update", "delete")]
    asked = [one for handler in handlers for one in handler.get("permissions", ())]
    return [one for one in asked if one.startswith(f"{service}:") and not NOT_ASKED.fullmatch(one)]


def test_cloudformation_can_make_and_change_every_resource_that_the_stacks_have_and_knows_the_names_of_their_roles(
    stacks: dict[str, Deployment],
) -> None:
    """CloudFormation begins a name with the stack's, unless the template gives one."""
    made = [one for deployment in stacks.values() for one in deployment.resources()]
    types = {one.type for one in made if not one.type.startswith(("Custom::", "AWS::CloudFormation::"))}
    queues = [one.logical_id for one in made if one.type == "AWS::SQS::Queue"]
    assert queues
    for type_ in types:
        resources = [PLACES["OWN_PROFILE"] if type_ == "AWS::IAM::InstanceProfile" else OWN]
        if type_.startswith("AWS::SQS::"):  # which CloudFormation names after stack and construct
            resources = [f"arn:aws:sqs:us-east-2:{ACCOUNT}:qwen3-32b-nodes-{one}-1A2B3C" for one in queues]
            assert all(made_role("sqs:SendMessage", one) for one in resources)
        for action, resource in product(making(type_), resources):
            assert deployer(action, resource, iam__PermissionsBoundary=BOUNDARY_ARN), (type_, action)
    (own,) = [one for one in statements("Execution") if one["Sid"] == "OwnRoles"]
    known = tuple(pattern.rpartition("/")[2].rstrip("*") for pattern in own["Resource"])
    names = [one.properties.get("RoleName") for one in made if one.type == "AWS::IAM::Role"]
    assert [one for one in names if isinstance(one, str) and not one.startswith(known)] == []


def test_the_guide_names_the_services_that_cloudformation_has_wholly() -> None:
    (services,) = [one for one in statements("Execution") if one["Sid"] == "Services"]
    wholly = [action.removesuffix(":*") for action in services["Action"] if action.endswith(":*")]
    guide = (ROOT / "docs/pipeline.md").read_text(encoding="utf-8")
    said = re.search(r"everything with these services, on everything in the account: ([^.]+)\.", guide)
    assert said is not None
    assert re.findall(r"`(\w+)`", said[1]) == wholly


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_cloudformation_may_make_the_roles_of_every_experiment_that_is_shipped(path: Path) -> None:
    for kind, act in (("role", "CreateRole"), ("instance-profile", "CreateInstanceProfile")):
        assert deployer(f"iam:{act}", f"{IAM}:{kind}/{load(path).name}-x", **BOUND), kind


def test_the_policies_fit_into_what_iam_takes_and_have_no_wildcard_over_iam() -> None:
    for name in ("Boundary", "Execution"):
        text = re.sub(r"\s", "", json.dumps({"Version": "2012-10-17", "Statement": statements(name)}))
        assert len(text) <= 6144, name
    actions = [action for one in statements("Execution") for action in as_list(one["Action"])]
    assert not [one for one in actions if one == "*" or (one.startswith("iam:") and "*" in one)]
