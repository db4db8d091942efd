"""How wide a text for a person is: its lines, its tables, and the help of a command line."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest

LEAST, MOST = 60, 100
_GAP = "  "
_LONG_NAME = 24
"""Characters that a column of words keeps while others can be folded."""
_HEAD = re.compile(r" *(?:\S+(?: \S+)* {2,})?")
"""What a line begins with: its indent, and a label with at least two spaces behind it."""
_PART = re.compile(r"\[[^\]]*\]|(?:->|/) \S+|[^\s/]{3,}/(?=\S{4})|[^\s/]{6,}?-(?=[^\s-]{2})|\S+")
"""What a cell is not folded within: a word, an interval, what became of a value. Long names may be folded behind a / or a -."""
Column = list[list[str]]
"""A column of a table: the lines of each cell, the heading first."""


def width() -> int:
    """Columns of the terminal that standard output is, between 60 and 100; 100 where it is no terminal.

    COLUMNS takes precedence, as in other programs.
    """
    columns = os.environ.get("COLUMNS", "")
    try:
        if columns.isdecimal() and int(columns):
            known = int(columns)
        elif columns or sys.stdout.isatty():
            known = os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
        else:
            return MOST
    except (AttributeError, OSError, ValueError):  # there is no standard output, or it is closed
        return MOST
    return max(LEAST, min(MOST, known or MOST))


def wrapped(text: str, first: str = "", rest: str | None = None, *, free: int = 0) -> list[str]:
    """Lines of at most `width()` columns, less what is to stay free behind them: the first begins with `first`, the others with
    `rest` (as wide, unless given)."""
    indent = " " * len(first) if rest is None else rest
    return textwrap.wrap(
        text, width() - free, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
    )


def folded(lines: Iterable[str]) -> Iterator[str]:
    """The lines; one that is wider than `width()` goes on below its text, beside its label or one further in than its indent."""
    for line in lines:
        if len(line) <= width():
            yield line
            continue
        match = _HEAD.match(line)
        head = match.group() if match and match.end() <= LEAST // 2 else ""
        yield from wrapped(line[len(head) :], head, " " * len(head) if head else " ")


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    names: Collection[int] | None = None,
    indent: str = "",
    rule: bool = False,
    paint: Callable[[str], str] = str,
) -> Iterator[str]:
    """Lines of a table, none wider than `width()`. `names` are the columns of words, which begin at the left: all, unless given.

    Where all columns together are too wide, columns of words are folded, then numbers; where that is not enough, each row becomes
    lines of `heading  value`. `paint` gets each cell as it is printed.
    """
    cells = [headings, *rows]
    words = range(len(headings)) if names is None else names
    texts = [*zip(*cells, strict=True)]
    columns: list[Column] = [[[cell] for cell in column] for column in texts]
    gaps = len(indent) + len(_GAP) * (len(columns) - 1)
    while (excess := sum(map(_wide, columns)) + gaps - width()) > 0:
        if not _narrowed(columns, texts, words, excess):
            yield from _listed(cells, indent)
            return
    widths, ruled = [*map(_wide, columns)], rule
    for number, row in enumerate(zip(*columns, strict=True)):
        if number and ruled:
            yield indent + "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))
            ruled = False
        for parts in zip_longest(*row, fillvalue=""):
            placed = (
                part.ljust(wide) if index in words else part.rjust(wide)
                for index, (part, wide) in enumerate(zip(parts, widths, strict=True))
            )
            yield (indent + _GAP.join(map(paint, placed))).rstrip()


def _wide(column: Column) -> int:
    return max(len(line) for lines in column for line in lines)


def _narrowed(
    columns: list[Column], texts: Sequence[Sequence[str]], words: Collection[int], excess: int
) -> bool:
    """Fold the widest column that can be; whether one became narrower. A long one gives way alone, others a little each."""
    numbers = [index for index in range(len(columns)) if index not in words]
    for chosen, alone in ((words, True), (words, False), (numbers, False)):
        order = sorted(chosen, key=lambda index: _wide(columns[index]), reverse=True)
        for index, following in zip_longest(order, order[1:]):
            wide = _wide(columns[index])
            second = 1 if following is None else _wide(columns[following])
            most = max(wide - excess, _LONG_NAME if alone else min(wide - 1, second))
            made = [_folded(text, most) for text in texts[index]]
            if _wide(made) < wide:
                columns[index] = made
                return True
    return False


def _folded(cell: str, most: int) -> list[str]:
    """The cell in lines of at most `most` characters, where its parts allow that."""
    lines = [""]
    for match in _PART.finditer(cell):
        part, gap = match.group(), " " * cell[: match.start()].endswith(" ")
        if lines[-1] and len(lines[-1]) + len(gap) + len(part) > most:
            lines.append("")
        lines[-1] += f"{gap}{part}" if lines[-1] else part
    return lines


def _listed(cells: Sequence[Sequence[str]], indent: str) -> Iterator[str]:
    """Each row as a heading of its own, its values below."""
    headings, *rows = cells
    label = max(map(len, headings))
    for first, *others in rows:
        yield from wrapped(first, indent)
        for heading, value in zip(headings[1:], others, strict=True):
            yield from wrapped(value, f"{indent}  {heading:<{label}}  ")
