"""A review in Markdown, for the description of a pull request: findings first, diffs folded at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from core.words import count
from operations.review.effects import Diff, Review

MOST_LINES = 400
"""Of one diff; GitHub takes 65,536 characters in a comment."""
MOST_CHARACTERS = 60_000
_REASONS = {
    "arms": "experiments added",
    "cost": "cost",
    "fairness": "fairness of the comparison",
    "comparability": "comparability with earlier runs",
    "apply": "objects that applying does not settle",
    "cluster": "cluster",
    "delivery": "the pipeline itself",
}
"""Why a note of that kind needs a human."""


def markdown(review: Review, *, base: str) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # it is not HTML: `cell` and `code` keep a table whole
    )
    environment.filters |= {"cell": _cell, "code": _code}
    page = environment.get_template("review.md.jinja").render(
        review=review, base=base, reasons=[*_reasons(review)], most_lines=MOST_LINES
    )
    body = page.rstrip() + "\n"
    return body + _folded(review.diffs, room=MOST_CHARACTERS - len(body))


def _reasons(review: Review) -> Iterator[str]:
    rows = [row for experiment in review.experiments for row in experiment.arms]
    compiling = sum(row.compiles is not None for row in rows)
    restarting = sum(bool(row.restarts_for) for row in rows)
    removed = sum(row.removed for row in rows)
    for number, what in ((compiling, "to compile"), (restarting, "restarted"), (removed, "removed")):
        if number:
            yield f"{count(number, 'arm')} {what}"
    if not compiling and not restarting and any(row.reuses for row in rows):
        yield "an arm takes another artifact"
    kinds = {note.kind for one in review.experiments for note in one.notes if note.needs_human}
    yield from (text for kind, text in _REASONS.items() if kind in kinds)
    if review.granted or review.withdrawn:
        yield "access"


def _folded(diffs: Sequence[Diff], *, room: int) -> str:
    text = "\n### Diffs\n" if diffs else ""
    for number, diff in enumerate(diffs):
        lines = diff.text.splitlines()
        shown = lines[:MOST_LINES]
        if len(lines) > MOST_LINES:
            shown.append(f"... {count(len(lines) - MOST_LINES, 'more line')}")
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", diff.text)), default=0))
        summary = f"<summary>{diff.title}: {count(len(lines), 'line')}</summary>"
        folded = "\n".join(["<details>", summary, "", f"{fence}diff", *shown, fence, "", "</details>", ""])
        if len(text) + len(folded) > room:
            left = ", ".join(diff.title for diff in diffs[number:])
            return f"{text}\nNot shown, for their length: {left}. Run `./trnspec review` for them.\n"
        text += folded
    return text


def _cell(text: str) -> str:
    """What may stand in a table: somebody's prompt must not break out of it."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"
