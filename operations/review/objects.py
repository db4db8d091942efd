"""What differs between two states, in the words of the experiment file and the manifests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cdk8s_charts.parity import as_read
from core.differences import ABSENT, Difference, differences
from core.edge import shortened
from experiment.naming import NAME, STEP

LONGEST_VALUE = 120
Object = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name."""

_IMMUTABLE = {
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


def changes(old: Any, new: Any) -> Iterator[Difference]:
    """Every leaf that differs; a server's argv by option, other lists as a whole but for those of named things."""
    return differences(old, new, read=_as_compared)


def _as_compared(path: str, value: Any) -> Any:
    if not isinstance(value, list) or all(isinstance(item, Mapping) and "name" in item for item in value):
        return value
    read = as_read(path, value)
    return tuple(value) if read is value else read


def fact_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Facts that differ. A fact that the other state's code does not know at all is not a change of the experiment:
    only what came or went inside of something optional, or in a list by name, is."""
    return [
        change
        for change in differences(old, new)
        if _words(change.old) != _words(change.new)
        and not (change.old is ABSENT and _unknown(change.path, old))
        and not (change.new is ABSENT and _unknown(change.path, new))
    ]


def _unknown(path: str, facts: Mapping[str, Any]) -> bool:
    parts = path.split(".")
    above = {".".join(parts[:length]) for length in range(1, len(parts))}
    return not (above & facts.keys() or parts[0] == "prompts")


def arm_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What an arm's facts say differently, in the reader's terms."""
    by_path = {change.path: change for change in fact_changes(old, new)}
    texts = []
    if ("speculation" in old) != ("speculation" in new):  # an absent one is one `None`
        texts = [f"speculation {speculation(old)} -> {speculation(new)}"]
        by_path = {path: change for path, change in by_path.items() if path.split(".")[0] != "speculation"}
    return texts + [worded(change) for change in by_path.values()]


def speculation(facts: Mapping[str, Any]) -> str:
    """What an arm's facts say of its speculation."""
    mode, draft = facts.get("speculation.mode"), facts.get("speculation.draft.model.name")
    return f"{mode} with {draft}, k {facts.get('speculation.num_speculative_tokens')}" if mode else "none"


def worded(change: Difference) -> str:
    """`serving.devices 8 -> 4`."""
    return f"{change.path} {between(change.old, change.new)}"


def between(old: Any, new: Any) -> str:
    """Two values in a sentence."""
    return " -> ".join(shortened(_words(value), LONGEST_VALUE) for value in (old, new))


def _words(value: Any) -> str:
    if value is ABSENT or value is None or value == "":
        return "none"
    return " ".join((value if isinstance(value, str) else repr(value)).split())


def by_key(files: Mapping[str, Sequence[Object]]) -> dict[Key, Object]:
    """Every object of a render, by what identifies it for the API server."""
    return {key(item): item for items in files.values() for item in items}


def key(item: Object) -> Key:
    """Kind, namespace and name of an object."""
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def field_changes(old: Object, new: Object) -> tuple[list[str], tuple[str, ...]]:
    """Fields of a Deployment that differ with their values, and those whose change replaces its pods, or lets pods come and go."""
    fields = {
        change.path.removeprefix("spec.template.spec.").removeprefix("spec."): change
        for change in changes(old, new)
    }
    restarting = ("spec.template", "spec.replicas")
    return (
        [f"{field} {between(change.old, change.new)}" for field, change in fields.items()],
        tuple(field for field, change in fields.items() if change.path.startswith(restarting)),
    )


def refused(old: Mapping[Key, Object], new: Mapping[Key, Object]) -> Iterator[str]:
    """Objects of which the API server would refuse the change."""
    for where in sorted(old.keys() & new.keys()):
        pattern = _IMMUTABLE.get(where[0], r"(?!)")
        paths = (one.path for one in changes(old[where], new[where]) if re.fullmatch(pattern, one.path))
        if path := next(paths, None):
            remedy = "cannot be changed in place; delete the object before applying"
            yield f"{where[0]} {where[2]}: {path} {remedy}"


def lasting_name(key: Key, item: Object) -> str:
    """What an object is called through all its versions: without the hash of its content. Jobs of a step change their
    whole name with what they do."""
    labels = item["metadata"].get("labels", {})
    return str(labels[NAME]) if STEP in labels else re.sub(r"-[0-9a-f]{8}$", "", key[2])


def named(keys: Iterable[Key], objects: Mapping[Key, Object]) -> set[tuple[str, str]]:
    """Kind and lasting name."""
    return {(key[0], lasting_name(key, objects[key])) for key in keys}
