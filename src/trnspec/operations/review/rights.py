"""Permissions on AWS and inside the cluster, one line for each grant: a policy that was only rewritten shows no
difference.

`cdk diff --security-only` compares two templates offline as well, but as a drawn table, a second for each stack, and without
Pod Identity, access entries and the cluster's endpoint. Of a pod only what goes beyond a hardened one is a right, so a lost
restriction shows as a new right. The servers of all arms are one subject: another arm with the same rights opens nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trnspec.experiment.naming import NAME, REVIEWED_JOBS, ROLE, STEP
from trnspec.operations.cloud.kubernetes import pod_containers, pod_spec

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name."""
_WHOLE = re.compile(
    r"AWS::(EKS::(AccessEntry|PodIdentityAssociation)|Lambda::Permission|EC2::SecurityGroup(In|E)gress"
    r"|IAM::(InstanceProfile|User|Group|AccessKey|OIDCProvider))"
)
"""Types whose resources are one grant each."""
_PROPERTIES = {
    "ManagedPolicyArns": "managed policy",
    "PermissionsBoundary": "permissions boundary",
    "SecurityGroupIngress": "SecurityGroupIngress",
    "SecurityGroupEgress": "SecurityGroupEgress",
}
_RULES = {
    "Role": "rules",
    "ClusterRole": "rules",
    "RoleBinding": "subjects",
    "ClusterRoleBinding": "subjects",
}


_HARDENED: Mapping[str, Any] = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of a hardened container
(https://kubernetes.io/docs/concepts/security/pod-security-standards/, and a read-only root)."""


def template_grants(templates: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Yield one line for each permission on AWS, and for each path through its network."""
    return {
        f"{stack}: {grant}"
        for stack, template in templates.items()
        for name, resource in template.get("Resources", {}).items()
        for grant in _resource(name, str(resource["Type"]), resource.get("Properties", {}))
    }


def _resource(name: str, type_: str, properties: Mapping[str, Any]) -> Iterator[str]:
    if _WHOLE.fullmatch(type_):
        yield f"{type_.removeprefix('AWS::')} {name}: {_short(properties)}"
        return
    if type_ == "AWS::EKS::Cluster":
        yield f"{name}: endpoint {_short(properties.get('ResourcesVpcConfig', {}).get('PublicAccessCidrs', 'private'))}"
    holder = ", ".join(map(_short, properties.get("Roles", ()))) or name
    for key, value in properties.items():
        if key in _PROPERTIES:
            yield from (f"{name}: {_PROPERTIES[key]} {_short(one)}" for one in _list(value))
        elif isinstance(value, Mapping) and "Statement" in value:
            trusted = key == "AssumeRolePolicyDocument"
            yield from _statements(f"trust of {name}" if trusted else holder, value)
        elif key == "Policies" and type_ == "AWS::IAM::Role":
            for policy in value:
                yield from _statements(name, policy["PolicyDocument"])


def _statements(holder: str, document: Mapping[str, Any]) -> Iterator[str]:
    for statement in _list(document.get("Statement", [])):
        actions = _list(statement.get("Action", [])) or [
            f"everything but {_short(statement.get('NotAction'))}"
        ]
        named = [f" on {_short(one)}" for one in _list(statement.get("Resource", []))]
        if "NotResource" in statement:
            named = [f" on everything but {_short(statement['NotResource'])}"]
        who = f" by {_short(statement['Principal'])}" if "Principal" in statement else ""
        when = f" when {_short(statement['Condition'])}" if statement.get("Condition") else ""
        for action in actions:
            for resource in named or [""]:
                yield f"{holder}: {statement['Effect']} {_short(action)}{resource}{who}{when}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def object_grants(objects: Mapping[Key, Object]) -> set[str]:
    """Yield one line for each permission of roles and network policies in the cluster, and for what pods may do to their node."""
    return {
        f"{key[1] or 'cluster'}: {_subject(key, item)} {right}"
        for key, item in objects.items()
        for right in (*_rules(item), *_pod_rights(item))
    }


def _subject(key: Key, item: Object) -> str:
    if key[0] == "Deployment" and item["metadata"].get("labels", {}).get(ROLE) == "server":
        return "servers"
    return f"{key[0]} {lasting_name(key, item)}"


def _rules(item: Object) -> Iterator[str]:
    kind, spec = item["kind"], item.get("spec", {})
    if kind in _RULES:
        of = f" of {_short(item['roleRef'])}" if "roleRef" in item else ""
        yield from (f"{_short(rule)}{of}" for rule in item.get(_RULES[kind]) or ())
    elif kind == "NetworkPolicy":
        yield f"governs {', '.join(spec.get('policyTypes', ()))} of pods {_short(spec.get('podSelector', {}))}"
        for direction in ("ingress", "egress"):
            yield from (f"allows {direction}: {_short(rule)}" for rule in spec.get(direction) or ())
    elif kind == "ValidatingAdmissionPolicy":
        for part in ("variables", "validations"):
            yield from (f"compares by {one['expression']}" for one in spec.get(part, ()))
    elif (kind, item["metadata"].get("name")) == ("ConfigMap", REVIEWED_JOBS):
        for account, images in item["data"].items():
            yield from (f"lets Jobs have {image} ({account})" for image in images.split("\n"))
    elif kind == "ServiceAccount" and item.get("automountServiceAccountToken") is not False:
        yield "gives its token to its pods"


def _pod_rights(item: Object) -> Iterator[str]:
    if not (spec := pod_spec(item)):
        return
    yield f"run as service account {spec.get('serviceAccountName', 'default')}"
    yield from (f"have {flag}" for flag in ("hostNetwork", "hostPID", "hostIPC") if spec.get(flag))
    if spec.get("automountServiceAccountToken") is not False:
        yield "hold a token of the API server"
    for volume in spec.get("volumes", ()):
        if "hostPath" in volume:
            yield f"mount {volume['hostPath'].get('path')} of their node"
    for container in pod_containers(item):
        security = (
            {"privileged": False} | spec.get("securityContext", {}) | container.get("securityContext", {})
        )
        for field, hardened in _HARDENED.items():
            if (value := security.get(field)) != hardened:
                yield f"have securityContext.{field} {_short(value)} (container {container['name']})"


def lasting_name(key: Key, item: Object) -> str:
    """Return the name that all versions of an object share: without the hash of its content. Jobs of a step change their
    whole name with what they do."""
    labels = item["metadata"].get("labels", {})
    return str(labels[NAME]) if STEP in labels else re.sub(r"-[0-9a-f]{8}$", "", key[2])


def _short(value: Any) -> str:
    """Return a value for a sentence, with CloudFormation's functions shown as `<Name.Attribute>`."""
    folded = _folded(value)
    return folded if isinstance(folded, str) else json.dumps(folded, sort_keys=True)


def _folded(value: Any) -> Any:
    if isinstance(value, list):
        return [_folded(item) for item in value]
    if not isinstance(value, dict):
        return value
    match list(value.items()):
        case [("Ref" | "Fn::ImportValue", str(name))]:
            return f"<{name}>"
        case [("Fn::GetAtt", [str(name), str(attribute)])]:
            return f"<{name}.{attribute}>"
        case [("Fn::Join", [str(separator), list(parts)])]:
            return separator.join(map(_short, parts))
        case [("Fn::Sub", str(text))]:
            return text
    return {key: _folded(inner) for key, inner in value.items()}
