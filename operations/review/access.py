"""Who may do what: rights of identities, policies of resources, ways through the network, rights inside the cluster.

Each is taken apart into single grants, so that a policy that was only written differently shows no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from operations.review.objects import Key, Object, lasting_name

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
_RBAC = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount", "NetworkPolicy")
_POD = re.compile(
    r".*\.(securityContext|hostNetwork|hostPID|hostIPC|hostPath|serviceAccountName|automountServiceAccountToken)\b.*"
)


def template_grants(templates: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """One line for each thing that somebody may do."""
    return {
        f"{stack}: {grant}"
        for stack, template in templates.items()
        for name, resource in template.get("Resources", {}).items()
        for grant in _resource(name, resource)
    }


def object_grants(objects: Mapping[Key, Object]) -> set[str]:
    """The same inside the cluster: RBAC, service accounts, network policies, what pods may do on their node."""
    found = set()
    for key, item in objects.items():
        kind, namespace, _ = key
        where = f"{namespace or 'cluster'}: {kind} {lasting_name(key, item)}"
        if kind in _RBAC:
            body = {
                key: value for key, value in item.items() if key not in ("apiVersion", "kind", "metadata")
            }
            found.add(f"{where} {_short(body)}" if body else where)
        for path, value in _leaves(item):
            if _POD.fullmatch(path):
                found.add(f"{where} {path} = {_short(value)}")
    return found


def _resource(name: str, resource: Mapping[str, Any]) -> Iterator[str]:
    type_, properties = str(resource["Type"]), resource.get("Properties", {})
    holder = name
    if type_ in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        holder = ", ".join(_short(role) for role in properties.get("Roles", [])) or name
    if type_ == "AWS::IAM::Role":
        yield from (
            f"trust of {name}: {line}" for line in _statements(properties.get("AssumeRolePolicyDocument", {}))
        )
        for policy in properties.get("Policies", []):
            yield from (f"{name}: {line}" for line in _statements(policy["PolicyDocument"]))
        yield from (
            f"{name}: managed policy {_short(arn)}" for arn in properties.get("ManagedPolicyArns", [])
        )
        if "PermissionsBoundary" in properties:
            yield f"{name}: permissions boundary {_short(properties['PermissionsBoundary'])}"
    elif type_ in _POLICIES:
        yield from (f"{holder}: {line}" for line in _statements(properties.get(_POLICIES[type_], {})))
    elif type_ in _WHOLE:
        yield f"{type_.split('::', 1)[1]} {name}: {_short(properties)}"
    elif type_ == "AWS::EC2::SecurityGroup":
        for direction in ("SecurityGroupIngress", "SecurityGroupEgress"):
            yield from (f"{name}: {direction} {_short(rule)}" for rule in properties.get(direction, []))
    elif type_ == "AWS::EKS::Cluster":
        yield f"{name}: endpoint {_short(properties.get('ResourcesVpcConfig', {}).get('PublicAccessCidrs', 'private'))}"


def _statements(document: Mapping[str, Any]) -> Iterator[str]:
    for statement in _list(document.get("Statement", [])):
        actions = _list(statement.get("Action", [])) or [
            f"everything but {_short(statement.get('NotAction'))}"
        ]
        resources = _list(statement.get("Resource", [])) or ["-"]
        if "NotResource" in statement:
            resources = [f"everything but {_short(statement['NotResource'])}"]
        who = f" by {_short(statement['Principal'])}" if "Principal" in statement else ""
        when = f" when {_short(statement['Condition'])}" if statement.get("Condition") else ""
        for action in actions:
            for resource in resources:
                on = "" if resource == "-" else f" on {_short(resource)}"
                yield f"{statement['Effect']} {_short(action)}{on}{who}{when}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            name = inner.get("name", number) if isinstance(inner, dict) else number
            yield from _leaves(inner, f"{path}[{name}]")
    else:
        yield path, value


def _short(value: Any) -> str:
    """A value with CloudFormation's functions folded into `<Name.Attribute>`."""
    if isinstance(value, str):
        return value
    return _function(value) or json.dumps(_folded(value), sort_keys=True)


def _function(value: Any) -> str | None:
    """What one of the usual functions refers to; `None` for anything else."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    match next(iter(value.items())):
        case ("Ref" | "Fn::ImportValue", str(name)):
            return f"<{name}>"
        case ("Fn::GetAtt", [str(name), str(attribute)]):
            return f"<{name}.{attribute}>"
        case ("Fn::Join", [str(separator), list(parts)]):
            return separator.join(_short(part) for part in parts)
        case ("Fn::Sub", str(text)):
            return text
    return None


def _folded(value: Any) -> Any:
    if isinstance(value, list):
        return [_folded(item) for item in value]
    if isinstance(value, dict):
        return _function(value) or {key: _folded(inner) for key, inner in value.items()}
    return value
