"""Kubernetes objects as plain data, with cdk8s where it helps.

cdk8s-plus-27 writes pods well but knows Kubernetes 1.27: a JSON patch on one of its objects silently loses fields of later
versions (resource claims among them). So a pod is authored with it in a scratch chart, taken out as plain data,
completed there, and placed into the real chart as a raw object, which nothing filters.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from experiment.naming import namespace

if TYPE_CHECKING:
    from collections.abc import Callable

    import cdk8s

    from experiment.arms import Experiment


def kubernetes_object(
    api_version: str,
    kind: str,
    name: str,
    *,
    within: Experiment | None = None,
    labels: dict[str, str] | None = None,
    **content: Any,
) -> dict[str, Any]:
    """An object `within` the namespace of an experiment, or of the whole cluster."""
    metadata: dict[str, Any] = {"name": name}
    if within is not None:
        metadata["namespace"] = namespace(within)
    if labels is not None:
        metadata["labels"] = labels
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def config_map(
    experiment: Experiment, name: str, data: dict[str, str], labels: dict[str, str] | None = None
) -> dict[str, Any]:
    """Files for pods. It cannot be changed, so its name must tell its content."""
    return kubernetes_object(
        "v1", "ConfigMap", name, within=experiment, labels=labels, immutable=True, data=data
    )


def authored(build: Callable[[cdk8s.Chart], object]) -> dict[str, Any]:
    """The one object that `build` puts into a scratch chart, as plain data."""
    import cdk8s  # here, because it starts jsii

    chart = cdk8s.Chart(cdk8s.App(), "scratch", disable_resource_name_hashes=True)
    build(chart)
    (manifest,) = chart.to_json()
    return dict(manifest)


def content_suffix(content: Any) -> str:
    """Eight hex digits of the content, for the names of objects that Kubernetes does not let change."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
