"""From cdk8s-plus objects to raw ones.

cdk8s-plus-27 writes pods well but knows Kubernetes 1.27: a JSON patch on one of its objects silently loses fields that
came later (resource claims among them). So a pod is authored with it in a scratch chart, taken out as plain data,
completed there, and placed into the real chart as a raw object, which nothing filters.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import cdk8s

if TYPE_CHECKING:
    from collections.abc import Callable


def authored(build: Callable[[cdk8s.Chart], object]) -> dict[str, Any]:
    """The one object that `build` puts into a scratch chart, as plain data."""
    chart = cdk8s.Chart(cdk8s.App(), "scratch", disable_resource_name_hashes=True)
    build(chart)
    (manifest,) = chart.to_json()
    return dict(manifest)


def place(chart: cdk8s.Chart, manifest: dict[str, Any]) -> None:
    """Put plain data into `chart` as a raw object; its id is its kind and name."""
    name = manifest["metadata"]["name"]
    raw = cdk8s.ApiObject(
        chart, f"{manifest['kind']}-{name}", api_version=manifest["apiVersion"], kind=manifest["kind"]
    )
    # The path of the whole document: one crossing to Node an object, of which a sweep has hundreds.
    raw.add_json_patch(cdk8s.JsonPatch.replace("", manifest))


def content_suffix(content: Any) -> str:
    """Eight hex digits of the content, for the names of objects that Kubernetes does not let change."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]
