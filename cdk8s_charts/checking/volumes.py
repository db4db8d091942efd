"""Volumes: mounts, claims, the buckets behind them, and what counts against a pod's memory and disk."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cdk8s_charts.checking.finding import Fault
from cdk8s_charts.checking.rendered import Rendered, label
from cdk8s_charts.scheduling.quantities import quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

STORES = ("/checkpoints", "/artifacts")
"""Where servers find weights and compiled graphs; they never write there."""


def mount_without_volume(rendered: Rendered) -> Iterator[Fault]:
    """A container mounts what its pod does not have."""
    for pod, path, container in rendered.containers():
        volumes = {volume["name"] for volume in pod.spec.get("volumes") or ()}
        for mount in container.get("volumeMounts") or ():
            if mount["name"] not in volumes:
                yield Fault(
                    pod.label,
                    f"{path}.volumeMounts[{mount['name']}]",
                    "the pod has no volume of that name",
                    f"use one of {', '.join(sorted(volumes))}",
                )


def missing_volume_claim(rendered: Rendered) -> Iterator[Fault]:
    """A pod names a PersistentVolumeClaim that is not rendered."""
    claims = rendered.named("PersistentVolumeClaim")
    for pod in rendered.pods:
        for volume in pod.spec.get("volumes") or ():
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if name is not None and name not in claims:
                yield Fault(
                    pod.label,
                    f"{pod.spec_path}.volumes[{volume['name']}]",
                    f"PersistentVolumeClaim {name!r} is not rendered",
                    f"use one of {', '.join(sorted(claims))}",
                )


def unbound_volume_claim(rendered: Rendered) -> Iterator[Fault]:
    """A claim binds only to a volume that names it back and offers its access modes."""
    volumes = rendered.named("PersistentVolume")
    for claim in rendered.named("PersistentVolumeClaim").values():
        wanted = claim["spec"].get("volumeName")
        volume = volumes.get(wanted or "")
        if volume is None:
            why = f"PersistentVolume {wanted!r} is not rendered"
        elif (volume["spec"].get("claimRef") or {}).get("name") != claim["metadata"]["name"]:
            why = f"{label(volume)} is reserved for {(volume['spec'].get('claimRef') or {}).get('name')!r}"
        elif not set(claim["spec"]["accessModes"]) <= set(volume["spec"]["accessModes"]):
            why = f"{label(volume)} offers {', '.join(volume['spec']['accessModes'])}"
        else:
            continue
        yield Fault(
            label(claim), "spec.volumeName", why, "render volume and claim as a pair that name each other"
        )


def shared_volume_handle(rendered: Rendered) -> Iterator[Fault]:
    """Kubernetes mounts a handle once: the second volume with it waits for ever (Mountpoint CSI driver, CONFIGURATION.md)."""
    volumes = rendered.named("PersistentVolume").values()
    handles = Counter((volume["spec"].get("csi") or {}).get("volumeHandle") for volume in volumes)
    for volume in volumes:
        handle = (volume["spec"].get("csi") or {}).get("volumeHandle")
        if handle is not None and handles[handle] > 1:
            yield Fault(
                label(volume),
                "spec.csi.volumeHandle",
                f"{handles[handle]} volumes have {handle!r}",
                "give each its own",
            )


def missing_config_map(rendered: Rendered) -> Iterator[Fault]:
    """A pod mounts a ConfigMap that is not rendered, or a key that it lacks."""
    maps = rendered.named("ConfigMap")
    for pod in rendered.pods:
        for volume in pod.spec.get("volumes") or ():
            source = volume.get("configMap")
            if source is None:
                continue
            path = f"{pod.spec_path}.volumes[{volume['name']}].configMap"
            if source.get("name") not in maps:
                yield Fault(
                    pod.label,
                    path,
                    f"ConfigMap {source.get('name')!r} is not rendered",
                    f"use one of {', '.join(sorted(maps))}",
                )
                continue
            data = maps[source["name"]].get("data") or {}
            for item in source.get("items") or ():
                if item["key"] not in data:
                    yield Fault(pod.label, path, f"it has no key {item['key']!r}", f"use {', '.join(data)}")


def writable_store(rendered: Rendered) -> Iterator[Fault]:
    """A server that can write into the buckets could compile into them unseen."""
    for _, pod in rendered.arms():
        for path, container in pod.containers():
            for mount in container.get("volumeMounts") or ():
                if mount["mountPath"].startswith(STORES) and not mount.get("readOnly"):
                    yield Fault(
                        pod.label,
                        f"{pod.spec_path}.{path}.volumeMounts[{mount['name']}].readOnly",
                        f"{mount['mountPath']} is writable",
                        "mount it with readOnly: true",
                    )


def memory_volume_beyond_limit(rendered: Rendered) -> Iterator[Fault]:
    """What is written to a memory volume counts against the writer's memory: beyond the limit the server is killed."""
    for pod, path, container in rendered.containers():
        limit = quantity(((container.get("resources") or {}).get("limits") or {}).get("memory", 0))
        mounted = {mount["name"] for mount in container.get("volumeMounts") or ()}
        for volume in pod.spec.get("volumes") or ():
            source = volume.get("emptyDir") or {}
            if source.get("medium") != "Memory" or volume["name"] not in mounted:
                continue
            size = source.get("sizeLimit")
            if size is None or quantity(size) >= limit:
                yield Fault(
                    pod.label,
                    f"{pod.spec_path}.volumes[{volume['name']}].emptyDir.sizeLimit",
                    f"{size} is not below the memory limit of {path}",
                    "set a smaller one",
                )


def disk_volume_beyond_limit(rendered: Rendered) -> Iterator[Fault]:
    """Disk of emptyDir volumes counts against ephemeral-storage: a pod whose volumes may outgrow it is evicted."""
    for pod in rendered.pods:
        limits = [
            (container.get("resources") or {}).get("limits", {}).get("ephemeral-storage")
            for container in pod.spec["containers"]
        ]
        given = [quantity(limit) for limit in limits if limit is not None]
        sizes = [
            quantity(source["sizeLimit"])
            for volume in pod.spec.get("volumes") or ()
            if (source := volume.get("emptyDir"))
            and source.get("medium") != "Memory"
            and "sizeLimit" in source
        ]
        if len(given) == len(limits) and sum(sizes) > sum(given):
            yield Fault(
                pod.label,
                f"{pod.spec_path}.volumes",
                f"emptyDir volumes may hold {float(sum(sizes)) / 2**30:.4g}Gi, ephemeral-storage is limited to "
                f"{float(sum(given)) / 2**30:.4g}Gi",
                "raise the limit or shrink the volumes",
            )
