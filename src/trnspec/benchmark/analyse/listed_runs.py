"""The rows of the list of runs, one for each folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from trnspec.benchmark.analyse.decision import at_loads
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.analyse.summary import FILE_NAME
from trnspec.benchmark.measure import journal
from trnspec.core.files import UnreadableFile, model_in
from trnspec.core.safe_output import one_line

UNFINISHED, UNREADABLE, OTHER = "unfinished run", "unreadable run", "other folder"


class ListedRun(NamedTuple):
    """A folder that may hold a run. All texts are safe to print."""

    folder: str
    id: str = ""
    started: str = ""
    experiment: str = ""
    """The name of the run."""
    model: str = ""
    engine: str = ""
    hardware: str = ""
    load: str = ""
    """The load of the speed-up and the dollars."""
    load_size: float | None = None
    speed_up: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    usd_before: float | None = None
    """Dollars per million output tokens of the baseline."""
    usd_after: float | None = None
    """Dollars per million output tokens of the arm of the speed-up."""
    provenance: str = ""
    complete: bool = False
    answer: str = ""
    report: bool = False
    """Whether report.html is there."""
    problem: str = ""
    """The reason why the folder could not be read; empty for a run."""
    kind: str = ""
    """The kind of a folder without a finished run."""
    arms: tuple[str, ...] = ()


def row_of(path: Path) -> ListedRun:
    row = ListedRun(folder=one_line(path.name))
    again = f"`./trnspec report {one_line(str(path))}` makes it from the records"
    try:
        if (path / FILE_NAME).exists():
            return row._replace(**_known(path))
        if journal.exists(path):
            return row._replace(problem=f"no {FILE_NAME}; {again}", kind=UNFINISHED)
        return row._replace(problem="not a run", kind=OTHER)
    except UnreadableFile as error:
        return row._replace(problem=f"{FILE_NAME} {one_line(str(error))}; {again}", kind=UNREADABLE)
    except OSError as error:
        return row._replace(problem=f"cannot be read: {error.strerror}", kind=UNREADABLE)


def _known(path: Path) -> dict[str, Any]:
    """Raises OSError."""
    result = model_in(path / FILE_NAME, Result)
    run, hardware = result.run, result.hardware.values()
    texts = {name: getattr(run, name) for name in ("id", "started", "experiment", "provenance", "model")}
    texts |= {"engine": result.served_by, "answer": result.sentence}
    texts["hardware"] = " and ".join(
        dict.fromkeys(f"{own.chips} chips of {own.instance}" for own in hardware)
    )
    known: dict[str, Any] = {name: one_line(text, 2000) for name, text in texts.items()} | {
        "complete": run.complete,
        "report": (path / "report.html").is_file(),
        "kind": "" if run.complete else UNFINISHED,
        "arms": tuple(one_line(arm.name) for arm in run.arms),
    }
    for at in at_loads(result)[result.here :][:1]:
        known |= {"load": at.load.in_words, "load_size": at.load.size}
        if at.mix:
            names = {"speed_up": "ratio", "ci_low": "ci_low", "ci_high": "ci_high"}
            known |= {name: getattr(at.mix, of) for name, of in names.items()}
            known |= {"usd_before": at.mix.usd_before, "usd_after": at.mix.usd_after}
    return known
