"""Synthesized templates as plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT = "111122223333"
REGION = "us-east-2"
STACKS = ("network", "cluster", "nodes", "storage", "identity", "workloads", "observability")
_PSEUDO = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
}


@dataclass(frozen=True)
class Resource:
    """One resource of a template."""

    stack: str
    logical_id: str
    body: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.body["Type"])

    @property
    def properties(self) -> dict[str, Any]:
        return dict(self.body.get("Properties", {}))

    @property
    def waits_for(self) -> list[str]:
        return list(self.body.get("DependsOn", []))


@dataclass(frozen=True)
class Deployment:
    """All stacks of one experiment."""

    templates: dict[str, dict[str, Any]]
    assets: dict[str, dict[str, Any]]
    stack_names: dict[str, str]

    @classmethod
    def read(cls, outdir: Path, prefix: str = "") -> Deployment:
        """What stands in a cloud assembly, by short names of stacks."""
        names = {path.name.split(".")[0]: path for path in sorted(outdir.glob("*.template.json"))}
        artifacts = _json(outdir / "manifest.json")["artifacts"]
        templates, assets, stack_names = {}, {}, {}
        for name, path in names.items():
            short = next(stack for stack in STACKS if name.removeprefix(prefix).startswith(stack))
            templates[short] = _json(path)
            assets[short] = _json(path.with_name(f"{name}.assets.json"))
            owner = artifacts.get(name) or artifacts[f"{prefix}-{short}"]
            stack_names[short] = owner["properties"].get("stackName", short)
        return cls(templates, assets, stack_names)

    def resources(self, type_: str | None = None, stack: str | None = None) -> list[Resource]:
        """Every resource, or those of a type or a stack."""
        return [r for r in self._all() if type_ in (None, r.type) and stack in (None, r.stack)]

    def only(self, type_: str, stack: str | None = None) -> Resource:
        """The one resource of a type."""
        (found,) = self.resources(type_, stack)
        return found

    def _all(self) -> Iterator[Resource]:
        for stack, template in self.templates.items():
            for logical_id, body in template["Resources"].items():
                yield Resource(stack, logical_id, body)


def resolved(value: Any) -> Any:
    """The value as CloudFormation would make it in account 111122223333; references stay recognizable text."""
    if isinstance(value, list):
        return [resolved(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
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
    return {key: resolved(inner) for key, inner in value.items()}


def as_list(value: Any) -> list[Any]:
    """What a policy may write as one thing or as a list of them."""
    return value if isinstance(value, list) else [value]


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
