"""Synthesized templates as plain data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT, REGION = "111122223333", "us-east-2"
STACKS = ("network", "cluster", "nodes", "storage", "identity", "workloads", "observability", "run")
_PSEUDO = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
}
Properties = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    stack: str
    logical_id: str
    body: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.body["Type"])

    @property
    def properties(self) -> Properties:
        return dict(self.body.get("Properties", {}))

    @property
    def waits_for(self) -> list[str]:
        return list(self.body.get("DependsOn", []))

    @property
    def role_name(self) -> str:
        """Of a role, the name or the logical id."""
        return str(resolved(self.properties.get("RoleName", self.logical_id)))


@dataclass(frozen=True)
class Deployment:
    """All stacks of one experiment, or the one of the pipeline."""

    templates: dict[str, dict[str, Any]]
    assets: dict[str, dict[str, Any]]
    artifacts: dict[str, dict[str, Any]]
    """What the manifest of the assembly says of each stack."""

    @classmethod
    def read(cls, outdir: Path) -> Deployment:
        """What is in a cloud assembly, by the parts that the stacks are."""
        templates, assets, artifacts = {}, {}, {}
        for name, one in json_of(outdir / "manifest.json")["artifacts"].items():
            if one["type"] == "aws:cloudformation:stack":
                said = one["properties"]
                part = said.get("stackName", name).removeprefix(f"{said.get('tags', {}).get('experiment')}-")
                path = outdir / said["templateFile"]
                templates[part] = json_of(path)
                assets[part] = json_of(path.with_name(path.name.replace(".template.", ".assets.")))
                artifacts[part] = one
        return cls(templates, assets, artifacts)

    def resources(self, type_: str | None = None, stack: str | None = None, **chosen: Any) -> list[Resource]:
        """Every resource, or those of a type or a stack, or with these properties."""
        found = [
            Resource(part, logical_id, body)
            for part, template in self.templates.items()
            for logical_id, body in template["Resources"].items()
            if type_ in (None, body["Type"]) and stack in (None, part)
        ]
        return [one for one in found if not chosen or chosen.items() <= resolved(one.properties).items()]

    def properties(self, type_: str, stack: str | None = None, **chosen: Any) -> list[Properties]:
        return [one.properties for one in self.resources(type_, stack, **chosen)]

    def only(self, type_: str, stack: str | None = None, **chosen: Any) -> Resource:
        (found,) = self.resources(type_, stack, **chosen)
        return found

    def data(self) -> list[str]:
        """What holds data or is retained, in the form of holds_data.yaml."""
        kept = ("DeletionPolicy", "UpdateReplacePolicy")
        return sorted(
            f"{one.stack} {one.logical_id} {one.type}: {', '.join(one.body.get(key, 'Delete') for key in kept)}"
            for one in self.resources()
            if one.type in HOLD_DATA or any(one.body.get(key, "Delete") != "Delete" for key in kept)
        )

    def rights(self, *stacks: str) -> dict[str, list[dict[str, Any]]]:
        """Statements of every role of these stacks, or of all: by the name of the role, or by its logical id."""
        found: dict[str, list[dict[str, Any]]] = {}
        for stack in stacks or self.templates:
            names = {}
            for role in self.resources("AWS::IAM::Role", stack):
                names[f"<{role.logical_id}>"] = name = role.role_name
                assert name not in found
                found[name] = []
                for policy in role.properties.get("Policies", ()):
                    found[name] += as_list(policy["PolicyDocument"]["Statement"])
            for policy in self.properties("AWS::IAM::Policy", stack):
                for holder in map(resolved, policy["Roles"]):
                    statements = found.setdefault(names.get(holder, holder), [])
                    statements += as_list(policy["PolicyDocument"]["Statement"])
        return found


HOLD_DATA = {
    *("AWS::S3::Bucket", "AWS::KMS::Key", "AWS::Logs::LogGroup", "AWS::SQS::Queue", "AWS::DynamoDB::Table"),
    *(
        "AWS::DynamoDB::GlobalTable",
        "AWS::ECR::Repository",
        "AWS::EFS::FileSystem",
        "AWS::SecretsManager::Secret",
    ),
    *("AWS::EC2::Volume", "AWS::FSx::FileSystem", "AWS::RDS::DBInstance"),
}


def listed_data(*sections: str) -> list[str]:
    """The lines of these sections of holds_data.yaml."""
    listed = yaml.safe_load(Path(__file__).with_name("holds_data.yaml").read_text(encoding="utf-8"))
    return sorted(line for section in sections for line in listed[section])


class Deployments(NamedTuple):
    """What the reference experiment deploys, and its variants: `conftest.py` says how each differs."""

    reference: Deployment
    opened: Deployment
    rented: Deployment
    small: Deployment
    within: Deployment
    spot: Deployment
    later: Deployment
    bought: Deployment
    keyed: Deployment
    wider: Deployment


def resolved(value: Any) -> Any:
    """The value as CloudFormation would make it in account 111122223333; references stay recognizable text."""
    match value:
        case list():
            return [resolved(item) for item in value]
        case {"Ref": name}:
            return _PSEUDO.get(name, f"<{name}>")
        case {"Fn::Join": [separator, parts]}:
            return separator.join(str(resolved(part)) for part in parts)
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{(AWS::\w+)\}", lambda found: _PSEUDO[found[1]], text)
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::ImportValue": name}:
            return f"<{name}>"
        case {"Fn::If": [_, then, _]}:
            return resolved(then)
        case dict():
            return {key: resolved(inner) for key, inner in value.items()}
    return value


def as_list(value: Any) -> list[Any]:
    """What a policy may write as one thing or as a list of them."""
    return value if isinstance(value, list) else [value]


def json_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
