"""Who may do what on AWS: rights of identities, policies of resources, ways through the network.

Each is taken apart into single grants, so that a policy that was only written differently shows no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from operations.review.wording import short

_POLICIES = {
    "AWS::IAM::Policy": "PolicyDocument",
    "AWS::IAM::ManagedPolicy": "PolicyDocument",
    "AWS::S3::BucketPolicy": "PolicyDocument",
    "AWS::KMS::Key": "KeyPolicy",
    "AWS::SQS::QueuePolicy": "PolicyDocument",
    "AWS::SNS::TopicPolicy": "PolicyDocument",
    "AWS::ECR::Repository": "RepositoryPolicyText",
}
_WHOLE = (
    "AWS::EKS::AccessEntry",
    "AWS::EKS::PodIdentityAssociation",
    "AWS::Lambda::Permission",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::EC2::SecurityGroupEgress",
    "AWS::IAM::InstanceProfile",
    "AWS::IAM::User",
    "AWS::IAM::Group",
    "AWS::IAM::AccessKey",
    "AWS::IAM::OIDCProvider",
)


def template_grants(templates: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """One line for each thing that somebody may do."""
    return {
        f"{stack}: {grant}"
        for stack, template in templates.items()
        for name, resource in template.get("Resources", {}).items()
        for grant in _resource(name, resource)
    }


def _resource(name: str, resource: Mapping[str, Any]) -> Iterator[str]:
    type_, properties = str(resource["Type"]), resource.get("Properties", {})
    holder = name
    if type_ in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        holder = ", ".join(short(role) for role in properties.get("Roles", [])) or name
    if type_ == "AWS::IAM::Role":
        yield from (
            f"trust of {name}: {line}" for line in _statements(properties.get("AssumeRolePolicyDocument", {}))
        )
        for policy in properties.get("Policies", []):
            yield from (f"{name}: {line}" for line in _statements(policy["PolicyDocument"]))
        yield from (f"{name}: managed policy {short(arn)}" for arn in properties.get("ManagedPolicyArns", []))
        if "PermissionsBoundary" in properties:
            yield f"{name}: permissions boundary {short(properties['PermissionsBoundary'])}"
    elif type_ in _POLICIES:
        yield from (f"{holder}: {line}" for line in _statements(properties.get(_POLICIES[type_], {})))
    elif type_ in _WHOLE:
        yield f"{type_.split('::', 1)[1]} {name}: {short(properties)}"
    elif type_ == "AWS::EC2::SecurityGroup":
        for direction in ("SecurityGroupIngress", "SecurityGroupEgress"):
            yield from (f"{name}: {direction} {short(rule)}" for rule in properties.get(direction, []))
    elif type_ == "AWS::EKS::Cluster":
        yield f"{name}: endpoint {short(properties.get('ResourcesVpcConfig', {}).get('PublicAccessCidrs', 'private'))}"


def _statements(document: Mapping[str, Any]) -> Iterator[str]:
    for statement in _list(document.get("Statement", [])):
        actions = _list(statement.get("Action", [])) or [
            f"everything but {short(statement.get('NotAction'))}"
        ]
        resources = _list(statement.get("Resource", [])) or ["-"]
        if "NotResource" in statement:
            resources = [f"everything but {short(statement['NotResource'])}"]
        who = f" by {short(statement['Principal'])}" if "Principal" in statement else ""
        when = f" when {short(statement['Condition'])}" if statement.get("Condition") else ""
        for action in actions:
            for resource in resources:
                on = "" if resource == "-" else f" on {short(resource)}"
                yield f"{statement['Effect']} {short(action)}{on}{who}{when}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
