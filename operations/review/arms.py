"""What happens to one arm: what is said differently, whether it compiles again, whether its pods are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from operations.review import objects as kubernetes
from operations.review.changes import fact_changes, worded
from operations.review.objects import Key, Object

MOST_OTHERS = 3
_REMOVED = "removed: `cdk deploy` deletes its Deployment and its pods end; its artifact stays until a run marks it stale"


@dataclass(frozen=True, kw_only=True)
class ArmReview:
    """One row of the table."""

    name: str
    changes: tuple[str, ...]
    compiles: str | None = None
    """Why there is something to compile; `None`: the artifact that there is serves on."""
    reuses: str | None = None
    """The arm of the base whose artifact has the new key."""
    restarts_for: tuple[str, ...] = ()
    """The rendered fields whose change replaces its pods, or lets pods come and go."""
    removed: bool = False

    @property
    def needs_human(self) -> bool:
        """Whether it costs somebody time, money or a comparison."""
        return bool(self.compiles or self.restarts_for or self.reuses or self.removed)


def review_arms(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    before: Mapping[Key, Object],
    after: Mapping[Key, Object],
) -> tuple[ArmReview, ...]:
    """The arms of one experiment, those that are gone last. Artifacts are found in the experiment's own bucket only."""
    here = {**new["arms"]}
    known_keys = {arm["key"]: name for name, arm in old["arms"].items()}
    rows = []
    for name, arm in here.items():
        if name in old["arms"]:
            rows.append(_changed(name, old["arms"][name], arm, before, after, known_keys))
        else:
            compiles, reuses = _artifact(None, arm["key"], known_keys)
            rows.append(ArmReview(name=name, changes=(_added(arm),), compiles=compiles, reuses=reuses))
    gone = [name for name in old["arms"] if name not in here]
    rows += [ArmReview(name=name, changes=(_REMOVED,), removed=True) for name in gone]
    return tuple(rows)


def _changed(
    name: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    before: Mapping[Key, Object],
    after: Mapping[Key, Object],
    known_keys: Mapping[str, str],
) -> ArmReview:
    texts = [*fact_changes(old["facts"], new["facts"]), *_cost(old["usd_per_hour"], new["usd_per_hour"])]
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
        restarts_for=kubernetes.restart_causes(one, other) if one and other else (),
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
    costs = "" if arm["usd_per_hour"] is None else f"; ${arm['usd_per_hour']:.2f} an hour while it stands"
    if not mode:
        return f"added: {facts.get('target.model.name')} without speculation{costs}"
    return (
        f"added: {mode} with {facts.get('speculation.draft.model.name')}, "
        f"k {facts.get('speculation.num_speculative_tokens')}{costs}"
    )


def _cost(old: float | None, new: float | None) -> list[str]:
    """Of its share of a node's devices, at list price."""
    if old is None or new is None or round(old, 2) == round(new, 2):
        return []
    return [f"while it stands ${old:.2f} -> ${new:.2f} an hour"]


def _others(old: Object, new: Object) -> list[str]:
    """Places that have no name in the reader's language, where nothing else explains them."""
    found = kubernetes.other_changes(old, new)
    texts = [worded(change) for change in found[:MOST_OTHERS]]
    return texts + ([f"and {len(found) - MOST_OTHERS} more places"] if len(found) > MOST_OTHERS else [])
