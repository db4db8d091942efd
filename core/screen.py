"""How wide a text for a person is, and its lines."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

LEAST, MOST = 60, 100


def width() -> int:
    """Columns of the terminal that standard output is, between 60 and 100; 100 where it is no terminal.

    COLUMNS takes precedence, as in other programs.
    """
    try:
        known = bool(os.environ.get("COLUMNS")) or (sys.stdout is not None and sys.stdout.isatty())
    except ValueError:  # standard output is closed
        known = False
    return max(LEAST, min(MOST, shutil.get_terminal_size((MOST, 24)).columns)) if known else MOST


def wrapped(text: str, first: str = "", rest: str | None = None) -> list[str]:
    """Lines of at most `width()` columns: the first begins with `first`, the others with `rest` (as wide, unless given)."""
    indent = " " * len(first) if rest is None else rest
    return textwrap.wrap(
        text,
        width(),
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
