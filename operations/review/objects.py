"""What differs between two states, and what readers call those places.

What differs between two renders of Kubernetes objects, and what applying the difference does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cdk8s_charts.parity import as_read
from experiment.difference import ABSENT, Difference, differences
from experiment.naming import NAME, STEP

LONGEST_VALUE = 120

_LABELS = {
    "speculation.num_speculative_tokens": "k",
    "speculation.mode": "speculation mode",
    "speculation.draft.model.name": "draft",
    "speculation.draft.revision": "draft revision",
    "speculation.draft_max_model_len": "longest sequence of the draft",
    "target.model.name": "target",
    "target.revision": "target revision",
    "runtime.name": "runtime",
    "runtime.image": "image",
    "serving.devices": "devices",
    "serving.logical_nc_config": "logical cores (LNC)",
    "serving.tensor_parallel": "tensor parallelism",
    "serving.max_num_seqs": "batch",
    "serving.max_model_len": "longest sequence",
    "serving.allocation": "allocation of devices",
}
"""A path of an arm's facts in the words of the experiment file's reader."""
_NAMED = ("target.model", "speculation.draft.model", "runtime")
"""Entries of the catalogue: where the name changes, the rest follows from it."""


def worded(change: Difference, label: str | None = None) -> str:
    """`k 7 -> 5`."""
    return f"{label or change.path} {between(change.old, change.new)}"


def changes(old: Any, new: Any) -> Iterator[Difference]:
    """Every leaf that differs; a server's argv by option, other lists as a whole but for those of named things."""
    return differences(old, new, read=_as_told)


def _as_told(path: str, value: Any) -> Any:
    if not isinstance(value, list) or all(isinstance(item, Mapping) and "name" in item for item in value):
        return value
    read = as_read(path, value)
    return tuple(value) if read is value else read


def fact_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What an arm's facts say differently, in the reader's terms."""
    before, after = dict(old), dict(new)
    texts = []
    for label, path in (
        ("speculation", "speculation"),
        *((_LABELS[f"{name}.name"], name) for name in _NAMED),
    ):
        text = _replaced(before, after, path, label)
        texts += [text] if text else []
    found = sorted(flat_changes(before, after), key=_rank)
    return texts + [worded(change, _LABELS.get(change.path)) for change in found]


def flat_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Facts that differ. One that the other state's code does not know of at all is no change of the experiment:
    only what came or went inside of something optional, or in a list by name, is."""
    return [
        change
        for change in changes(dict(old), dict(new))
        if shown(change.old) != shown(change.new)
        and not (change.old is ABSENT and _unknown(change.path, old))
        and not (change.new is ABSENT and _unknown(change.path, new))
    ]


def _unknown(path: str, facts: Mapping[str, Any]) -> bool:
    parts = path.split(".")
    above = {".".join(parts[:length]) for length in range(1, len(parts))}
    return not (above & facts.keys() or parts[0] == "prompts")


def shown(value: Any) -> str:
    """A value in a sentence."""
    return _cut(_words(value))


def _words(value: Any) -> str:
    if value is ABSENT or value is None or value == "":
        return "none"
    return " ".join((value if isinstance(value, str) else repr(value)).split())


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def between(old: Any, new: Any) -> str:
    """Two values in a sentence; of two long ones, the places where they part."""
    texts = [_words(value) for value in (old, new)]
    if max(map(len, texts)) > LONGEST_VALUE:
        start = max(0, _common(*texts) - LONGEST_VALUE // 3)
        texts = [f"...{text[start:]}" if start else text for text in texts]
    return " -> ".join(_cut(text) for text in texts)


def _common(one: str, other: str) -> int:
    """Length of the beginning that both share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def _replaced(before: dict[str, Any], after: dict[str, Any], path: str, label: str) -> str | None:
    """Takes out of both what stands under `path`, where the thing itself came, went or became another one."""
    name = f"{path}.name"
    whole = (path in before) != (path in after)  # an absent thing is one `None`
    if not whole and before.get(name) == after.get(name):
        return None
    ends = [_called(facts, path) for facts in (before, after)]
    keep = f"{path}.image"  # beside the name of a runtime, its image is worth a line
    for facts in (before, after):
        for key in [key for key in facts if key == path or (key.startswith(f"{path}.") and key != keep)]:
            del facts[key]
    return f"{label} {ends[0]} -> {ends[1]}"


def _called(facts: Mapping[str, Any], path: str) -> str:
    if f"{path}.name" in facts:
        return str(facts[f"{path}.name"])
    if f"{path}.mode" in facts:
        draft, k = facts.get(f"{path}.draft.model.name"), facts.get(f"{path}.num_speculative_tokens")
        return f"{facts[f'{path}.mode']} with {draft}, k {k}"
    return "none"


def _rank(change: Difference) -> tuple[int, str]:
    labels = list(_LABELS)
    return (labels.index(change.path) if change.path in labels else len(labels), change.path)


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
