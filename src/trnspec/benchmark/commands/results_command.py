"""`results`: list the runs below a folder as a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from trnspec.benchmark.commands.arm_options import folder, json_option
from trnspec.benchmark.errors import ResultsError
from trnspec.core import screen
from trnspec.core.checkout import ROOT
from trnspec.core.words import count, listed

if TYPE_CHECKING:
    from trnspec.benchmark.analyse.listed_runs import ListedRun

_HOW = "`./trnspec demo` makes a run in three minutes, `./trnspec measure` measures endpoints"
_MAX_NAME_CHARS = 24
"""The maximum characters of a name in the table on the terminal."""


class Column(NamedTuple):
    """One column of the table. Rows without a `key` are always last."""

    option: str
    heading: str
    text: Callable[[ListedRun], str]
    key: Callable[[ListedRun], Any]
    largest_first: bool = False


def _speed_up(row: ListedRun) -> str:
    from trnspec.benchmark.analyse.sentences import interval

    return f"{row.speed_up:.2f}{interval(row.ci_low, row.ci_high)}" if row.speed_up else ""


def _load(row: ListedRun) -> str:
    """Return the load, short enough for a column."""
    return re.sub(r"(.*\d) concurrent requests?", r"concurrency \1", row.load)


def _cost(row: ListedRun) -> str:
    from trnspec.benchmark.analyse.sentences import money

    known = [money(usd).lstrip("$") for usd in (row.usd_before, row.usd_after) if usd is not None]
    return " -> ".join(known) if len(known) == 2 else ""


def _origin(row: ListedRun) -> str:
    return row.provenance if row.complete else f"{row.provenance}, incomplete"


COLUMNS = (
    Column("name", "name", lambda row: row.experiment, lambda row: row.experiment),
    Column("model", "model", lambda row: row.model.rpartition("/")[2], lambda row: row.model),
    Column("load", "load", _load, lambda row: row.load_size),
    Column("speed-up", "speed-up [95 %]", _speed_up, lambda row: row.speed_up, largest_first=True),
    Column("cost", "$/M tokens", _cost, lambda row: row.usd_after),
    Column("date", "date", lambda row: row.started[:10], lambda row: row.started, largest_first=True),
    Column("origin", "origin", _origin, _origin),
    Column("folder", "folder", lambda row: row.folder, lambda row: row.folder),
    Column(
        "engine",
        "engine and hardware",
        lambda row: ", ".join(filter(None, (row.engine, row.hardware))),
        lambda row: f"{row.engine}, {row.hardware}".strip(", ") or None,
    ),
)


def _folder() -> Path:
    here = Path("results")
    return here if here.is_dir() else ROOT / "results"


@click.command()
@folder("[DIR]", "Default: results.", required=False)
@click.option(
    "--sort",
    type=click.Choice([column.option for column in COLUMNS]),
    default="date",
    metavar="COLUMN",
    help=f"One of {', '.join(column.option for column in COLUMNS)} (default: date).",
)
@click.option("--all", is_flag=True, help="Also list unfinished runs and other folders.")
@json_option("Print JSON instead of text.")
def command(folder: Path | None, sort: str, all: bool, json: bool) -> int:
    """List the runs below a folder as a table."""
    folder = folder or _folder()
    found = rows_of(folder)
    column = next(column for column in COLUMNS if column.option == sort)
    known = [row for row in found if column.key(row) is not None]
    known.sort(key=column.key, reverse=column.largest_first)
    found = [*known, *(row for row in found if column.key(row) is None)]
    if json:
        print(dumps({"schema": 1, "runs": [row._asdict() for row in found]}, indent=1))
        return 0
    print("\n".join(_lines(found, everything=all)).rstrip())
    return 0


def rows_of(folder: Path) -> list[ListedRun]:
    """Every folder below `folder`, the newest run first. Raises ResultsError if there is no run, OSError."""
    from trnspec.benchmark.analyse.listed_runs import OTHER, row_of

    if not folder.is_dir():
        why = "is not a folder" if folder.exists() else "does not exist"
        raise ResultsError(f"{folder}: {why}; give the folder of your runs; {_HOW}")
    found = [row_of(path) for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if all(row.kind == OTHER for row in found):
        if row_of(folder).kind != OTHER:
            raise ResultsError(
                f"{folder}: is a run; give the folder that it is in, {folder.resolve().parent}"
            )
        raise ResultsError(f"{folder}: holds no run; {_HOW}")
    return sorted(found, key=lambda row: (row.started, row.folder), reverse=True)


def _lines(found: Sequence[ListedRun], *, everything: bool) -> Iterator[str]:
    rows = [row for row in found if not (row.problem if everything else row.kind)]
    if rows:
        cells = ((column.text(row) or "-" for column in COLUMNS) for row in rows)
        numbered = ([str(number), *row] for number, row in enumerate(cells, start=1))
        yield from _table([["#", *(column.heading for column in COLUMNS)], *numbered])
        yield ""
    others = [row for row in found if row.kind]
    if everything:
        yield from (f"{row.folder}: {row.problem}" for row in others if row.problem)
    elif others:
        kinds = Counter(row.kind for row in others)
        left_out = listed([count(number, kind) for kind, number in kinds.items()])
        yield from screen.wrapped(f"Not listed: {left_out} (--all lists them).")


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns with the width that they need; columns that do not fit into the line continue in a line below."""
    rows = [
        [_cut(cell, _MAX_NAME_CHARS) if 0 < column < 3 else cell for column, cell in enumerate(row)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    below = widths[0] + 2
    lines, room = [[0]], screen.width() - widths[0]
    for column, width in enumerate(widths[1:], start=1):
        if width + 2 > room:
            lines.append([])
            room = screen.width() - below + 2
        lines[-1].append(column)
        room -= width + 2
    for row in rows:
        for number, line in enumerate(lines):
            text = "  ".join(row[column].ljust(widths[column]) for column in line)
            yield _cut(f"{' ' * below if number else ''}{text}".rstrip(), screen.width())


def _cut(text: str, maximum: int) -> str:
    return text if len(text) <= maximum else f"{text[: maximum - 1]}…"
