"""What people read fits their terminal: no line is wider, and no table loses a value."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmark.records import store
from tests.benchmark.show.runs import all_runs
from tests.conftest import REFERENCE, ROOT
from trnspec.benchmark.__main__ import main as benchmark
from trnspec.core.screen import table, wrapped
from trnspec.experiment import load
from trnspec.experiment.__main__ import main as experiment
from trnspec.experiment.cost import run_hours
from trnspec.experiment.run_price import file_prices, price_text
from trnspec.operations import demo_command as demo
from trnspec.operations.__main__ import main as operations

_MORE = [pytest.param(columns, marks=pytest.mark.slow) for columns in (80, 100)]
WIDTHS = pytest.mark.parametrize("columns", [60, *_MORE])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("reference", "sweep", "long names", "failures"):
        store(all_runs()[name], folder / name.replace(" ", "-"))
    for name in ("reference", "sweep"):
        assert benchmark(["report", str(folder / name)]) == 0
    return folder


def narrowest(text: str) -> int:
    """The columns that a text needs; a path, an address or a command to copy stays on its line."""
    copied = re.compile(r"Report |\./trnspec |\S\.\w+/\S")
    return max(len(line) for line in text.splitlines() if not copied.search(line))


@WIDTHS
@pytest.mark.parametrize("file", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_check_fits(
    file: Path, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert experiment(["check", str(file.relative_to(ROOT))]) == 0
    assert narrowest(capsys.readouterr().out) <= columns


@WIDTHS
@pytest.mark.parametrize(
    "words",
    [
        "benchmark report reference",
        "benchmark report reference --all",
        "benchmark report sweep",
        "benchmark report long-names --all",
        "benchmark report failures",
        "benchmark gate reference --baseline reference",
        "benchmark results .",
        "benchmark run --help",
        "operations forecast --all",
        "operations --help",
        "operations promote --help",
    ],
)
def test_a_verb_fits(
    words: str,
    columns: int,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.setenv("COLUMNS", str(columns))
    room, *rest = words.split()
    mains: dict[str, Any] = {"benchmark": benchmark, "experiment": experiment, "operations": operations}
    with suppress(SystemExit):  # --help
        assert mains[room](rest) in (0, 1)
    assert 20 < narrowest(capsys.readouterr().out) <= columns


@WIDTHS
def test_the_answer_of_a_demonstration_fits(
    columns: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.benchmark.records import result_of

    monkeypatch.setenv("COLUMNS", str(columns))
    hours = run_hours(load(REFERENCE))
    found: Any = SimpleNamespace(result=result_of(all_runs()["reference"]), step="a plain step takes 45 ms")
    on_aws = {
        "trn2_hours": hours,
        "rates_as_of": "2026-10-03",
        "ways": price_text(file_prices(load(REFERENCE), hours)),
    }
    answer = {"on_aws": on_aws, "report": "results/demo-20260921T141400Z/report.html", "next": "./trnspec"}
    assert narrowest("\n".join(demo.as_lines(found, answer, inventory=False))) <= columns


HEADINGS = ("arm", "of", "seconds")
ROWS = [
    ("a-name-that-somebody-made-as-long-as-names-may-be", "all of them", "1.25 [1.07, 1.47]"),
    ("b", "one", "2.5"),
]


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize("names", [None, {0, 1}])
def test_a_table_loses_nothing(columns: int, names: set[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    wide = [(first * 1, second, f"{third} -> {third}") for first, second, third in ROWS]
    for rows in (ROWS, wide, [(f"{first}-{first}", *rest) for first, *rest in wide]):
        lines = [*table(HEADINGS, rows, names=names, indent="  ")]
        assert max(map(len, lines)) <= columns
        letters = sorted("".join([*HEADINGS, *(cell for row in rows for cell in row)]).replace(" ", ""))
        printed = "".join(lines).replace(" ", "")
        if len(lines[0].split()) == len(HEADINGS):
            assert sorted(printed) == letters
        else:  # a heading is repeated for each row
            assert all(cell.replace(" ", "") in printed for row in rows for cell in row)


def test_a_name_and_an_address_stay_whole_where_other_words_can_be_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    address = "computingforgeeks.com/aws-costs-explained"
    rows = [("llama-3.3-70b-native", "Does a head pay for it on this chip?", f"2026, {address}, us-east-1")]
    text = "\n".join(table(("name", "answers", "quoted"), rows))
    assert "llama-3.3-70b-native " in text
    assert address in text
    told = "the subnets have [10.0.0.0/24, 10.0.1.0/24], which EKS refuses, [1/3]; use others " * 2
    cells = table(("", "what", ""), [("", told, "")])
    assert " ".join(" ".join(cells).split()) == f"what {told.strip()}", "no blank before a comma"
    assert f"{address}/{'x' * 60}" in wrapped(f"see {address}/{'x' * 60} for more")
