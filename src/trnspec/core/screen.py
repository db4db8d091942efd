"""Fit lines, tables and help texts to the width of the terminal."""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product, zip_longest
from pathlib import Path

MIN_WIDTH, MAX_WIDTH = 60, 100
_GAP = "  "
_ADDRESS = re.compile(r"\S\.\w+/\S")
_LONG_NAME = 24
"""Characters that a text column keeps while other columns can be folded."""
_HEAD = re.compile(r" *(?:\S+(?: \S+)* {2,})?")
"""The beginning of a line: its indent, and a label that is followed by at least two spaces."""
_WORD = re.compile(r"\[[^\]]*\]\S*|(?:->|/) \S+|\d{4}-\d\d-\d\d\S*|\S+")
"""A part of a cell that stays on one line: a word, an interval, a change of a value, a time."""
_PIECE = re.compile(r"[^\s/]{3,}/(?=\S{4})|[^\s/]{6,}?-(?=[^\s-]{2})|\S+")
"""A piece of a name or an address, which is cut after a / or a - only where the table does not fit otherwise."""
Column = list[list[str]]
"""A column of a table: the lines of each cell, the heading first."""


def width() -> int:
    """Return the columns of the terminal, from 60 to 100; 100 if standard output is not a terminal.

    COLUMNS takes precedence, as in other programs.
    """
    columns = os.environ.get("COLUMNS", "")
    try:
        if columns.isdecimal() and int(columns):
            known = int(columns)
        elif columns or sys.stdout.isatty():
            known = os.get_terminal_size(sys.__stdout__.fileno()).columns  # pyrefly: ignore[missing-attribute]  # no program starts without
        else:
            return MAX_WIDTH
    except (AttributeError, OSError, ValueError):  # there is no standard output, or it is closed
        return MAX_WIDTH
    return max(MIN_WIDTH, min(MAX_WIDTH, known or MAX_WIDTH))


def wrapped(text: str, first: str = "", rest: str | None = None, *, free: int = 0) -> list[str]:
    """Wrap `text` to lines of at most `width()` less `free` columns. The first line begins with `first`, the others with `rest`,
    by default spaces of the same width. A longer word is cut, but not in a text with an address, which must stay whole to be copied."""
    return textwrap.wrap(
        text,
        width() - free,
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_on_hyphens=False,
        break_long_words=not _ADDRESS.search(text),
    )


def folded(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, folded to `width()`. A folded line continues below its text, or one column deeper than its indent."""
    for line in lines:
        if len(line) <= width():
            yield line
            continue
        match = _HEAD.match(line)
        head = match.group() if match and match.end() <= MIN_WIDTH // 2 else ""
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
    """Yield the lines of a table, none wider than `width()` unless it has an address. `names` are the text columns, aligned left: all, unless given.

    If the table is too wide, text columns are folded, then columns of numbers; if that is not enough, each row becomes
    lines of `heading  value`. `paint` is applied to each printed cell.
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
    """Fold the widest column that can be folded, and return whether a column became narrower. A long column is folded alone,
    shorter columns a little at a time."""
    numbers = [index for index in range(len(columns)) if index not in words]
    ways = ((words, True), (words, False))
    for cut, (chosen, alone) in (*product((False, True), ways), (True, (numbers, False))):
        order = sorted(chosen, key=lambda index: _wide(columns[index]), reverse=True)
        for index, following in zip_longest(order, order[1:]):
            wide = _wide(columns[index])
            second = 1 if following is None else _wide(columns[following])
            max_length = max(wide - excess, _LONG_NAME if alone else min(wide - 1, second))
            narrower = _folded(texts[index], max_length, cut=cut)
            if _wide(narrower) < wide:
                columns[index] = narrower
                return True
    return False


def _folded(cells: Sequence[str], max_length: int, *, cut: bool) -> Column:
    """Return the lines of each cell, of at most `max_length` characters. A longer word is `cut`, or the column is as wide as that word."""
    words = [_WORD.findall(cell) for cell in cells]
    if not cut:
        max_length = max([max_length, *(len(word) for own in words for word in own)])
    return [_lines(own, max_length) for own in words]


def _lines(words: Sequence[str], max_length: int) -> list[str]:
    """Return the words in lines; one that is longer than a line is cut, if it has a / or a -."""
    lines = [""]
    for word in words:
        gap = " "
        for piece in _PIECE.findall(word) if len(word) > max_length and " " not in word else [word]:
            if lines[-1] and len(lines[-1]) + len(gap) + len(piece) > max_length:
                lines.append("")
            lines[-1] += f"{gap}{piece}" if lines[-1] else piece
            gap = ""
    return lines


def _listed(cells: Sequence[Sequence[str]], indent: str) -> Iterator[str]:
    """Yield each row as a heading with its values below."""
    headings, *rows = cells
    label = max(map(len, headings))
    for first, *others in rows:
        yield from wrapped(first, indent)
        for heading, value in zip(headings[1:], others, strict=True):
            yield from wrapped(value, f"{indent}  {heading:<{label}}  ")


def pasted(path: Path) -> str:
    """Return a path as a word of a command that can be pasted: quoted, and relative if it is in the current folder."""
    whole, here = path.absolute(), Path.cwd()
    return shlex.quote(str(whole.relative_to(here) if whole.is_relative_to(here) else path))
