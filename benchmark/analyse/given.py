"""Acceptance by position as someone hands it over: a summary of a run, or shares by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmark.errors import ResultsError
from benchmark.reading import json_of, text_of

_SHAPE = 'JSON {"class": [0.9, 0.8, ...]}, the share of steps in which draft 1, 2, ... was accepted'


def survivals(path: Path) -> dict[str, Sequence[float]]:
    """By class, the share of steps in which position 1, 2, ... was accepted. Raises ResultsError."""
    try:
        content = json_of(text_of(path))
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}; give a summary.json, or {_SHAPE}") from error
    except ValueError as error:
        raise ResultsError(f"{path}: not JSON ({error}); give a summary.json, or {_SHAPE}") from error
    if not isinstance(content, dict):
        raise ResultsError(f"{path}: no JSON object; give a summary.json, or {_SHAPE}")
    found = _of_summary(content) if isinstance(content.get("cells"), list) else content
    if not found:
        raise ResultsError(f"{path}: knows nothing by position; give the summary of a run that speculates")
    for class_, shares in found.items():
        if (problem := _problem(shares)) is not None:
            raise ResultsError(f"{path}: {class_}: {problem}; must be {_SHAPE}")
    return found


def _of_summary(summary: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """The cell of each class that saw most steps."""
    found: dict[str, tuple[int, Sequence[float]]] = {}
    for cell in summary["cells"]:
        known = cell.get("acceptance") or {}
        if not known.get("per_position"):
            continue
        steps = known.get("steps") or 0
        if steps >= found.get(cell["class"], (0, ()))[0]:
            found[cell["class"]] = (steps, known["per_position"])
    return {class_: shares for class_, (_, shares) in found.items()}


def _problem(shares: Any) -> str | None:
    if not isinstance(shares, list) or not shares:
        return f"{str(shares)[:60]!r} is no list of shares"
    if any(type(share) not in (int, float) or not 0 <= share <= 1 for share in shares):
        return f"{shares} are not all numbers from 0 to 1"
    if any(later > earlier for earlier, later in pairwise(shares)):
        return f"{shares} rise, but no later draft is accepted more often than the one before it"
    return None
