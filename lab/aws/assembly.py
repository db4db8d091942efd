"""A CDK cloud assembly: its stacks in the order in which they can be created, and their creation without the command line.

Only what a deployment reads is read: https://docs.aws.amazon.com/cdk/v2/guide/deploy.html (manifest.json lists
artifacts; those of type `aws:cloudformation:stack` name a template and what they depend on).
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from core.findings import Refusal
from lab.aws.moto_server import ACCOUNT

_STACK, _ASSETS = "aws:cloudformation:stack", "cdk:asset-manifest"
_VERSION_PARAMETER = "bootstrapStackVersionSsmParameter"


@dataclass(frozen=True, kw_only=True)
class StackTemplate:
    """One stack."""

    name: str
    body: str
    """The template's text, byte for byte what CloudFormation would get."""
    tags: Mapping[str, str] = field(default_factory=dict)
    protected: bool = False
    """From deletion."""

    def create(self, cloudformation: Any) -> None:
        """`create-stack` with the template as it is. Raises `Refusal` where CloudFormation refuses it."""
        try:
            cloudformation.create_stack(
                StackName=self.name,
                TemplateBody=self.body,
                Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
                Tags=[{"Key": key, "Value": value} for key, value in self.tags.items()],
                EnableTerminationProtection=self.protected,
            )
        except ClientError as error:
            raise Refusal(f"stack {self.name}: {error.response['Error']['Message']}") from error


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What `app.py` synthesized."""

    stacks: tuple[StackTemplate, ...]
    """In creation order."""
    images: tuple[str, ...]
    """Container images that a deployment would build and push, each as `repository:tag`."""
    versions: Mapping[str, int]
    """SSM parameters that `cdk bootstrap` writes, with the version that the stacks ask for."""


def read_assembly(folder: Path) -> Assembly:
    """Read a `cdk.out`."""
    artifacts = _json(folder / "manifest.json")["artifacts"]
    stacks = {name: entry for name, entry in artifacts.items() if entry["type"] == _STACK}
    order = TopologicalSorter(
        {
            name: [other for other in entry["dependencies"] if other in stacks]
            for name, entry in stacks.items()
        }
    )
    assets = [
        _json(folder / one["properties"]["file"]) for one in artifacts.values() if one["type"] == _ASSETS
    ]
    images = {
        f"{place['repositoryName']}:{place['imageTag']}": None
        for files in assets
        for image in files.get("dockerImages", {}).values()
        for place in image["destinations"].values()
    }
    properties = [entry["properties"] for entry in stacks.values()]
    return Assembly(
        stacks=tuple(_stack(folder, name, stacks[name]["properties"]) for name in order.static_order()),
        images=tuple(images),
        versions={one[_VERSION_PARAMETER]: one["requiresBootstrapStackVersion"] for one in properties},
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _stack(folder: Path, artifact: str, properties: Mapping[str, Any]) -> StackTemplate:
    return StackTemplate(
        name=properties.get("stackName", artifact),
        body=(folder / properties["templateFile"]).read_text(encoding="utf-8"),
        tags=properties.get("tags", {}),
        protected=properties.get("terminationProtection", False),
    )


def stand_in_for_bootstrap(assembly: Assembly, client_of: Callable[[str], Any], *, region: str) -> None:
    """What `cdk bootstrap` and the publishing of assets leave behind, as far as the templates need it; in place of the code
    of Lambda functions, which nothing invokes here, lies a placeholder."""
    for name, version in assembly.versions.items():
        client_of("ssm").put_parameter(Name=name, Value=str(version), Type="String")
    placeholder = io.BytesIO()
    with zipfile.ZipFile(placeholder, "w") as archive:
        archive.writestr("README", "A placeholder of the rehearsal, which invokes no function.\n")
    names = {"AWS::AccountId": ACCOUNT, "AWS::Region": region, "AWS::Partition": "aws"}
    buckets = set[str]()
    for code in (found for stack in assembly.stacks for found in _code_in(json.loads(stack.body))):
        bucket = code["S3Bucket"]  # literal, or `Fn::Sub` over pseudo parameters, as the CDK writes it
        text = bucket["Fn::Sub"] if isinstance(bucket, Mapping) else bucket
        bucket = re.sub(r"\$\{([\w:]+)\}", lambda match: names[match[1]], text)
        if bucket not in buckets:
            where = {"CreateBucketConfiguration": {"LocationConstraint": region}}
            client_of("s3").create_bucket(Bucket=bucket, **({} if region == "us-east-1" else where))
            buckets.add(bucket)
        client_of("s3").put_object(Bucket=bucket, Key=code["S3Key"], Body=placeholder.getvalue())


def _code_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every object of a template, at any depth, that names an object of S3."""
    if isinstance(value, Mapping):
        if "S3Bucket" in value and "S3Key" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _code_in(item)
