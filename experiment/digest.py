"""A fingerprint of a resolved experiment: two files that mean the same have the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from experiment.arms import Experiment


def digest(experiment: Experiment) -> str:
    """SHA-256, hexadecimal, of everything that the experiment resolves to, catalogue facts included."""
    plain = _plain(experiment)
    plain["cluster"]["instance"] = _plain(experiment.instance)
    plain["benchmark"]["slo"] = list(experiment.benchmark.objectives.items())
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
