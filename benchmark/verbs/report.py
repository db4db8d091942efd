"""`report`: make the summary and everything that people and other tools read, again from the raw records."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.verbs import arguments

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun

HELP = "make summary, page, CSV and llmperf's files again from the raw records, print the table"


def configure(parser: argparse.ArgumentParser) -> None:
    """The folder."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `run --out` wrote")
    arguments.add_declared(parser.add_argument_group("arms (what `run` was not told)"))
    arguments.add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Summarise, write, print. Without the packages of the page, everything but the page."""
    raw = arguments.read_declared(options)
    summary = summarised(options.folder, raw)
    written = write_files(raw, summary, options.folder)
    code = show(summary, as_json=options.json)
    sys.stdout.flush()
    print(f"{options.folder}: {', '.join(written)}", file=sys.stderr)
    return code


def summarised(folder: Path, raw: RawRun | None = None) -> dict[str, Any]:
    """Make the summary of `folder`, whose journal is `raw` where it was read already, and store it there."""
    from benchmark.analyse.beside import beside
    from benchmark.analyse.summary import summarise, write
    from benchmark.measure import journal

    summary = summarise(raw or journal.read(folder))
    arms = [arm["name"] for arm in summary["run"]["arms"]]
    summary |= beside(folder, arms=arms, baseline=summary["run"]["baseline"])
    write(summary, folder)
    return summary


def write_files(raw: RawRun, summary: dict[str, Any], folder: Path) -> list[str]:
    """What goes beside the summary; returns what is there now, by name. Raises StorageError."""
    from benchmark.show import csv_files, llmperf_files, page
    from benchmark.show import page as replay
    from benchmark.writing import write_whole

    written = [replay.write(raw, folder).name]
    written += [path.name for path in csv_files.write(raw, summary, folder)]
    written.append(f"{llmperf_files.FOLDER}/ ({len(llmperf_files.write(raw, folder))} files)")
    if lacking := page.missing():
        print(
            f"{page.FILE_NAME}: not written, {' and '.join(lacking)} not installed; pip install {' '.join(lacking)}",
            file=sys.stderr,
        )
    else:
        written.append(write_whole(folder / page.FILE_NAME, page.render(raw, summary)).name)
    return written


def show(summary: dict[str, Any], *, as_json: bool) -> int:
    """Print the summary; 1 where a cell has no answer at all."""
    from benchmark.show.terminal import render

    print(json.dumps(summary, indent=1) if as_json else render(summary))
    return 0 if all(cell["n"] for cell in summary["cells"]) else 1
