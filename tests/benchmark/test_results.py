"""`results` lists what lies below a folder: runs with their answers, the newest first, and everything else in one line each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmark.__main__ import main
from benchmark.analyse.decision import decide
from benchmark.analyse.summary import summarise
from tests.benchmark.show.runs import HOSTILE, run_of
from tests.benchmark.show.test_page import Parts

NEW, OLD = (f"2026-11-{day}T10:00:00Z" for day in (22, 20))


def _stored(folder: Path, *, started: str = NEW, experiment: str = "mine", report: bool = True) -> None:
    """A run as `run` and `report` leave it."""
    summary = summarise(run_of(classes=("json",)))
    summary["run"] |= {"started": started, "experiment": experiment}
    summary["decision"] = decide(summary).as_json()
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    if report:
        (folder / "report.html").write_text("<p>report</p>", encoding="utf-8")


def test_runs_are_listed_with_their_answers_and_linked_from_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        assert main(["results", str(folder)]) == 0
        assert capsys.readouterr().out.startswith(f"{folder}: no results yet; `./trnspec demo` makes")
    assert list(tmp_path.iterdir()) == []

    _stored(tmp_path / "old", started=OLD, report=False)
    _stored(tmp_path / "new")
    assert main(["results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    first, second = (said.index(f"2026-11-{day} 10:00  mine, measured, run ") for day in (22, 20))
    assert first < second
    assert "\n    Use qwen-sd-vllm (window 7)" in said
    assert f"{tmp_path}/new/report.html" in said
    assert f"{tmp_path}/old/summary.json" in said
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert Parts(page).values("href", "src") == ["./new/report.html"]
    assert "--series-0" in page, "the style of the report"
    assert page.count("<article>") == 2

    (tmp_path / "else").mkdir()
    assert main(["results", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == str(tmp_path / "index.html")
    run, _, other = told["runs"]
    assert (run["folder"], run["complete"], run["report"], run["problem"]) == ("new", True, True, "")
    assert run["answer"].startswith("Use qwen-sd-vllm")
    assert (other["folder"], other["problem"]) == ("else", "not a run")


def test_what_is_no_run_or_damaged_takes_one_line_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _stored(tmp_path / "good")
    damaged = {
        **{"cut": '{"run"', "list": "[]", "empty": "{}", "null": '{"run": null}'},
        **{"odd": '{"run": {}, "decision": 3}', "deep": "[" * 100_000},
    }
    for name in (*damaged, "waiting", "recorded"):
        (tmp_path / name).mkdir()
    for name, text in damaged.items():
        (tmp_path / name / "summary.json").write_text(text, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "waiting" / "summary.json")
    (tmp_path / "recorded" / "requests.jsonl").write_text("{}\n", encoding="utf-8")
    assert main(["results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in damaged:
        (line,) = [line for line in lines if line.startswith(f"{name}: summary.json cannot be read (")]
        assert f"`./trnspec benchmark report {tmp_path}/{name}` makes it" in line
    assert "waiting: not a run" in lines
    (line,) = [line for line in lines if line.startswith("recorded: ")]
    assert line.startswith("recorded: no summary.json; `./trnspec benchmark report")
    assert sum(", run " in line for line in lines) == 1


def test_names_that_others_chose_are_shown_and_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _stored(tmp_path / "javascript:alert(1)", experiment=HOSTILE)
    _stored(tmp_path / 'a "b" & c?d#e', experiment="\x1b[2J")
    _stored(tmp_path / os.fsdecode(b"\xff"))
    (tmp_path / "<script>").mkdir()
    assert main(["results", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    found = Parts((tmp_path / "index.html").read_text(encoding="utf-8"))
    links = ("%FF", "a%20%22b%22%20%26%20c%3Fd%23e", "javascript%3Aalert%281%29")
    assert sorted(found.values("href", "src")) == [f"./{link}/report.html" for link in links]
    assert not {tag for tag, _, _ in found.found} & {"script", "img"}
