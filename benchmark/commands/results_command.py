"""`results`: the runs below a folder, the newest first, each with its answer; and a page that links their reports."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from benchmark.commands import option_types
from core.screen import wrapped

HELP = "list the runs below a folder, and write a page that links their reports"
PAGE = "index.html"
_CHECKOUT = Path(__file__).resolve().parents[2]
_HOW = "`./trnspec demo` makes a run in a minute, `./trnspec benchmark run` measures endpoints"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A folder that may hold a run. All texts are safe to print."""

    folder: str
    link: str
    """The folder as a part of an address."""
    id: str = ""
    started: str = ""
    experiment: str = ""
    provenance: str = ""
    complete: bool = False
    answer: str = ""
    report: bool = False
    """Whether report.html is there."""
    problem: str = ""
    """Why nothing else is known; empty for a run."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Where runs are."""
    here = Path("results")
    default = here if here.is_dir() else _CHECKOUT / "results"
    parser.add_argument(
        "folder", type=Path, nargs="?", default=default, metavar="DIR", help="default: results"
    )
    option_types.add_json(parser, "JSON instead of text")


def execute(options: argparse.Namespace) -> int:
    """List, and write the page where there is a run. Raises StorageError."""
    folder: Path = options.folder
    found = runs(folder)
    page = _write(folder, found) if found else None
    if options.json:
        told = {"schema": 1, "page": page and str(page), "runs": [asdict(run) for run in found]}
        print(json.dumps(told, indent=1))
    elif found:
        print("\n".join(_lines(folder, found)))
        if page:
            print(f"\nAll of them on one page: {page}")
    else:
        print(f"{folder}: no results yet; {_HOW}")
    return 0


def runs(folder: Path) -> list[Run]:
    """Every folder below `folder`; runs first, the newest at the top. Raises OSError."""
    if not folder.is_dir():
        return []
    found = [_run(path) for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return sorted(found, key=lambda run: (run.started, run.folder), reverse=True)


def _run(path: Path) -> Run:
    from benchmark.analyse.summary import FILE_NAME
    from benchmark.file_access import json_of, text_of
    from benchmark.measure import journal
    from benchmark.measure.client import one_line

    name, link = one_line(path.name), quote(os.fsencode(path.name))
    again = f"`./trnspec benchmark report {one_line(str(path))}` makes it from the records"
    try:
        if not (path / FILE_NAME).is_file():
            has = journal.exists(path)
            return Run(folder=name, link=link, problem=f"no {FILE_NAME}; {again}" if has else "not a run")
        summary = json_of(text_of(path / FILE_NAME))
        run, answer = summary["run"], one_line(str(summary["decision"]["sentence"]), 2000)
        return Run(
            folder=name,
            link=link,
            **{key: one_line(str(run[key])) for key in ("id", "started", "experiment", "provenance")},
            complete=run["complete"] is True,
            answer=answer,
            report=(path / "report.html").is_file(),
        )
    except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = one_line(f"{type(error).__name__}: {error}", 100)
        return Run(folder=name, link=link, problem=f"{FILE_NAME} cannot be read ({why}); {again}")


def _lines(folder: Path, found: list[Run]) -> Iterator[str]:
    for run in found:
        if run.problem:
            yield f"{run.folder}: {run.problem}"
            continue
        state = "" if run.complete else ", incomplete"
        yield f"{run.started[:16].replace('T', ' ')}  {run.experiment}, {run.provenance}{state}, run {run.id}"
        yield from wrapped(run.answer, "    ")
        yield f"    {folder / run.folder / ('report.html' if run.report else 'summary.json')}"


def _write(folder: Path, found: list[Run]) -> Path | None:
    """The page; without the package that it needs, nothing but a line that says so. Raises StorageError."""
    from benchmark.file_access import write_whole
    from benchmark.show import page

    if lacking := page.missing():
        print(f"{PAGE}: not written; pip install {lacking[0]}", file=sys.stderr)
        return None
    return write_whole(folder / PAGE, page.filled("results.html", runs=found))
