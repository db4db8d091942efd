"""What happens to one arm: what is said differently, whether it compiles again, whether its pods are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from operations.review import objects as kubernetes
from operations.review.changes import fact_changes
from operations.review.objects import Key, Object

MOST_OTHERS = 3


@dataclass(frozen=True, kw_only=True)
class ArmReview:
    """One row of the table."""

    name: str
    changes: tuple[str, ...]
    compiles: str | None = None
    """Why there is something to compile; `None`: the artifact that there is serves on."""
    reuses: str | None = None
    """The arm of the base whose artifact has the new key."""
    restarts: bool = False

    @property
    def needs_human(self) -> bool:
        """Whether it costs somebody time, money or a comparison."""
        return bool(self.compiles or self.restarts or self.reuses)


def review_arms(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    before: Mapping[Key, Object],
    after: Mapping[Key, Object],
    known_keys: Mapping[str, str],
) -> tuple[ArmReview, ...]:
    """The arms of one experiment, those that are gone last; `known_keys` has the base's arms by artifact key."""
    here = {**new["arms"]}
    rows = []
    for name, arm in here.items():
        if name in old["arms"]:
            rows.append(_changed(name, old["arms"][name], arm, before, after, known_keys))
        else:
            compiles, reuses = _artifact(None, arm["key"], known_keys)
            rows.append(ArmReview(name=name, changes=(_added(arm),), compiles=compiles, reuses=reuses))
    gone = [name for name in old["arms"] if name not in here]
    rows += [
        ArmReview(
            name=name, changes=("removed; its Deployment and its artifact stay until someone deletes them",)
        )
        for name in gone
    ]
    return tuple(rows)


def _changed(
    name: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    before: Mapping[Key, Object],
    after: Mapping[Key, Object],
    known_keys: Mapping[str, str],
) -> ArmReview:
    texts = fact_changes(old["facts"], new["facts"])
    one, other = kubernetes.deployment(before, name), kubernetes.deployment(after, name)
    if one and other:
        image_said = any(text.startswith(("image ", "runtime ")) for text in texts)
        texts += kubernetes.readers_changes(one, other, image_said=image_said)
        if not texts:
            texts += _others(one, other)
    compiles, reuses = _artifact(old["key"], new["key"], known_keys)
    return ArmReview(
        name=name,
        changes=tuple(texts),
        compiles=compiles,
        reuses=reuses,
        restarts=kubernetes.restarts(one, other),
    )


def _artifact(old: str | None, new: str, known_keys: Mapping[str, str]) -> tuple[str | None, str | None]:
    if old == new:
        return None, None
    if new in known_keys:
        return None, known_keys[new]
    return (f"{old} -> {new}" if old else f"new: {new}"), None


def _added(arm: Mapping[str, Any]) -> str:
    facts = arm["facts"]
    mode = facts.get("speculation.mode")
    if not mode:
        return f"added: {facts.get('target.model.name')} without speculation"
    return (
        f"added: {mode} with {facts.get('speculation.draft.model.name')}, "
        f"k {facts.get('speculation.num_speculative_tokens')}"
    )


def _others(old: Object, new: Object) -> list[str]:
    """Places that have no name in the reader's language, where nothing else explains them."""
    found = kubernetes.other_changes(old, new)
    texts = [change.text() for change in found[:MOST_OTHERS]]
    return texts + ([f"and {len(found) - MOST_OTHERS} more places"] if len(found) > MOST_OTHERS else [])
