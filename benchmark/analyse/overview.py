"""A run in one row: what a list of runs shows of `summary.json`, and which runs can be compared."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from benchmark.analyse.summary import FILE_NAME
from benchmark.measure import journal
from benchmark.measure.client import one_line
from benchmark.plan import Load
from core.reading import text_of

_Text = Annotated[str, AfterValidator(lambda text: one_line(text, 2000))]
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
UNFINISHED, UNREADABLE, OTHER = "unfinished run", "unreadable run", "other folder"


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Load(_Part):
    concurrency: int | None
    rate_per_s: _Number

    @property
    def as_planned(self) -> Load:
        return Load(concurrency=self.concurrency, rate_per_s=self.rate_per_s)


class _Mix(_Part):
    ratio: _Number
    low: _Number
    high: _Number
    usd_before: _Number
    usd_after: _Number


class _AtLoad(_Part):
    load: _Load
    mix: _Mix | None


class _Decision(_Part):
    sentence: _Text
    here: Annotated[int, Field(ge=0)] = 0
    loads: list[_AtLoad] = []


class _Arm(_Part):
    name: _Text


class _Hardware(_Part):
    instance: _Text
    chips: int


class _Run(_Part):
    id: _Text
    started: _Text
    experiment: _Text
    provenance: _Text
    complete: bool
    model: _Text = ""
    arms: list[_Arm] = []
    plan_sha256: str = ""
    prompts_sha256: str = ""


class _Summary(_Part):
    run: _Run
    decision: _Decision
    cells: list[_Load] = []
    served_by: _Text = ""
    hardware: dict[str, _Hardware] = {}


class Row(NamedTuple):
    """A folder that may hold a run. All texts are safe to print."""

    folder: str
    link: str
    """The folder as a part of an address."""
    id: str = ""
    started: str = ""
    experiment: str = ""
    """The run's name."""
    model: str = ""
    engine: str = ""
    hardware: str = ""
    load: str = ""
    """The one that the speed-up and the dollars are of."""
    load_size: float | None = None
    speed_up: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    usd_before: float | None = None
    """Dollars per million output tokens of the baseline."""
    usd_after: float | None = None
    """The same of the arm that the speed-up is of."""
    provenance: str = ""
    complete: bool = False
    answer: str = ""
    report: bool = False
    """Whether report.html is there."""
    problem: str = ""
    """Why nothing else is known; empty for a run."""
    kind: str = ""
    """What a folder is that holds no finished run."""
    asked: str = ""
    """Model and prompts: runs where they differ cannot be compared."""
    arms: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()

    def comparable(self, other: Row) -> bool:
        """Whether `benchmark compare` takes the two."""
        if not self.asked or self.asked != other.asked:
            return False
        return bool(set(self.arms) & set(other.arms) and set(self.loads) & set(other.loads))


def row_of(path: Path) -> Row:
    """What is known of the folder at `path`."""
    row = Row(folder=one_line(path.name), link=quote(os.fsencode(path.name)))
    again = f"`./trnspec benchmark report {one_line(str(path))}` makes it from the records"
    try:
        if (path / FILE_NAME).is_file():
            return row._replace(**_known(path))
        if journal.exists(path):
            return row._replace(problem=f"no {FILE_NAME}; {again}", kind=UNFINISHED)
        return row._replace(problem="not a run", kind=OTHER)
    except (OSError, ValueError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        problem = f"{FILE_NAME} cannot be read ({one_line(why, 100)}); {again}"
        return row._replace(problem=problem, kind=UNREADABLE)


def _known(path: Path) -> dict[str, Any]:
    """Raises OSError, ValueError."""
    summary = _Summary.model_validate_json(text_of(path / FILE_NAME))
    run, decision = summary.run, summary.decision
    at = next(iter(decision.loads[decision.here :]), None)
    mix, load = at and at.mix, at.load.as_planned if at else None
    prompts = run.prompts_sha256 or run.plan_sha256
    hardware = dict.fromkeys(f"{one.chips} chips of {one.instance}" for one in summary.hardware.values())
    known = {
        **run.model_dump(include={"id", "started", "experiment", "provenance", "complete", "model"}),
        "engine": summary.served_by,
        "hardware": " and ".join(hardware),
        "answer": decision.sentence,
        "report": (path / "report.html").is_file(),
        "kind": "" if run.complete else UNFINISHED,
        "asked": f"{run.model} {prompts}" if run.model and prompts else "",
        "arms": tuple(arm.name for arm in run.arms),
        "loads": tuple(dict.fromkeys(str(cell.as_planned) for cell in summary.cells)),
    }
    if load:
        known |= {"load": load.in_words, "load_size": load.rate_per_s or load.concurrency}
    if mix:
        known |= {"speed_up": mix.ratio, "ci_low": mix.low, "ci_high": mix.high}
        known |= {"usd_before": mix.usd_before, "usd_after": mix.usd_after}
    return known


def newest_pair(rows: list[Row]) -> tuple[Row, Row] | None:
    """The two newest runs that can be compared, the older first."""
    newest = sorted(rows, key=lambda row: row.started, reverse=True)
    return next(((old, new) for new, old in combinations(newest, 2) if new.comparable(old)), None)
