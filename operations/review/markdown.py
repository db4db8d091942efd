"""A review in Markdown, for the description of a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from core.words import count
from operations.review.effects import ArmReview, Diff, ExperimentReview, Review

MOST_GRANTS = 12
"""That are shown unfolded."""
MOST_CAUSES = 3
"""Of a restart, rendered fields that are named in its cell."""
MOST_LINES = 400
"""Of one diff; GitHub takes 65,536 characters in a comment."""
MOST_CHARACTERS = 60_000
MOST_QUIET = 3
"""Arms to which nothing happens that have rows of their own."""
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
    """Findings first, diffs folded at the end."""
    lines = [f"## What this changes against `{base}`", "", _verdict(review), ""]
    for experiment in review.experiments:
        lines += _experiment(experiment)
    if review.granted or review.withdrawn:
        lines.append("### Access (IAM, network, cluster)")
        lines += [*_access("**new**", review.granted), *_access("gone", review.withdrawn), ""]
    body = "\n".join(lines).rstrip() + "\n"
    return body + _folded(review.diffs, room=MOST_CHARACTERS - len(body))


def _verdict(review: Review) -> str:
    if review.needs_human:
        return f"**Needs a human**: {', '.join(_reasons(review))}."
    if review.diffs or review.experiments:
        return "Nothing here compiles, restarts, costs, opens access or makes a comparison unfair."
    return "Nothing changes in what is deployed."


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


def _experiment(experiment: ExperimentReview) -> Iterator[str]:
    yield f"### {experiment.name}"
    yield ""
    if experiment.arms:
        yield "| arm | what changes | recompiles | restarts |"
        yield "|---|---|---|---|"
        quiet = [row for row in experiment.arms if not row.changes and not row.needs_human]
        fold = len(quiet) > MOST_QUIET
        yield from (_row(row) for row in experiment.arms if not fold or row not in quiet)
        if fold:
            yield f"| {count(len(quiet), 'other arm')} | nothing | no | no |"
        yield ""
    for note in experiment.notes:
        strength = f"**{note.kind}**" if note.needs_human else note.kind
        yield f"- {strength}: {_cell(note.text)}"
    if experiment.notes:
        yield ""


def _row(row: ArmReview) -> str:
    said = "<br>".join(map(_cell, row.changes)) or "nothing"
    compiles = f"no, the artifact of {row.reuses} fits" if row.reuses else "no"
    if row.compiles:
        compiles = f"**yes**, key {row.compiles}"
    restarts = "no"
    if row.restarts_for:
        more = len(row.restarts_for) - MOST_CAUSES
        causes = ", ".join(f"`{_cell(_code(path))}`" for path in row.restarts_for[:MOST_CAUSES])
        restarts = f"**yes**: {causes}" + (f" and {more} more" if more > 0 else "")
    return f"| `{row.name}` | {said} | {compiles} | {restarts} |"


def _access(what: str, grants: tuple[str, ...]) -> Iterator[str]:
    """A new experiment brings a hundred: who has to read those opens the fold."""
    lines = [f"- {what} `{_code(grant)}`" for grant in grants]
    if len(lines) <= MOST_GRANTS:
        yield from lines
        return
    yield f"<details><summary>{len(lines)} x {what.strip('*')}</summary>"
    yield ""
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield f"- ... {len(lines) - MOST_LINES} more: `./trnspec review --json` has all"
    yield ""
    yield "</details>"


def _folded(diffs: tuple[Diff, ...], *, room: int) -> str:
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
    return text.replace("`", "'")
