"""A CDK cloud assembly as data: its stacks in the order in which they can be created, their templates untouched.

Only what a deployment reads is read: https://docs.aws.amazon.com/cdk/v2/guide/deploy.html (manifest.json lists
artifacts; those of type `aws:cloudformation:stack` name a template and what they depend on).

In place of `cdk bootstrap` and of the publishing of assets, where the command line is not used.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

ACCOUNT = "123456789012"
"""moto's own: calls that name no account go there."""
_STACK = "aws:cloudformation:stack"
_STAGE = "cdk:cloud-assembly"
_ASSETS = "cdk:asset-manifest"
_PARAMETER, _VERSION = "bootstrapStackVersionSsmParameter", "requiresBootstrapStackVersion"


@dataclass(frozen=True, kw_only=True)
class StackTemplate:
    """One stack of the assembly."""

    name: str
    body: str
    """The template's text, byte for byte what CloudFormation would get."""
    template: Mapping[str, Any]
    """The same, parsed."""
    tags: Mapping[str, str]
    protected: bool = False
    """From deletion."""


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What `app.py` synthesized."""

    stacks: tuple[StackTemplate, ...]
    """In creation order."""
    stages: tuple[str, ...]
    """Nested assemblies, which a pipeline deploys later; they are named, never rehearsed."""
    images: tuple[str, ...]
    """Container images that a deployment would build and push, each as `repository:tag`."""
    bootstrap: Mapping[str, int]
    """SSM parameters that `cdk bootstrap` writes, with the version that the stacks ask for."""

    def code_assets(self, *, region: str) -> tuple[tuple[str, str], ...]:
        """(bucket, key) of every Lambda function's and layer's code that the templates name."""
        pseudo = {"AWS::AccountId": ACCOUNT, "AWS::Region": region, "AWS::Partition": "aws"}
        found = {
            (_substitute(code["S3Bucket"], pseudo), str(code["S3Key"]))
            for stack in self.stacks
            for code in _objects_with(stack.template, "S3Bucket", "S3Key")
        }
        return tuple(sorted(found))


def read_assembly(folder: Path) -> Assembly:
    """Read a `cdk.out`."""
    artifacts: Mapping[str, Any] = _read_json(folder / "manifest.json")["artifacts"]
    stacks = {name: one for name, one in artifacts.items() if one["type"] == _STACK}
    order = TopologicalSorter(
        {
            name: [other for other in one.get("dependencies", ()) if other in stacks]
            for name, one in stacks.items()
        }
    )
    return Assembly(
        stacks=tuple(_read_stack(folder, name, stacks[name]) for name in order.static_order()),
        stages=tuple(name for name, one in artifacts.items() if one["type"] == _STAGE),
        images=tuple(dict.fromkeys(_images(folder, artifacts))),
        bootstrap={one["properties"][_PARAMETER]: one["properties"][_VERSION] for one in stacks.values()},
    )


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _read_stack(folder: Path, artifact: str, entry: Mapping[str, Any]) -> StackTemplate:
    properties = entry["properties"]
    body = (folder / properties["templateFile"]).read_text(encoding="utf-8")
    name, tags = properties.get("stackName", artifact), properties.get("tags", {})
    protected = properties.get("terminationProtection", False)
    return StackTemplate(name=name, body=body, template=json.loads(body), tags=tags, protected=protected)


def _images(folder: Path, artifacts: Mapping[str, Any]) -> Iterator[str]:
    for one in artifacts.values():
        if one["type"] == _ASSETS:
            assets = _read_json(folder / one["properties"]["file"])
            for image in assets.get("dockerImages", {}).values():
                for place in image["destinations"].values():
                    yield f"{place['repositoryName']}:{place['imageTag']}"


def _objects_with(value: Any, *keys: str) -> Iterator[Mapping[str, Any]]:
    """Every object, at any depth, that has all these keys."""
    if isinstance(value, Mapping):
        if all(key in value for key in keys):
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _objects_with(item, *keys)


def _substitute(value: Any, pseudo: Mapping[str, str]) -> str:
    """A bucket's name: literal, or `Fn::Sub` over pseudo parameters, as the CDK writes it."""
    text = value["Fn::Sub"] if isinstance(value, Mapping) else value
    return re.sub(r"\$\{([\w:]+)\}", lambda found: pseudo.get(found[1], found[0]), text)


def stand_in_for_bootstrap(
    assembly: Assembly, client_of: Callable[[str], Any], *, region: str
) -> tuple[str, ...]:
    """What `cdk bootstrap` and the publishing of assets leave behind, as far as the templates need it."""
    for name, version in assembly.bootstrap.items():
        client_of("ssm").put_parameter(Name=name, Value=str(version), Type="String")
    assets = assembly.code_assets(region=region)
    for bucket in sorted({bucket for bucket, _ in assets}):
        where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        client_of("s3").create_bucket(Bucket=bucket, **where)
    for bucket, key in assets:
        client_of("s3").put_object(Bucket=bucket, Key=key, Body=_placeholder_code())
    return tuple(f"{bucket}/{key}" for bucket, key in assets)


def _placeholder_code() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("README", "A placeholder of the rehearsal, which invokes no function.\n")
    return buffer.getvalue()
