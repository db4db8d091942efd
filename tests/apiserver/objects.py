"""Rendered objects as a server can take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.placeholders import PLACEHOLDERS, fill

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.apiserver.kubectl import Kubectl

ACCOUNT = "111122223333"
IMAGE = f"{ACCOUNT}.dkr.ecr.us-east-2.amazonaws.com/tools:0123456789abcdef"


def filled(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every placeholder replaced by an example."""
    return fill(objects, {name: ACCOUNT if name == "AWS_ACCOUNT" else IMAGE for name in PLACEHOLDERS})


def make_namespace(kubectl: Kubectl, objects: Iterable[dict[str, Any]]) -> str:
    """Apply the namespace alone, without which nothing else can even be tried; returns its name."""
    (namespace,) = (item for item in objects if item["kind"] == "Namespace")
    refused = [line for line in kubectl.apply([namespace]) if not line.startswith("Warning")]
    assert refused == []
    return str(namespace["metadata"]["name"])
