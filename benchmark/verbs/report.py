"""`report`: make the summary again from the raw records."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmark.verbs import arguments

HELP = "make summary.json again from the raw records, print the table"


def configure(parser: argparse.ArgumentParser) -> None:
    """The folder."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `run --out` wrote")
    arguments.add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Summarise and print."""
    return show(summarised(options.folder), as_json=options.json)


def summarised(folder: Path) -> dict[str, Any]:
    """Make the summary of `folder` and store it there."""
    from benchmark.analyse.summary import summarise, write
    from benchmark.measure import journal

    summary = summarise(journal.read(folder))
    write(summary, folder)
    return summary


def show(summary: dict[str, Any], *, as_json: bool) -> int:
    """Print the summary; 1 where a cell has no answer at all."""
    from benchmark.show.table import render

    print(json.dumps(summary, indent=1) if as_json else render(summary))
    return 0 if all(cell["n"] for cell in summary["cells"]) else 1
