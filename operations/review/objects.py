"""What differs between two renders of Kubernetes objects, and what applying the difference does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cdk8s_charts.labels import NAME, STEP
from experiment.difference import Difference
from operations.review.changes import changes, worded

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name."""

IMMUTABLE = {
    "Job": r"spec\.(template|selector|completions)\b.*",
    "Deployment": r"spec\.selector\b.*",
    "PersistentVolume": r"spec\.(csi|nfs|local)\b.*",
    "PersistentVolumeClaim": r"spec\.(?!resources).*",
    "ResourceClaimTemplate": r"spec\b.*",
    "StorageClass": r"(provisioner|parameters|volumeBindingMode)\b.*",
}
"""What the API server refuses to change
(https://kubernetes.io/docs/concepts/workloads/controllers/job/, .../deployment/#label-selector-updates,
https://kubernetes.io/docs/concepts/storage/persistent-volumes/)."""
_READERS = re.compile(
    r"spec\.replicas"
    r"|(?P<labels>(spec\.template\.)?metadata\.labels)\.(?P<label>.+)"
    r"|spec\.template\.spec\.(?:init)?[cC]ontainers\[(?P<container>[^]]+)\]\."
    r"(?P<what>image|resources\.(?:limits|requests)\.[^.]+)"
)


def by_key(files: Mapping[str, Sequence[Object]]) -> dict[Key, Object]:
    """Every object of a render."""
    return {key(item): item for items in files.values() for item in items}


def key(item: Object) -> Key:
    """What the API server tells objects apart by."""
    metadata = item["metadata"]
    return item["kind"], metadata.get("namespace", ""), metadata["name"]


def deployment(objects: Mapping[Key, Object], name: str) -> Object | None:
    """The Deployment (or, for an arm that no server can run, nothing) of an arm."""
    return next(
        (item for (kind, _, own), item in objects.items() if (kind, own) == ("Deployment", name)), None
    )


def restart_causes(old: Object, new: Object) -> tuple[str, ...]:
    """Fields of a Deployment whose change replaces pods that stand, or lets pods come and go."""
    return tuple(
        change.path.removeprefix("spec.template.").removeprefix("spec.")
        for change in changes(old, new)
        if change.path.startswith("spec.template") or change.path == "spec.replicas"
    )


def readers_changes(old: Object, new: Object, *, image_said: bool) -> list[str]:
    """Replicas, labels, images and limits of an arm's Deployment; the image only where its facts did not say it."""
    texts = []
    for change in changes(old, new):
        found = _READERS.fullmatch(change.path)
        if not found:
            continue
        if found["label"]:
            pods = "pods' " if found["labels"].startswith("spec") else ""
            texts.append(worded(change, f"{pods}label {found['label']}"))
        elif found["what"] == "image":
            texts += [] if image_said else [worded(change, f"image of {found['container']}")]
        elif found["what"]:
            kind, resource = found["what"].removeprefix("resources.").split(".", 1)
            texts.append(worded(change, f"{kind[:-1]} of {found['container']}: {resource}"))
        else:
            texts.append(worded(change, "replicas"))
    return texts


def other_changes(old: Object, new: Object) -> list[Difference]:
    """What no reader's term covers."""
    return [change for change in changes(old, new) if not _READERS.fullmatch(change.path)]


def refused(old: Mapping[Key, Object], new: Mapping[Key, Object]) -> Iterator[str]:
    """Objects of which the API server would refuse the change."""
    for where in old.keys() & new.keys():
        pattern = IMMUTABLE.get(where[0])
        paths = [change.path for change in changes(old[where], new[where])]
        immutable = [path for path in paths if pattern and re.fullmatch(pattern, path)]
        if immutable:
            yield f"{where[0]} {where[2]}: {immutable[0]} cannot be changed in place; delete the object before applying"


def came_and_went(old: Mapping[Key, Object], new: Mapping[Key, Object]) -> tuple[list[Key], list[Key]]:
    """Objects that are new, and those that nothing removes: applying deletes nothing."""
    return sorted(new.keys() - old.keys()), sorted(old.keys() - new.keys())


def without_hash(name: str) -> str:
    """`qwen-llmperf-plan-ded936d3` as `qwen-llmperf-plan`: content-hashed names are one thing over time."""
    return re.sub(r"-[0-9a-f]{8}$", "", name)


def lasting_name(key: Key, item: Object) -> str:
    """What an object is called through all its versions. Jobs of a step change their whole name with what they do."""
    labels = item.get("metadata", {}).get("labels", {})
    return str(labels[NAME]) if STEP in labels else without_hash(key[2])


def named(keys: Iterable[Key], objects: Mapping[Key, Object]) -> set[tuple[str, str]]:
    """Kind and lasting name."""
    return {(key[0], lasting_name(key, objects[key])) for key in keys}
