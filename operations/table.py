"""Tables as text, within 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.finding import printable

WIDTH = 100


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as needed; the last one is wrapped."""
    if not rows:
        return ""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings) - 1)]
    room = max(24, WIDTH - sum(widths) - 2 * len(widths))
    lines = []
    for row in (headings, *rows):
        first = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        indent = " " * len(first)
        for number, part in enumerate(_wrapped(row[-1], room)):
            lines.append(f"{first if number == 0 else indent}  {part}".rstrip())
    return "\n".join(lines)


def _wrapped(text: str, room: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, room, break_on_hyphens=False) or [""]
