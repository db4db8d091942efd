"""The comment at the head of a shipped experiment: what it answers, and what that takes, read without resolving the experiment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from trnspec.core.files import UnreadableFile, text_of
from trnspec.core.findings import Finding, Misuse
from trnspec.core.words import listed

PRICES: Mapping[str, float] = {"$": 50, "$$": 200, "$$$": float("inf")}
"""Classes by what a first run costs at published rates, each below its limit."""
DIFFICULTIES = ("beginner", "intermediate", "advanced")
_MAX_BYTES = 2**20
_LINE = re.compile(r"# ([a-z]+):[ \t]*(.*)")


@dataclass(frozen=True, kw_only=True)
class Header:
    """The fields of the comment, as they are listed by `new --list`."""

    title: str
    answers: str
    """The question, which ends with a question mark."""
    hardware: str
    """`2 x trn2.3xlarge`."""
    hours: str
    """Predicted hours of a first run on these nodes, compiling included, in whole hours."""
    price: str
    """A class of `PRICES`."""
    difficulty: str
    """One of `DIFFICULTIES`."""


FIELDS = tuple(field.name for field in fields(Header))
_WRONG: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "answers": (lambda text: not text.endswith("?"), "end with a question mark"),
    "hardware": (lambda text: not re.fullmatch(r"[1-9]\d* x \S+", text), "write it as in 2 x trn2.3xlarge"),
    "hours": (lambda text: not re.fullmatch(r"[1-9]\d*", text), "write whole hours, as in 3"),
    "price": (lambda text: text not in PRICES, f"use {listed([*PRICES])}"),
    "difficulty": (lambda text: text not in DIFFICULTIES, f"use {listed(DIFFICULTIES)}"),
}


def read_header(path: Path) -> Header | None:
    """Return the header of a file, lines `# field: text` before the first key; `None` of a file without any.

    Raises `Misuse` with every field that is missing, given twice or wrong.
    """
    try:
        lines = text_of(path, max_bytes=_MAX_BYTES).splitlines()
    except UnreadableFile as error:
        raise Misuse(Finding(str(path), None, str(error), "give an experiment file in UTF-8")) from None
    found: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("#"):
            break
        if (match := _LINE.fullmatch(line)) and match[1] in FIELDS:
            found.setdefault(match[1], []).append(match[2].strip())
    if not found:
        return None
    if problems := [problem for name in FIELDS if (problem := _problem(path, name, found.get(name, [])))]:
        raise Misuse(*problems)
    return Header(**{name: text for name, (text,) in found.items()})


def headers(folder: Path) -> dict[Path, Header]:
    """Return the header of each experiment of a folder that has one. Raises `Misuse`."""
    found = {path: read_header(path) for path in sorted(folder.glob("*.yaml"))}
    return {path: header for path, header in found.items() if header}


def price_classes() -> str:
    """Return what the signs of `price` mean."""
    *limited, (last, _) = PRICES.items()
    return ", ".join([*(f"{sign} below ${limit:.0f}" for sign, limit in limited), f"{last} above"])


def _problem(path: Path, name: str, texts: list[str]) -> Finding | None:
    where = f"{path}: header {name}"
    if not any(texts):
        return Finding(where, None, "is missing", f"add a line `# {name}: ...` before the first key")
    if len(texts) > 1:
        return Finding(where, None, f"is given {len(texts)} times", "keep one of the lines")
    wrong, remedy = _WRONG.get(name, (None, ""))
    return Finding(where, texts[0], "cannot be used", remedy) if wrong and wrong(texts[0]) else None
