"""Containers: resources, images, probes, ports, names."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from cdk8s_charts.checking.finding import Fault
from cdk8s_charts.scheduling.errors import SchedulingError
from cdk8s_charts.scheduling.quantities import quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdk8s_charts.checking.rendered import Rendered

_PORT_NAME = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")
_WHEEL = re.compile(r"[\w.-]+==\d+\.\d+\.\d+\S*")
"""The lab's runtime is a wheel, not an image: no kubelet could start it, and its experiments are never applied."""
_HANDLERS = ("httpGet", "exec", "tcpSocket", "grpc")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def missing_resources(rendered: Rendered) -> Iterator[Fault]:
    """Requests decide where a pod stands, limits keep it from its neighbours: both are written down."""
    for pod, path, container in rendered.containers():
        resources = container.get("resources") or {}
        for part in ("requests", "limits"):
            for name in ("cpu", "memory"):
                if name not in (resources.get(part) or {}):
                    yield Fault(
                        pod.label, f"{path}.resources.{part}.{name}", "it is missing", "write an amount"
                    )


def request_above_limit(rendered: Rendered) -> Iterator[Fault]:
    """The API server refuses such a pod, though not the Deployment that makes it."""
    for pod, path, container in rendered.containers():
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        for name, value in (resources.get("requests") or {}).items():
            where = f"{path}.resources.requests.{name}"
            try:
                above = name in limits and quantity(value) > quantity(limits[name])
            except SchedulingError as error:
                yield Fault(pod.label, where, str(error), "correct it")
                continue
            if above:
                yield Fault(
                    pod.label,
                    where,
                    f"{value} is above the limit of {limits[name]}",
                    "raise the limit or ask less",
                )


def unpinned_image(rendered: Rendered) -> Iterator[Fault]:
    """An image without a full tag is another one tomorrow."""
    for pod, path, container in rendered.containers():
        image = str(container.get("image", ""))
        if _PLACEHOLDER.fullmatch(image) or _WHEEL.fullmatch(image):
            continue  # the first is tagged with the hash of its content when it is filled in
        tag = image.split("@")[0].rpartition("/")[2].partition(":")[2]
        digest = "@sha256:" in image
        if not digest and (not tag or tag == "latest" or _is_moving(tag)):
            yield Fault(
                pod.label,
                f"{path}.image",
                f"{image or 'no image'} is not pinned",
                "name a full version tag, or a digest",
            )


def missing_probe(rendered: Rendered) -> Iterator[Fault]:
    """A server is started, ready and alive by its own word, each by exactly one handler."""
    for _, pod in rendered.arms():
        for path, container in pod.containers():
            if not path.startswith("containers") or not container.get("ports"):
                continue
            for name in PROBES:
                probe = container.get(name) or {}
                handlers = [handler for handler in _HANDLERS if handler in probe]
                if len(handlers) != 1:
                    yield Fault(
                        pod.label,
                        f"{pod.spec_path}.{path}.{name}",
                        f"it has {len(handlers) or 'no'} handlers" if probe else "it is missing",
                        f"give it one of {', '.join(_HANDLERS)}",
                    )


def probe_of_no_port(rendered: Rendered) -> Iterator[Fault]:
    """A probe of a port that the container does not open restarts it for ever."""
    for pod, path, container in rendered.containers():
        ports = {
            port
            for entry in container.get("ports") or ()
            for port in (entry.get("name"), entry["containerPort"])
        }
        for name in PROBES:
            probe = container.get(name) or {}
            for handler in ("httpGet", "tcpSocket"):
                port = (probe.get(handler) or {}).get("port")
                if port is not None and port not in ports:
                    yield Fault(
                        pod.label,
                        f"{path}.{name}.{handler}.port",
                        f"the container opens no port {port!r}",
                        f"use {', '.join(sorted(map(str, ports - {None}))) or 'a port that it opens'}",
                    )


def slow_probe(rendered: Rendered) -> Iterator[Fault]:
    """A probe that may take longer than its period overlaps itself."""
    for pod, path, container in rendered.containers():
        for name in ("readinessProbe", "livenessProbe"):
            probe = container.get(name) or {}
            timeout, period = probe.get("timeoutSeconds", 1), probe.get("periodSeconds", 10)
            if timeout > period:
                yield Fault(
                    pod.label,
                    f"{path}.{name}.timeoutSeconds",
                    f"{timeout} s is longer than the period of {period} s",
                    "make it at most the period",
                )


def invalid_port_name(rendered: Rendered) -> Iterator[Fault]:
    """IANA service names: at most 15 lower-case letters, digits and single hyphens, a letter among them."""
    for pod, path, container in rendered.containers():
        names = [port["name"] for port in container.get("ports") or () if "name" in port]
        for name, count in Counter(names).items():
            if not _PORT_NAME.fullmatch(name) or count > 1:
                yield Fault(
                    pod.label,
                    f"{path}.ports[{name}].name",
                    f"{name!r} is {'used twice' if count > 1 else 'no port name'}",
                    "use up to 15 of a-z, 0-9 and -",
                )


def duplicate_entry(rendered: Rendered) -> Iterator[Fault]:
    """Two containers, volumes, mounts or variables of one name: the last one wins, or the pod is refused."""
    for pod in rendered.pods:
        groups = {
            "containers": [container.get("name") for _, container in pod.containers()],
            "volumes": [volume["name"] for volume in pod.spec.get("volumes") or ()],
        }
        for path, container in pod.containers():
            groups[f"{path}.env"] = [entry["name"] for entry in container.get("env") or ()]
            groups[f"{path}.volumeMounts"] = [m["mountPath"] for m in container.get("volumeMounts") or ()]
        for path, names in groups.items():
            for name, count in Counter(names).items():
                if count > 1:
                    yield Fault(
                        pod.label,
                        f"{pod.spec_path}.{path}",
                        f"{name!r} stands there {count} times",
                        "keep one",
                    )


def _is_moving(tag: str) -> bool:
    """`3`, `3.11`, `slim`, `stable`: names under which something else is published next week."""
    return not re.search(r"\d+\.\d+\.\d+|[0-9a-f]{12,}", tag)
