"""A review in Markdown, for the description of a pull request."""

from __future__ import annotations

from collections.abc import Iterator

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


def markdown(review: Review, *, base: str) -> str:
    """Findings first, diffs folded at the end."""
    body = "\n".join(_findings(review, base)).rstrip() + "\n"
    return body + _folded(review.diffs, room=MOST_CHARACTERS - len(body))


def _findings(review: Review, base: str) -> Iterator[str]:
    yield f"## What this changes against `{base}`"
    yield ""
    yield _verdict(review)
    yield ""
    for experiment in review.experiments:
        yield from _experiment(experiment)
    if review.granted or review.withdrawn:
        yield "### Access (IAM, network, cluster)"
        yield from _access("**new**", review.granted)
        yield from _access("gone", review.withdrawn)
        yield ""


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
        yield f"- ... {len(lines) - MOST_LINES} more: `scripts/review --json` has all"
    yield ""
    yield "</details>"


def _verdict(review: Review) -> str:
    if review.needs_human:
        return f"**Needs a human**: {', '.join(_reasons(review))}."
    if review.diffs or review.experiments:
        return "Nothing here compiles, restarts, costs, opens access or makes a comparison unfair."
    return "Nothing changes in what is deployed."


def _reasons(review: Review) -> Iterator[str]:
    rows = [row for experiment in review.experiments for row in experiment.arms]
    notes = [note for experiment in review.experiments for note in experiment.notes if note.needs_human]
    compiling, restarting = ([row for row in rows if row.compiles], [row for row in rows if row.restarts_for])
    if compiling:
        yield f"{len(compiling)} arm{'s' * (len(compiling) > 1)} to compile"
    if restarting:
        yield f"{len(restarting)} arm{'s' * (len(restarting) > 1)} restarted"
    if removed := [row for row in rows if row.removed]:
        yield f"{len(removed)} arm{'s' * (len(removed) > 1)} removed"
    if not compiling and not restarting and any(row.reuses for row in rows):
        yield "an arm takes another artifact"
    words = {
        "arms": "experiments added",
        "cost": "cost",
        "fairness": "fairness of the comparison",
        "comparability": "comparability with earlier runs",
        "apply": "objects that applying does not settle",
        "cluster": "cluster",
        "delivery": "the pipeline itself",
    }
    kinds = {note.kind for note in notes}
    yield from (text for kind, text in words.items() if kind in kinds)
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
            yield f"| {len(quiet)} other arms | nothing | no | no |"
        yield ""
    for note in experiment.notes:
        strength = f"**{note.kind}**" if note.needs_human else note.kind
        yield f"- {strength}: {_cell(note.text)}"
    if experiment.notes:
        yield ""


def _row(row: ArmReview) -> str:
    said = "<br>".join(_cell(text) for text in row.changes) or "nothing"
    if row.compiles:
        compiles = f"**yes**, key {row.compiles}"
    elif row.reuses:
        compiles = f"no, the artifact of {row.reuses} fits"
    else:
        compiles = "no"
    return f"| `{row.name}` | {said} | {compiles} | {_restarts(row)} |"


def _restarts(row: ArmReview) -> str:
    if not row.restarts_for:
        return "no"
    more = len(row.restarts_for) - MOST_CAUSES
    causes = ", ".join(f"`{_cell(_code(path))}`" for path in row.restarts_for[:MOST_CAUSES])
    return f"**yes**: {causes}" + (f" and {more} more" if more > 0 else "")


def _folded(diffs: tuple[Diff, ...], *, room: int) -> str:
    if not diffs:
        return ""
    text = "\n### Diffs\n"
    for number, diff in enumerate(diffs):
        lines = diff.text.splitlines()
        cut = [f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
        fence = "`" * max(3, 1 + _longest_run(diff.text))
        folded = "\n".join(
            [
                "<details>",
                f"<summary>{diff.title}: {len(lines)} lines</summary>",
                "",
                f"{fence}diff",
                *lines[:MOST_LINES],
                *cut,
                fence,
                "",
                "</details>",
                "",
            ]
        )
        if len(text) + len(folded) > room:
            left = ", ".join(diff.title for diff in diffs[number:])
            return f"{text}\nNot shown, for their length: {left}. Run `scripts/review` for them.\n"
        text += folded
    return text


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def _cell(text: str) -> str:
    """What may stand in a table: somebody's prompt must not break out of it."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _code(text: str) -> str:
    return text.replace("`", "'")
