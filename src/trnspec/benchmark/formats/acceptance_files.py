"""Acceptance as a file has it: the summary of a run, a file of another tool, or the shares alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from trnspec.benchmark.analyse.acceptance import MAX_WINDOWS
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.formats import aiperf, guidellm, speculation_profile, vllm_bench
from trnspec.core.files import UnreadableFile, json_in, model_in

_SHAPE = 'JSON {"class": [0.9, 0.8, ...]}, the share of steps in which draft 1, 2, ... was accepted'


def survivals(path: Path) -> dict[str, Sequence[float]]:
    """The share of steps in which position 1, 2, ... was accepted, by class. The file is the summary of a run, of another tool
    (`trnspec.benchmark.formats`), or has only these shares. Raises ResultsError."""
    try:
        content = json_in(path)
        known = isinstance(content, dict)
        formats: tuple[Any, ...] = (vllm_bench, aiperf, guidellm, speculation_profile)
        foreign = next((one for one in formats if known and one.matches(content)), None)
        if foreign:
            shares = foreign.survivals(content)
        else:
            shares = _of_summary(model_in(path, Result)) if known and "schema" in content else content
    except UnreadableFile as error:
        raise ResultsError(f"{path}: {error}; give a summary.json, or {_SHAPE}") from None
    if not known:
        raise ResultsError(f"{path}: no JSON object; give a summary.json, or {_SHAPE}")
    if not shares:
        what = f"is {foreign.NAME} without acceptance by position" if foreign else "knows nothing by position"
        raise ResultsError(f"{path}: {what}; give the summary of a run that speculates")
    for class_, own in shares.items():
        problem = _problem(own) if class_.isprintable() else "a class is printable text"
        if problem:
            raise ResultsError(
                f"{path}: {class_ if class_.isprintable() else shown(class_)}: {problem}; must be {_SHAPE}"
            )
    return shares


def _of_summary(result: Result) -> dict[str, Sequence[float]]:
    """The shares of the cell with the most steps, by class."""
    drafted = [cell for cell in result.cells if cell.acceptance.per_position]
    drafted.sort(key=lambda cell: cell.acceptance.steps or 0)
    return {cell.class_ or "": cell.acceptance.per_position or () for cell in drafted}


def _problem(shares: Any) -> str | None:
    if not isinstance(shares, list) or not shares:
        return f"{str(shares)[:60]!r} is not a list of shares"
    if len(shares) >= MAX_WINDOWS:
        return f"{len(shares)} positions are more than {MAX_WINDOWS - 1}"
    if any(type(share) not in (int, float) or not 0 <= share <= 1 for share in shares):
        return f"{shown(shares)} are not all numbers from 0 to 1"
    if any(later > earlier for earlier, later in pairwise(shares)):
        return f"{shown(shares)} rise, but no later draft is accepted more often than the one before it"
    return None
