"""What was applied, held against what was reviewed: `manifests/<experiment>/`, but for the placeholders. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from experiment.difference import differences

Object = Mapping[str, Any]
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")


def not_as_reviewed(reviewed: Iterable[Object], applied: Iterable[Object]) -> tuple[str, ...]:
    """Each place where the two differ, in words; a placeholder stands for any text that is not empty."""
    found = {_name(one): one for one in applied}
    wanted = {_name_applied(_name(one), found): one for one in reviewed}
    lines = [f"{name}: reviewed, not applied" for name in wanted.keys() - found.keys()]
    lines += [f"{name}: applied, not reviewed" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        places = differences(wanted[name], found[name], same=_same)
        lines += [f"{name} {place.path}: {place.old!r} became {place.new!r}" for place in places]
    return tuple(sorted(lines))


def _name(one: Object) -> str:
    metadata = one.get("metadata", {})
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{one.get('kind', '?')} {where}{metadata.get('name', '?')}"


def _name_applied(name: str, found: Mapping[str, Object]) -> str:
    """A Job's name ends with a placeholder for the tag of its image."""
    return next((other for other in found if _stands_for(name, other)), name)


def _same(reviewed: Any, applied: Any) -> bool:
    # True == 1 in Python, and not in Kubernetes.
    if reviewed == applied and isinstance(reviewed, bool) == isinstance(applied, bool):
        return True
    return isinstance(reviewed, str) and isinstance(applied, str) and _stands_for(reviewed, applied)


def _stands_for(reviewed: str, applied: str) -> bool:
    parts = _PLACEHOLDER.split(reviewed)
    return len(parts) > 1 and bool(
        re.fullmatch(r"[^$]+".join(re.escape(part) for part in parts), applied, re.DOTALL)
    )
