"""`scripts/review BASE`: what merging this tree does to somebody who deployed BASE, as Markdown."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiment.finding import Misuse, Refusal
from operations.review.markdown import markdown
from operations.review.report import Review, compare
from operations.review.states import check_out, describe
from operations.terminal import escaped

ROOT = Path(__file__).resolve().parent.parent.parent
EPILOG = (
    "Exit codes: 0 nothing that needs a human, 1 something does, 2 wrong usage (BASE is not a commit) or a side that "
    "could not be read (nothing is compared then), 3 git could not be run. Uses no network; local changes count, BASE "
    "is read from git."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print."""
    options = parser().parse_args(arguments)
    with escaped():
        return _carry_out(options)


def _carry_out(options: argparse.Namespace) -> int:
    try:
        review, base = _review(options.base, templates=not options.without_templates)
    except Refusal as error:
        for line in error.lines:
            print(f"review: {line}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    if options.json:
        print(
            json.dumps(
                {"base": base, "needs_human": review.needs_human, **dataclasses.asdict(review)}, indent=1
            )
        )
    else:
        print(markdown(review, base=options.base), end="")
    return 1 if review.needs_human else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="scripts/review", description=__doc__, epilog=EPILOG)
    found.add_argument("base", metavar="BASE", help="commit, branch or tag to compare with, e.g. origin/main")
    found.add_argument(
        "--without-templates",
        action="store_true",
        help="compare experiments and manifests only: faster, but says nothing about AWS and IAM",
    )
    found.add_argument("--json", action="store_true", help="the same for a machine")
    return found


def _review(base: str, *, templates: bool) -> tuple[Review, str]:
    with tempfile.TemporaryDirectory(prefix="review-base-") as folder:
        tree = Path(folder).resolve()
        commit = check_out(base, repository=ROOT, into=tree)
        print(f"review: {commit} against the working tree", file=sys.stderr)
        trees = {base: tree, "this tree": ROOT}
        states = describe(trees, templates=templates)
    refuse_unread({name: state["problems"] for name, state in zip(trees, states, strict=True)})
    return compare(*states), commit


def refuse_unread(problems: Mapping[str, Sequence[str]]) -> None:
    """`Misuse` where a side, BASE first, was not read in full: all that it lacks would look gone, or new."""
    lines = [f"{side}: {problem}" for side, found in problems.items() for problem in found]
    if lines:
        sides = [side for side, found in problems.items() if found]
        or_else = ", or name another BASE" if sides[0] == next(iter(problems)) else ""
        lines.append(
            f"nothing was compared, because {' and '.join(sides)} could not be read in full: fix what stands above{or_else}"
        )
        raise Misuse(*lines)


if __name__ == "__main__":
    sys.exit(main())
