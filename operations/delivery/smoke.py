"""Whether what was reviewed is what stands in the cluster. Needs no Trn2 node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cdk8s_charts.placeholders import PLACEHOLDERS, filled, with_tags
from experiment.naming import BENCHMARK_NAME
from operations.cloud.kubernetes import tools_image

if TYPE_CHECKING:
    from cdk8s_charts.manifest_file import ManifestFile

Object = Mapping[str, Any]
KINDS = ("ServiceAccount", "ConfigMap", "PersistentVolumeClaim", "Service", "Deployment", "Job", "CronJob")
"""Of the manifests, what AmazonEKSViewPolicy shows
(https://docs.aws.amazon.com/eks/latest/userguide/access-policy-permissions.html); the rest was applied with them."""
_TEMPLATES = {
    "Deployment": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}


def findings(files: tuple[ManifestFile, ...], get: Callable[[str, str], Object | None]) -> Iterator[str]:
    """What is missing, differs or failed, a line each; `get` asks the cluster for a kind and a name."""
    cron_job = get("CronJob", BENCHMARK_NAME)
    image = tools_image(cron_job) if cron_job is not None else ""
    values = dict.fromkeys(PLACEHOLDERS, "") | with_tags({"BENCHMARK_IMAGE": image})
    for item in (item for file in files for item in file.objects):
        kind, name = item["kind"], filled(item["metadata"]["name"], values)
        if kind not in KINDS:
            continue
        found = get(kind, name)
        if found is None:
            yield f"{kind} {name}: is not in the cluster; deploy the workloads stack"
            continue
        yield from _differences(kind, name, item, found)
        yield from _health(kind, name, found)


def _differences(kind: str, name: str, wanted: Object, found: Object) -> Iterator[str]:
    ours, theirs = (dict(_containers(kind, one)) for one in (wanted, found))
    for container, image in ours.items():
        other = theirs.get(container)
        if "${" in image:
            image = other or image  # filled in at deployment
        if image != other:
            yield f"{kind} {name}: container {container} has {other or 'no image'}, reviewed was {image}; deploy again"


def _containers(kind: str, item: Object) -> Iterator[tuple[str, str]]:
    template: Any = item if kind in _TEMPLATES else {}
    for key in _TEMPLATES.get(kind, ()):
        template = template.get(key, {})
    spec = template.get("spec", {})
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        yield container["name"], container["image"]


def _health(kind: str, name: str, found: Object) -> Iterator[str]:
    status = found.get("status", {})
    if kind == "Deployment":
        wanted, available = found["spec"].get("replicas", 1), status.get("availableReplicas", 0)
        if available < wanted:
            yield f"Deployment {name}: {available} of {wanted} replicas answer; read scripts/status"
    for condition in status.get("conditions", ()):
        if kind == "Job" and (condition["type"], condition["status"]) == ("Failed", "True"):
            yield f"Job {name}: failed ({condition.get('message', 'it does not say why')}); read scripts/kubectl logs job/{name}"
    if kind == "PersistentVolumeClaim" and status.get("phase", "Bound") not in ("Bound", "Pending"):
        yield f"PersistentVolumeClaim {name}: is {status['phase']}; delete it and deploy again"
