"""`results` lists what is below a folder: finished runs as a table, everything else counted."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.conftest import Captured
from tests.benchmark.records import store
from tests.benchmark.show.runs import FUSED, HOSTILE, PLAIN, at_once, run_of
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.commands.report_command import summarised
from trnspec.benchmark.measure.journal import read

ON = {"hardware": {arm["name"]: {"instance": "trn2.48xlarge", "chips": 8} for arm in (PLAIN, FUSED)}}
UNKNOWN = dict.fromkeys(("plain_tpot_s", "plain_tpot_low_s", "plain_tpot_high_s"))
SERVED = {
    "engine": "vLLM 0.9.1, Neuron SDK 2.26.1",
    "instance": "trn2.48xlarge",
    "chips": 8,
    "at_once": 4,
}
EXPECTED = {"schema": 1, "arms": [{"arm": "qwen-vllm", **SERVED, **UNKNOWN}], "quoted": [], "figures": []}


def stored(folder: Path, day: int, name: str = "mine", *, complete: bool = True, **asked: Any) -> None:
    """A run of that day as `run` leaves it, but for a page that is short."""
    raw = run_of(**dict[str, Any](classes=("json",), experiment=name) | asked)
    began = datetime(2026, 11, day, tzinfo=UTC).timestamp()
    store(replace(raw, sessions=tuple(replace(one, started_unix_s=began) for one in raw.sessions)), folder)
    (folder / "expected.json").write_text(json.dumps(EXPECTED), encoding="utf-8")
    summary: dict[str, Any] = summarised(folder, cells_of(read(folder))).model_dump(mode="json") | ON
    summary["run"]["complete"] = complete
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (folder / "report.html").write_text("<p>report</p>", encoding="utf-8")


Listed = Callable[..., list[str]]


@pytest.fixture
def listed(tmp_path: Path, capsys: Captured) -> Listed:
    """The lines that `results` prints about the folder."""

    def listed(*words: str) -> list[str]:
        assert main(["results", str(tmp_path), *words]) == 0
        return capsys.readouterr().out.splitlines()

    return listed


def test_a_run_is_a_row(tmp_path: Path, listed: Listed) -> None:
    stored(tmp_path / "old", 20)
    (tmp_path / "old" / "report.html").unlink()
    stored(tmp_path / "new", 22, "a name that is longer than a column may be")
    headings, below, first, rest, second, *_ = listed()
    values = [*re.split("  +", first), *re.split("  +", rest.strip())]
    assert values[:4] == ["1", "a name that is longer t…", "Qwen3-32B", "concurrency 4"]
    assert re.fullmatch(r"2\.\d\d \[1\.\d\d, 2\.\d\d\]  \d\d\.\d\d -> \d\d\.\d\d", "  ".join(values[4:6]))
    served = "vLLM 0.9.1, Neuron SDK 2.26.1, 8 chips of trn2.48xlarge"
    assert values[6:] == ["2026-11-22", "measured", "new", served]
    assert second.startswith("2  mine")
    for above, under in ((headings, first), (below, rest)):
        columns = [[at.start() for at in re.finditer(r"(?<=  )\S", line)] for line in (above, under)]
        assert columns[0] == columns[1], "values begin below their headings"
    found = json.loads("\n".join(listed("--json")))
    run, known = found["runs"][0], ["new", True, True, "", ["qwen-vllm", "qwen-sd-vllm"]]
    assert [run[key] for key in ("folder", "complete", "report", "problem", "arms")] == known
    assert run["answer"].startswith("Use qwen-sd-vllm")
    assert run["ci_low"] < run["speed_up"] < run["ci_high"]


def test_rows_are_sorted_by_any_column_with_the_unknown_last(tmp_path: Path, listed: Listed) -> None:
    stored(tmp_path / "b", 20, "x", loads=at_once(8))
    stored(tmp_path / "c", 21, "z", classes=("open-ended",))
    stored(tmp_path / "a", 22, "y", classes=("repetition",), loads=at_once(1))
    stored(tmp_path / "d", 19, "u", arms=(PLAIN,))
    orders = {
        "date": "acbd",
        "name": "dbac",
        "folder": "abcd",
        "load": "acdb",
        "speed-up": "abcd",
        "cost": "abcd",
    }
    for column, order in orders.items():
        runs = json.loads("\n".join(listed("--sort", column, "--json")))["runs"]
        assert "".join(run["folder"] for run in runs) == order, column
    assert main(["results", str(tmp_path), "--sort", "colour"]) == 2


def test_other_folders_are_counted_until_all_are_asked_for(tmp_path: Path, listed: Listed) -> None:
    stored(tmp_path / "good", 20)
    stored(tmp_path / "stopped", 21, complete=False)
    infinite = (
        (tmp_path / "good" / "summary.json").read_text().replace('"ratio": 2.', '"ratio": Infinity, "_": 2.')
    )
    damaged = {
        **{"cut": '{"run"', "list": "[]", "empty": "{}", "null": '{"run": null}', "infinite": infinite},
        **{"odd": '{"run": {}, "decision": 3}', "deep": "[" * 100_000},
    }
    for name in (*damaged, "waiting", "recorded", "other"):
        (tmp_path / name).mkdir()
        if text := damaged.get(name):
            (tmp_path / name / "summary.json").write_text(text, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "waiting" / "summary.json")
    (tmp_path / "recorded" / "requests.jsonl").write_text("{}\n", encoding="utf-8")
    short, long = listed(), listed("--all")
    assert sum("  measured" in line for line in short) == 1
    (counted,) = [line for line in short if line.startswith("Not listed: ")]
    for words in ("2 unfinished runs", "8 unreadable runs", "1 other folder"):
        assert words in counted
    assert sum("  measured, incomplete" in line for line in long) == 1
    for name in damaged:
        (line,) = [line for line in long if line.startswith(f"{name}: summary.json is not valid (")]
        assert f"`./trnspec report {tmp_path}/{name}` makes it" in line
    assert any(line.startswith("waiting: summary.json is not a regular file; ") for line in long)
    assert any(line.startswith("recorded: no summary.json; `./trnspec report") for line in long)


def test_a_wrong_folder_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    stored(tmp_path / "runs" / "one", 20)
    (tmp_path / "file").touch()
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    for given, why in {
        "absent": "does not exist; give the folder of your runs; `./trnspec demo` makes",
        "file": "is not a folder",
        "empty": "holds no run; `./trnspec demo` makes",
        "runs/one": f"is a run; give the folder that it is in, {tmp_path}/runs",
    }.items():
        assert main(["results", str(tmp_path / given)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"trnspec.benchmark results: {tmp_path}/{given}: {why}")
        assert error.count("\n") == 1


def test_names_that_others_chose_are_shown_and_not_obeyed(tmp_path: Path, capsys: Captured) -> None:

    called = {"javascript:alert(1)": HOSTILE, 'a "b" & c?d#e': "\x1b[2J", os.fsdecode(b"\xff"): "x"}
    for name in called:
        stored(tmp_path / name, 20)
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        summary["run"]["experiment"] = called[name]
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "<script>").mkdir()
    assert main(["results", str(tmp_path), "--all"]) == 0
    assert "\x1b" not in capsys.readouterr().out
