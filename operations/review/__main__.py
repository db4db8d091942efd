"""`scripts/review BASE`: what merging this tree does to somebody who deployed BASE, as Markdown."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from operations.errors import OperationsError
from operations.review.markdown import markdown
from operations.review.report import Review, compare
from operations.review.states import check_out, describe

ROOT = Path(__file__).resolve().parent.parent.parent
EPILOG = (
    "Exit codes: 0 nothing that needs a human, 1 something does, 2 wrong usage (BASE is no commit), 3 git could not "
    "be run. Uses no network; local changes count, BASE is read from git."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print."""
    options = parser().parse_args(arguments)
    try:
        review, base = _review(options.base, templates=not options.without_templates)
    except OperationsError as error:
        print(f"review: {error}", file=sys.stderr)
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
        states = describe({base: tree, "this tree": ROOT}, templates=templates)
    return compare(*states), commit


if __name__ == "__main__":
    sys.exit(main())
