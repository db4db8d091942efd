"""A cloud assembly written by hand: two small stacks, one of everything that the rehearsal treats differently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

REGION = "us-east-2"
CLAIM = {"requests": [{"name": "n", "exactly": {"count": 8, "adminAccess": False}}]}
MANIFEST = (
    {"kind": "Namespace", "metadata": {"name": "serving", "labels": {"on": "yes", "n": "0.10"}}},
    {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": CLAIM}}},
    {"kind": "ConfigMap", "data": {"prompt": 'Say "hello" \\ twice:\n\tgrüße, 你好, 🙂', "empty": ""}},
)
"""Objects whose strings YAML, or a careless resolution of references, would change."""

Resource = dict[str, Any]
Template = Mapping[str, Any]


def resource(kind: str, **properties: Any) -> Resource:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def role(service: str, **properties: Any) -> Resource:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    return resource("IAM::Role", AssumeRolePolicyDocument=policy, **properties)


_WRITTEN = yaml.safe_load(Path(__file__).with_name("small_stacks.yaml").read_text(encoding="utf-8"))
NETWORK, WORKLOADS, CLUSTER, ASSETS = (
    _WRITTEN[name] for name in ("network", "workloads", "cluster", "assets")
)
WORKLOADS["Resources"]["Applied"]["Properties"]["Manifest"] = json.dumps(MANIFEST)


def write_assembly(folder: Path, stacks: Mapping[str, tuple[Template, tuple[str, ...]]]) -> Path:
    """Write name -> (template, what it depends on) as the CDK would, with `ASSETS`."""
    (folder / "assets.json").write_text(json.dumps(ASSETS), encoding="utf-8")
    artifacts: dict[str, Any] = {
        "some.assets": {"type": "cdk:asset-manifest", "properties": {"file": "assets.json"}}
    }
    for name, (template, dependencies) in stacks.items():
        (folder / f"{name}.template.json").write_text(json.dumps(template, indent=1), encoding="utf-8")
        artifacts[name] = {
            "type": "aws:cloudformation:stack",
            "properties": {"templateFile": f"{name}.template.json"},
            "dependencies": [*dependencies, "some.assets"],
        }
    (folder / "manifest.json").write_text(json.dumps({"artifacts": artifacts}), encoding="utf-8")
    return folder


STACKS: Mapping[str, tuple[Template, tuple[str, ...]]] = {
    "workloads": (WORKLOADS, ("network",)),
    "network": (NETWORK, ()),
}
"""Listed in an order in which they could not be created."""
