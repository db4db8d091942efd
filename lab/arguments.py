"""What the command lines of the lab share: the experiment as the first argument, whole numbers, paths as people type them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from core.findings import InvalidExperiment, Refusal
from lab.programs import ROOT as ROOT

REFERENCE = ROOT / "experiments" / "qwen3-32b.yaml"


def add_experiment(parser: argparse.ArgumentParser, default: Path) -> None:
    """The experiment file; its earlier option is refused with the new form."""
    parser.add_argument(
        "experiment",
        type=Path,
        nargs="?",
        default=default,
        metavar="EXPERIMENT",
        help=f"the experiment file (default: {shown(default)})",
    )
    parser.add_argument("--experiment", dest="moved", type=_moved, help=argparse.SUPPRESS)


def _moved(text: str) -> str:
    raise argparse.ArgumentTypeError(
        f"the experiment is the first argument now; type {text} without --experiment"
    )


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def shown(path: Path) -> str:
    """As a person types it: relative where they stand in the folder of the checkout."""
    path = path.resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) and Path.cwd() == ROOT else path)


def refused(error: Refusal, *, verb: str, as_json: bool = False) -> int:
    """Print what stopped the command, a line or an object for each problem; the exit code."""
    if as_json:
        print(json.dumps({"problems": error.as_json()}, indent=2))
    else:
        who = "" if isinstance(error, InvalidExperiment) else f"{verb}: "  # those lines begin with the file
        print("\n".join(f"{who}{line}" for line in error.lines), file=sys.stderr)
    return error.exit_code
