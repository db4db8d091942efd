"""A `summary.json` of others is a valid result, which every reader can print, or is refused in one line that says which value is wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.benchmark.records import store
from tests.benchmark.show.runs import at_once, run_of
from tests.hostile.test_untrusted_input import FOLDER, ODD, clean, quickly
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.listed_runs import row_of
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.commands.report_command import summarised
from trnspec.benchmark.commands.results_command import rows_of
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.formats.acceptance_files import survivals
from trnspec.benchmark.show.report_templates import render
from trnspec.core.files import UnreadableFile, model_in

Place = tuple[str | int, ...]
GONE = "\0gone"


@cache
def summary() -> str:
    """That of a run of two loads and four classes."""
    folder = store(run_of(loads=at_once(2, 4)), FOLDER / "foreign")
    return json.dumps(summarised(folder, cells_of(run_of(loads=at_once(2, 4)))).model_dump(mode="json"))


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """The place of every value, and of the first entry of each list."""
    if at:
        yield at
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value[:1] if isinstance(value, list) else ())
    )
    for key, inner in entries:
        yield from places(inner, (*at, key))


def changed(*changes: tuple[Place, Any]) -> Path:
    content = json.loads(summary())
    for place, value in changes:
        within = content
        for key in place[:-1]:
            within = within[key]
        if value == GONE:
            del within[place[-1]]
        else:
            within[place[-1]] = value
    path = FOLDER / "foreign" / "summary.json"
    path.write_text(json.dumps(content))
    return path


def refusal(read: Callable[[Path], object], path: Path) -> str:
    try:
        read(path)
    except (UnreadableFile, ResultsError) as error:
        return str(error)
    return ""


def as_result(path: Path) -> Result:
    return model_in(path, Result)


@settings(quickly, max_examples=600)
@given(st.sampled_from([*places(json.loads(summary()))]), ODD | st.just(GONE))
@example(("pays_up_to", 0, "loads"), [])
@example(("run", "seed"), 10**400)
@example(("cells", 0, "arm"), "x" * 100_000)
def test_any_value_in_a_summary(place: Place, value: Any) -> None:
    path = changed((place, value))
    problem = row_of(path.parent).problem
    told = refusal(lambda path: render(as_result(path), everything=True), path)
    assert bool(problem) is bool(told)
    assert all(clean(line, 1000) for line in (problem, told, refusal(survivals, path)))


NUMBERS = ("ratio", "ci_low", "ci_high")
MIX = ("mix", 0)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((2.0, 2.5, 3.0), "faster"),
        ((2.0, 1.5, 1.8), "faster"),
        ((-2.0, -3.0, 3.0), "cannot tell"),
        ((2.0, None, 3.0), "faster"),
        ((None, 1.5, 2.5), "faster"),
        ((1.2, 0.9, 1.5), "faster"),
        ((2.0, 1.5, 2.5), "slower"),
        ((None, None, None), "faster"),
    ],
)
def test_a_figure_that_contradicts_its_interval_or_verdict_is_refused(
    values: tuple[float | None, ...], verdict: str
) -> None:
    sound = zip(NUMBERS, (2.0, 1.5, 2.5), strict=True)
    changes = [((*MIX, name), value) for name, value in zip(NUMBERS, values, strict=True)]
    model_in(
        changed(*(((*MIX, name), value) for name, value in sound), ((*MIX, "verdict"), "faster")), Result
    )
    told = refusal(as_result, changed(*changes, ((*MIX, "verdict"), verdict)))
    assert told.startswith(f"is not valid (mix.0: ratio {values[0]}, ci_low {values[1]}, ci_high {values[2]}")
    assert "contradict each other" in told


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("cells", 0, "tpot_s", "p99"), 1e-9, "cells.0.tpot_s: percentiles fall"),
        (("cells", 0, "concurrency"), None, "cells.0: a load is either"),
        (("comparisons", 0, "treatment"), "other", "'other' is not an arm of the run"),
        (("here",), 7, "here is 7, of 2 loads"),
        (("cells", 0, "n"), "8", "cells.0.n: Input should be a valid integer"),
        (("schema",), 1, "schema: Input should be 2"),
    ],
)
def test_what_cannot_be_of_one_run_is_refused(place: Place, value: Any, words: str) -> None:
    assert words in refusal(as_result, changed((place, value)))


def odd_files(folder: Path) -> Iterator[Path]:
    """What is no file, would never end, or is larger than memory."""
    for name, source in (("zero", "/dev/zero"), ("folder", "/tmp"), ("tty", "/dev/tty")):
        (folder / name).symlink_to(source)
        yield folder / name
    os.mkfifo(folder / "pipe")
    yield folder / "pipe"
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    yield folder / "sparse"


DOORS = {
    "a plan": "run --out {out} --plan {file}",
    "prompts": "run --out {out} --arm a=http://h/v1 --model m --max-tokens 5 --prompts {file}",
    "acceptance": "advise --step-times 0=1,7=2 --acceptance {file}",
}
IN_A_RUN = ("requests.jsonl", "expected.json", "engines/qwen-vllm.json")
IN_A_RUN += ("lmeval/questions.json", "lmeval/qwen-vllm/samples_gsm8k_1.jsonl")


def test_no_door_waits_for_a_pipe_or_reads_without_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.process_time()
    for odd in odd_files(tmp_path):
        commands = {what: words.format(out=tmp_path / "out", file=odd) for what, words in DOORS.items()}
        for number, name in enumerate(IN_A_RUN):
            folder = store(run_of(), tmp_path / f"{odd.name}-{number}")
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(odd)
            if name.startswith("lmeval/questions"):
                (folder / "lmeval" / "qwen-vllm").mkdir()
                line = json.dumps({"filter": "x", "doc_hash": "y", "exact_match": 1})
                (folder / "lmeval" / "qwen-vllm" / "samples_gsm8k_1.jsonl").write_text(line)
            commands[name] = f"report {folder}"
        for what, command in commands.items():
            assert main(command.split()) == 2, (odd, what)
            (line,) = capsys.readouterr().err.splitlines()
            assert clean(line), (odd, what)
            assert "fault of this program" not in line
        listed = tmp_path / f"listed-{odd.name}"
        (listed / "run").mkdir(parents=True)
        (listed / "run" / "summary.json").symlink_to(odd)
        assert rows_of(listed)[0].kind == "unreadable run"
    assert time.process_time() - began < 60
