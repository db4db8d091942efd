"""Names, labels and namespaces of objects."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from cdk8s_charts.checking.finding import Fault
from cdk8s_charts.checking.immutable import FIELDS, at
from cdk8s_charts.checking.rendered import Rendered, label, selects
from cdk8s_charts.labels import LAB_ONLY
from cdk8s_charts.placeholders import names_in, tags, with_example_tags
from experiment.naming import namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

CLUSTER_SCOPED = {
    "Namespace",
    "PersistentVolume",
    "DeviceClass",
    "PriorityClass",
    "ClusterRole",
    "ClusterRoleBinding",
}
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAMED_IN_DNS = {"Service", "Namespace"}
_NAMED_IN_PODS = {"Job": 63, "CronJob": 52, "Deployment": 63}
"""Longest name with which the pods made from it still get one."""


def duplicate_name(rendered: Rendered) -> Iterator[Fault]:
    """Of two objects with one name the second silently replaces the first."""
    keys = Counter(
        (item.get("kind"), item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in rendered.objects
    )
    for (kind, _, name), count in keys.items():
        if count > 1:
            yield Fault(f"{kind}/{name}", "metadata.name", f"{count} objects have it", "give each its own")


def invalid_name(rendered: Rendered) -> Iterator[Fault]:
    """What Kubernetes and DNS accept."""
    for item in rendered.objects:
        name, kind = with_example_tags(str(item["metadata"]["name"])), str(item["kind"])
        pattern = _DNS_LABEL if kind in _NAMED_IN_DNS | set(_NAMED_IN_PODS) else _DNS_SUBDOMAIN
        if not pattern.fullmatch(name) or len(name) > _NAMED_IN_PODS.get(kind, 253):
            yield Fault(
                label(item),
                "metadata.name",
                f"{name!r} is no name of a {kind}",
                "use a-z, 0-9 and -, and fewer of them",
            )
    for pod in rendered.pods:
        for path, container in pod.containers():
            if not _DNS_LABEL.fullmatch(container["name"]):
                yield Fault(
                    pod.label,
                    f"{path}.name",
                    f"{container['name']!r} is no name of a container",
                    "use up to 63 of a-z, 0-9 and -",
                )


def unnamed_image(rendered: Rendered) -> Iterator[Fault]:
    """An image is known at deployment only; the next one, under the same name, is refused by the API server."""
    for item in rendered.objects:
        held = [at(item, path) for path in FIELDS.get(item["kind"], ())]
        if missing := names_in(tags(held)) - names_in(item["metadata"]["name"]):
            yield Fault(
                label(item),
                "metadata.name",
                f"it does not change with its image: {', '.join(sorted(missing))} is not part of it",
                "make it with jobs.suspended_job, or add placeholders.tags(spec)",
            )


def invalid_label(rendered: Rendered) -> Iterator[Fault]:
    """Label values have at most 63 characters."""
    owners = [(label(item), "metadata.labels", item["metadata"].get("labels")) for item in rendered.objects]
    owners += [(pod.label, f"{pod.template_path}.metadata.labels", pod.labels) for pod in rendered.pods]
    for owner, path, labels in owners:
        for name, value in (labels or {}).items():
            if not _LABEL_VALUE.fullmatch(str(value)):
                yield Fault(
                    owner,
                    f"{path}.{name}",
                    f"{value!r} is no label value",
                    "use up to 63 of A-Z, a-z, 0-9, -_.",
                )


def wrong_namespace(rendered: Rendered) -> Iterator[Fault]:
    """Everything stands in the experiment's namespace, or in none where its kind has none."""
    wanted = namespace(rendered.experiment)
    for item in rendered.objects:
        given = item["metadata"].get("namespace")
        right = None if item["kind"] in CLUSTER_SCOPED else wanted
        if given != right:
            yield Fault(label(item), "metadata.namespace", f"it is {given!r}", f"render {right!r}")


def unmarked_lab_object(rendered: Rendered) -> Iterator[Fault]:
    """What is the lab's says so on each object, and nothing that goes into a cluster does."""
    wanted = rendered.experiment.lab_only
    for item in rendered.objects:
        if (LAB_ONLY in (item["metadata"].get("annotations") or {})) != wanted:
            yield Fault(
                label(item),
                f"metadata.annotations.{LAB_ONLY}",
                "it is missing" if wanted else "it is no object of the lab",
                "render the mark on every object of an experiment of the lab, and on no other",
            )


def selector_beside_template(rendered: Rendered) -> Iterator[Fault]:
    """A Deployment whose selector does not choose its own pods is refused by the API server."""
    for pod in rendered.pods:
        selector = pod.owner.get("spec", {}).get("selector")
        if pod.kind in ("Deployment", "StatefulSet", "DaemonSet") and not (
            selector and selects(selector, pod.labels)
        ):
            yield Fault(
                pod.label,
                "spec.selector",
                "it does not choose the pods of its own template",
                "use the template's labels",
            )


def missing_priority_class(rendered: Rendered) -> Iterator[Fault]:
    """A pod of a priority class that does not exist is refused."""
    known = {"system-cluster-critical", "system-node-critical", *rendered.named("PriorityClass")}
    for pod in rendered.pods:
        name = pod.spec.get("priorityClassName")
        if name and name not in known:
            yield Fault(
                pod.label,
                f"{pod.spec_path}.priorityClassName",
                f"{name!r} is not rendered",
                f"use {', '.join(sorted(known))}",
            )
