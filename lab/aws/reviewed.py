"""What was applied, held against what was reviewed: `manifests/<experiment>/`, but for the placeholders. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]
_PLACEHOLDER = re.compile(r"\$\{[A-Z_]+\}")


def differences(reviewed: Iterable[Object], applied: Iterable[Object]) -> tuple[str, ...]:
    """Each place where the two differ, in words; a placeholder stands for any text that is not empty."""
    found = {_name(one): one for one in applied}
    wanted = {_name_applied(_name(one), found): one for one in reviewed}
    lines = [f"{name}: reviewed, not applied" for name in wanted.keys() - found.keys()]
    lines += [f"{name}: applied, not reviewed" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        lines += [f"{name}{line}" for line in _between(wanted[name], found[name], "")]
    return tuple(sorted(lines))


def _name(one: Object) -> str:
    metadata = one.get("metadata", {})
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{one.get('kind', '?')} {where}{metadata.get('name', '?')}"


def _name_applied(name: str, found: Mapping[str, Object]) -> str:
    """A Job's name ends with a placeholder for the tag of its image."""
    return next((other for other in found if _stands_for(name, other)), name)


def _between(reviewed: Any, applied: Any, path: str) -> list[str]:
    if isinstance(reviewed, Mapping) and isinstance(applied, Mapping) and reviewed.keys() == applied.keys():
        return [line for key in reviewed for line in _between(reviewed[key], applied[key], f"{path}/{key}")]
    if isinstance(reviewed, list) and isinstance(applied, list) and len(reviewed) == len(applied):
        pairs = enumerate(zip(reviewed, applied, strict=True))
        return [line for index, pair in pairs for line in _between(*pair, f"{path}/{index}")]
    # True == 1 in Python, and not in Kubernetes.
    if reviewed == applied and isinstance(reviewed, bool) == isinstance(applied, bool):
        return []
    if isinstance(reviewed, str) and isinstance(applied, str) and _stands_for(reviewed, applied):
        return []
    return [f"{path}: {reviewed!r} became {applied!r}"]


def _stands_for(reviewed: str, applied: str) -> bool:
    parts = _PLACEHOLDER.split(reviewed)
    return len(parts) > 1 and bool(
        re.fullmatch(r"[^$]+".join(re.escape(part) for part in parts), applied, re.DOTALL)
    )
