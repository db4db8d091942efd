"""`review`: the effects of merging this tree on a deployment of BASE, as Markdown."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from jinja2 import Environment, FileSystemLoader

from trnspec.core.checkout import ROOT
from trnspec.core.console import print_json, progress, warn
from trnspec.core.findings import Misuse, Outside
from trnspec.core.words import count
from trnspec.operations.options import json_option
from trnspec.operations.review.effects import Diff, Review, compare

_SNAPSHOT = "src/trnspec/operations/review/snapshot.py"
"""This path must not change: a commit that moves the file cannot be compared with earlier states."""
_PARTS = ("experiments", "objects", "templates", "delivery", "problems")
_OF_AN_EXPERIMENT = ("facts", "prompts", "arms", "cost", "undeclared")
MAX_LINES = 400
"""Maximum lines of one diff; GitHub accepts 65,536 characters in a comment."""
MAX_CHARACTERS = 60_000
_REASONS = {
    "arms": "experiments added",
    "cost": "cost",
    "fairness": "fairness of the comparison",
    "comparability": "comparability with earlier runs",
    "apply": "objects that applying does not settle",
    "cluster": "cluster",
    "delivery": "the pipeline itself",
}
"""Why a note of that kind needs a person."""


@click.command()
@click.argument("base", metavar="BASE")
@click.option(
    "--without-templates",
    is_flag=True,
    help="Compare experiments and manifests only: faster, but says nothing about AWS and IAM.",
)
@json_option
def command(base: str, without_templates: bool, as_json: bool) -> int:
    """Say in Markdown what merging this tree does to what was deployed from BASE: a commit, branch or tag, for example
    origin/main.

    Uses no network; local changes count, BASE is read from git. Experiment files that git does not track are named and
    left out. Exit 0 when nothing needs a human, 1 when something does, 2 when BASE is not a commit or a side cannot be
    read (nothing is compared then), 3 when git cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="review-base-") as folder:
        tree = Path(folder).resolve()
        commit = _check_out(base, tree)
        warn(f"{commit} against the working tree")
        names = git(ROOT, "ls-files", "--others", "-z", "--", ":(glob)experiments/*.yaml") or b""
        untracked = sorted(os.fsdecode(names).split("\0")[:-1])
        for file in untracked:
            warn(f"{file}: not compared, because git does not track it; git add it to compare it")
        trees = {base: tree, "this tree": ROOT}
        states = _snapshots(trees, templates=not without_templates, left_out=untracked)
    _refuse_unread({name: state["problems"] for name, state in zip(trees, states, strict=True)})
    review = compare(*states)
    if as_json:
        about = {"base": commit, "needs_human": review.needs_human, "untracked": untracked}
        print_json({**about, **dataclasses.asdict(review)})
    else:
        print(markdown(review, base=base), end="")
    return 1 if review.needs_human else 0


def _check_out(base: str, into: Path) -> str:
    """Write the files of the commit `base` into a folder, and return its short hash."""
    commit = git(ROOT, "rev-parse", "--verify", "--quiet", "--short", f"{base}^{{commit}}")
    if commit is None:
        remedy = "fetch it (git fetch origin), or name another, e.g. origin/main"
        raise Misuse(f"{base}: not a commit of this repository; {remedy}")
    name = commit.decode().strip()
    # git itself writes the files, none outside of `into`. It has an index of its own, so that neither what is staged nor a
    # sparse checkout nor a hook changes them.
    files = git(ROOT, "rev-parse", "--verify", "--quiet", f"{name}:./") or b""
    update = ("read-tree", "--no-sparse-checkout", "--reset", "-u", files.decode().strip())
    if git(ROOT, f"--work-tree={into}", *update, index=into / ".review-index") is None:
        remedy = "fetch them (git fetch --unshallow), then run this again"
        raise Misuse(f"{base}: git cannot read its files; {remedy}")
    return name


def git(folder: Path, *arguments: str, index: Path | None = None) -> bytes | None:
    """Return the output of git in a folder, or nothing if it fails. Raises `Outside` if git cannot be run."""
    env = {**os.environ, "GIT_INDEX_FILE": str(index)} if index else None
    command = ["git", "-C", str(folder), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, check=False, env=env)
    except OSError as error:
        raise Outside(f"git: cannot be run ({error.strerror}); install git") from None
    return None if ended.returncode else ended.stdout


def _snapshots(
    trees: Mapping[str, Path], *, templates: bool, left_out: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the snapshots of trees by name. Each is made by the tree's own `snapshot.py`, in parallel processes: most of the time is
    starting."""
    running: list[subprocess.Popen[str]] = []
    for name, tree in trees.items():
        if not (tree / _SNAPSHOT).is_file():
            why = f"has no {_SNAPSHOT}, by which a state describes itself"
            raise Misuse(f"{name}: {why}; compare with a later commit")
    for tree in trees.values():
        # -P: the folder of the program must not be on the path
        command = [sys.executable, "-P", str(tree / _SNAPSHOT), str(tree)]
        command += ["--templates"] if templates else []
        command += [f"--without={file}" for file in left_out if tree == ROOT]  # BASE has what git tracks
        env = {
            **os.environ,
            "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, cwd=tree, env=env, stdout=pipe, stderr=pipe, text=True))
    with progress(f"describing {' and '.join(trees)}", len(running)) as done:
        ended = [(process.communicate(), done(steps=1)) for process in running]
    return [
        _state(name, *output, failed=process.returncode != 0)
        for name, process, (output, _) in zip(trees, running, ended, strict=True)
    ]


def _state(name: str, out: str, err: str, *, failed: bool) -> dict[str, Any]:
    if failed:
        last = (err.strip().splitlines() or ["it said nothing"])[-1]
        why = f"its code does not run with the packages installed here ({last})"
        raise Misuse(f"{name}: {why}; run scripts/setup, or compare with a later commit")
    state: dict[str, Any] = json.loads(out)
    experiments = state.get("experiments", {}).values()
    missing = [part for part in _PARTS if part not in state]
    missing += [part for part in _OF_AN_EXPERIMENT if any(part not in one for one in experiments)]
    if missing:
        why = f"its {_SNAPSHOT} does not report {', '.join(missing)}"
        raise Misuse(f"{name}: {why}; compare with a later commit, or rebase this tree if {name} is newer")
    return state


def _refuse_unread(problems: Mapping[str, Sequence[str]]) -> None:
    """Return what was not read on one side, BASE first: missing parts would look removed, or new."""
    if sides := [side for side, those in problems.items() if those]:
        lines = [f"{side}: {problem}" for side in sides for problem in problems[side]]
        or_else = ", or name another BASE" if sides[0] == next(iter(problems)) else ""
        why = f"{' and '.join(sides)} could not be read in full"
        raise Misuse(*lines, f"nothing was compared, because {why}: fix what is named above{or_else}")


def markdown(review: Review, *, base: str) -> str:
    """Return the page: findings first, folded diffs at the end."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # it is not HTML: `cell` and `code` keep a table whole
    )
    filters: dict[str, Any] = environment.filters
    filters |= {"cell": _cell, "code": lambda text: f"`{text.replace('`', chr(39))}`"}
    page = environment.get_template("review.md.jinja").render(
        review=review, base=base, reasons=[*_reasons(review)], most_lines=MAX_LINES
    )
    body = page.rstrip() + "\n"
    return body + _folded(review.diffs, room=MAX_CHARACTERS - len(body))


def _reasons(review: Review) -> Iterator[str]:
    rows = [row for experiment in review.experiments for row in experiment.arms]
    counted = {
        "to compile": sum(row.compiles is not None for row in rows),
        "restarted": sum(bool(row.restarts_for) for row in rows),
        "removed": sum(row.removed for row in rows),
        "with another artifact": sum(bool(row.reuses) for row in rows),
    }
    yield from (f"{count(number, 'arm')} {what}" for what, number in counted.items() if number)
    kinds = {note.kind for one in review.experiments for note in one.notes if note.needs_human}
    yield from (text for kind, text in _REASONS.items() if kind in kinds)
    if review.granted or review.withdrawn:
        yield "access"


def _folded(diffs: Sequence[Diff], *, room: int) -> str:
    text = "\n### Diffs\n" if diffs else ""
    for number, diff in enumerate(diffs):
        lines = diff.text.splitlines()
        shown = lines[:MAX_LINES]
        if len(lines) > MAX_LINES:
            shown.append(f"... {count(len(lines) - MAX_LINES, 'more line')}")
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", diff.text)), default=0))
        summary = f"<summary>{diff.title}: {count(len(lines), 'line')}</summary>"
        folded = "\n".join(["<details>", summary, "", f"{fence}diff", *shown, fence, "", "</details>", ""])
        if len(text) + len(folded) > room:
            left = ", ".join(diff.title for diff in diffs[number:])
            return f"{text}\nNot shown, for their length: {left}. Run `./trnspec review` for them.\n"
        text += folded
    return text


def _cell(text: str) -> str:
    """Return text for a table; a prompt must not break the table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
