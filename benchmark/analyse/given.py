"""Acceptance by position as someone hands it over: a summary of a run, or shares by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from benchmark.errors import ResultsError
from benchmark.reading import json_of, text_of

_MOST_POSITIONS = 1000
"""Every window up to the last position is predicted, each as a sum over positions."""
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
        if not class_.isprintable():
            raise ResultsError(f"{path}: {shown(class_)}: a class is printable text; must be {_SHAPE}")
        if (problem := _problem(shares)) is not None:
            raise ResultsError(f"{path}: {class_}: {problem}; must be {_SHAPE}")
    return found


def _of_summary(summary: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """The cell of each class that saw most steps."""
    found: dict[str, tuple[int, Sequence[float]]] = {}
    for cell in summary["cells"]:
        known = cell.get("acceptance") if isinstance(cell, dict) else None
        if not (isinstance(known, dict) and known.get("per_position") and isinstance(cell.get("class"), str)):
            continue
        steps = known.get("steps")
        steps = steps if isinstance(steps, int) else 0
        if steps >= found.get(cell["class"], (0, ()))[0]:
            found[cell["class"]] = (steps, known["per_position"])
    return {class_: shares for class_, (_, shares) in found.items()}


def _problem(shares: Any) -> str | None:
    if not isinstance(shares, list) or not shares:
        return f"{str(shares)[:60]!r} is no list of shares"
    if len(shares) > _MOST_POSITIONS:
        return f"{len(shares)} positions are more than {_MOST_POSITIONS}"
    if any(type(share) not in (int, float) or not 0 <= share <= 1 for share in shares):
        return f"{shown(shares)} are not all numbers from 0 to 1"
    if any(later > earlier for earlier, later in pairwise(shares)):
        return f"{shown(shares)} rise, but no later draft is accepted more often than the one before it"
    return None
