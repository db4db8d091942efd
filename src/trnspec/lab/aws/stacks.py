"""Deploy the stacks of a cloud assembly into the loopback server, in seconds, and report the outcome of their resources.

Only the parts of an assembly are read that a deployment reads: https://docs.aws.amazon.com/cdk/v2/guide/deploy.html (manifest.json lists
artifacts; those of type `aws:cloudformation:stack` name a template and what they depend on).
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Literal

from botocore.exceptions import ClientError
from moto.cloudformation.models import cloudformation_backends

from trnspec.core.findings import Refusal
from trnspec.lab.aws.moto_models import ACCOUNT, Modelled

Outcome = Literal["created", "recorded", "skipped"]
"""`recorded`: its properties are kept, nothing acted on them; `skipped`: its condition is false, so CloudFormation would not
create it either."""


@dataclass(frozen=True, kw_only=True)
class StackTemplate:
    """One stack of an assembly."""

    name: str
    body: str
    """The template's text, byte for byte what CloudFormation would get."""
    tags: Mapping[str, str] = field(default_factory=dict)
    protected: bool = False
    """True if it is protected from deletion."""

    def create(self, cloudformation: Any) -> None:
        """Create the stack from the template as it is. Raises `Refusal` if CloudFormation refuses it."""
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
    """The output of `app.py`."""

    stacks: tuple[StackTemplate, ...]
    """They are in creation order."""
    images: tuple[str, ...]
    """Container images that a deployment would build and push, each as `repository:tag`."""
    files: tuple[tuple[str, str], ...]
    """`(bucket, key)` of the files that a deployment would publish, with pseudo parameters as the CDK writes them."""


def read_assembly(folder: Path) -> Assembly:
    """Read the output of `app.py` in a folder."""

    def read(name: str) -> Any:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    artifacts = read("manifest.json")["artifacts"]
    entries = {name: one for name, one in artifacts.items() if one["type"] == "aws:cloudformation:stack"}
    needed = {name: [one for one in entries[name]["dependencies"] if one in entries] for name in entries}
    stacks = []
    for name in TopologicalSorter(needed).static_order():
        properties = entries[name]["properties"]
        stacks.append(
            StackTemplate(
                name=properties.get("stackName", name),
                body=(folder / properties["templateFile"]).read_text(encoding="utf-8"),
                tags=properties.get("tags", {}),
                protected=properties.get("terminationProtection", False),
            )
        )
    manifests = [
        one["properties"]["file"] for one in artifacts.values() if one["type"] == "cdk:asset-manifest"
    ]
    places: dict[str, list[Any]] = {"dockerImages": [], "files": []}
    for assets in map(read, manifests):
        for kind, found in places.items():
            found += [to for asset in assets.get(kind, {}).values() for to in asset["destinations"].values()]
    images = dict.fromkeys(f"{to['repositoryName']}:{to['imageTag']}" for to in places["dockerImages"])
    files = dict.fromkeys((to["bucketName"], to["objectKey"]) for to in places["files"])
    return Assembly(stacks=tuple(stacks), images=tuple(images), files=tuple(files))


def stand_in_for_bootstrap(assembly: Assembly, client_of: Callable[[str], Any], *, region: str) -> None:
    """Create what the templates need of `cdk bootstrap` and of published assets. The code of Lambda functions is a placeholder, because
    nothing invokes them here."""
    client_of("ssm").put_parameter(Name="/cdk-bootstrap/hnb659fds/version", Value="99", Type="String")
    placeholder = io.BytesIO()
    with zipfile.ZipFile(placeholder, "w") as archive:
        archive.writestr("README", "A placeholder of the rehearsal, which invokes no function.\n")
    where = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
    names = {"${AWS::AccountId}": ACCOUNT, "${AWS::Region}": region, "${AWS::Partition}": "aws"}
    buckets = set[str]()
    for bucket, key in assembly.files:
        for pseudo, value in names.items():
            bucket = bucket.replace(pseudo, value)
        if bucket not in buckets:
            client_of("s3").create_bucket(Bucket=bucket, **where)
            buckets.add(bucket)
        client_of("s3").put_object(Bucket=bucket, Key=key, Body=placeholder.getvalue())


@dataclass(frozen=True)
class RehearsedResource:
    """The outcome of one resource of a template."""

    stack: str
    logical_id: str
    type: str
    outcome: Outcome
    physical_id: str
    """Empty if the resource was not created, or if moto's model has no id."""
    properties: Mapping[str, Any] | None = None
    """The resolved properties of a recorded resource; `None` for others."""


def resources_of(stack: str, *, region: str) -> list[RehearsedResource]:
    """Return the outcome of every resource of the stack's template. Raises `Refusal` if one is missing.

    moto skips what it cannot make and reports CREATE_COMPLETE, so this looks at what the server, which runs in this
    process, really holds.
    """
    made = cloudformation_backends[ACCOUNT][region].get_stack(stack)
    if made.status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        raise Refusal(f"stack {stack}: ended as {made.status}, not CREATE_COMPLETE")
    resources, found = made.resource_map, list[RehearsedResource]()
    for name, entry in resources._template["Resources"].items():
        kind, resource = entry["Type"], resources._parsed_resources.get(name)
        outcome: Outcome = "created"
        if resource is None:
            if resources.lazy_condition_map.get(entry.get("Condition"), True):
                raise Refusal(f"stack {stack}: not created: {name} ({kind})")
            outcome = "skipped"
        elif isinstance(resource, Modelled) and resource.attributes is None:
            outcome = "recorded"
        physical_id = getattr(resource, "physical_resource_id", None) if outcome == "created" else None
        properties = getattr(resource, "properties", None) if outcome == "recorded" else None
        found.append(RehearsedResource(stack, name, kind, outcome, str(physical_id or ""), properties))
    return found
