"""Numbers that no server can have counted, in a journal of an earlier version or in another tool's export: none of them
becomes a figure or a verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.measure.journal import FILE_NAME
from tests.benchmark.measure.test_import import BURSTS, STEADY
from tests.benchmark.records import answered, raw_run, store

SOUND: dict[str, Any] = {"chunk_s": (0.1, 0.2, 0.3), "chunk_tokens": (1, 3, 4), "completion_tokens": 8}
TOLD = {"chunk_tokens": None, "token_source": "final-usage"}
IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "one token more than was asked for": TOLD | {"completion_tokens": 14},
    "10^400 tokens": TOLD | {"completion_tokens": 10**400},
    "no token in an answer with text": TOLD | {"completion_tokens": 0},
    "a negative count": TOLD | {"completion_tokens": -8},
    "chunks that do not come to the total": {"chunk_tokens": [1, 3, 9]},
    "tokens of chunks that did not come": {"chunk_tokens": [1, 3, 3, 1]},
    "a prompt of -5 tokens": {"prompt_tokens": -5},
    "a cache that served 10^30 tokens": {"cached_tokens": 10**30},
    "a time before the request": {"ttft_s": -0.1},
    "a chunk before the one before it": {"chunk_s": [0.1, 0.3, 0.2]},
    "an end before the first token": {"e2e_s": 0.05},
    "a chunk after 1e308 seconds, twice": {"chunk_s": [0.1, 1e308, 1.7e308]},
    "a text as a time": {"chunk_s": [0.1, 0.2, 0.3], "e2e_s": "0.3"},
}


def _run(folder: Path, **changes: Any) -> dict[str, Any]:
    """The summary of a run whose speculating arm has one answer with `changes` among sound ones."""
    steady = [answered("steady", pair, chunk_s=(0.1, 0.2, 0.3)) for pair in range(6)]
    fast = [answered("spec", pair, **SOUND) for pair in range(6)]
    store(raw_run(*steady, *fast), folder)
    lines = (folder / FILE_NAME).read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | changes)
    (folder / FILE_NAME).write_text("\n".join(lines) + "\n")
    assert main(["report", str(folder)]) in (0, 1)
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_number_of_a_record_makes_it_a_failure_and_no_figure(case: str, tmp_path: Path) -> None:
    found = _run(tmp_path, **IMPOSSIBLE[case])
    cell = next(one for one in found["cells"] if (one["arm"], one["class"]) == ("spec", "chat"))
    assert cell["n"] == 5
    assert set(cell["error_names"]) <= {"implausible_usage", "implausible_times"}
    assert cell["errors"] == 1
    assert cell["acceptance"]["tokens_per_step"] == 3.5, "of the five sound answers"
    ratio = next(c["ratio"] for c in found["comparisons"] if (c["class"], c["metric"]) == ("chat", "tpot_s"))
    assert ratio == pytest.approx(3.5)
    for verb in (["advise"], ["compare", str(tmp_path)]):
        assert main([verb[0], str(tmp_path), *verb[1:]]) in (0, 1)


EXPORTS: dict[str, tuple[str, Any, str]] = {
    "NaN as a time": ("time_to_first_token", float("nan"), "refused"),
    "a negative count": ("usage_completion_tokens", -4, "failed"),
    "a fraction of a token": ("usage_completion_tokens", 4.5, "failed"),
    "10^400 tokens": ("usage_completion_tokens", 10**400, "failed"),
    "no token": ("usage_completion_tokens", 0, "failed"),
    "a text as a count": ("usage_completion_tokens", "40", "failed"),
    "a negative time": ("time_to_first_token", -100.0, "failed"),
    "a text as a time": ("time_to_first_token", "100", "refused"),
}


@pytest.mark.parametrize("case", EXPORTS)
def test_an_impossible_number_of_an_export_is_not_imported(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, value, outcome = EXPORTS[case]
    folder = tmp_path / "export"
    shutil.copytree(STEADY, folder)
    path = folder / "profile_export.jsonl"
    lines = path.read_text().splitlines()
    content = json.loads(lines[1])
    content["metrics"][name] = {"value": value}
    path.write_text("\n".join([lines[0], json.dumps(content), *lines[2:]]) + "\n")
    arms = ["--arm", f"plain={folder}", "--arm", f"spec={BURSTS}", "--speculative-tokens", "spec=7"]
    code = main(["import", *arms, "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    if outcome == "refused":
        assert code == 2
        assert len(said.err.splitlines()) == 1
        assert f"{path}:2" in said.err
        assert not (tmp_path / "out").exists()
        return
    assert code == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary["cells"][0]["error_names"]) <= {"implausible_usage", "implausible_times"}
    assert summary["cells"][0]["errors"] == 1


@pytest.mark.parametrize(
    "said", [[], 5, "x", {"spec": 5}, {"spec": [["chat"]]}, {"nobody": ["chat"]}, {"spec": ["nothing"]}]
)
def test_what_a_journal_says_was_made_up_may_be_anything(said: Any, tmp_path: Path) -> None:
    folder = store(raw_run(answered("steady"), answered("spec")), tmp_path)
    lines = (folder / FILE_NAME).read_text().splitlines()
    opening = json.loads(lines[0]) | {"made_up": said, "cautions": said}
    (folder / FILE_NAME).write_text("\n".join([json.dumps(opening), *lines[1:]]) + "\n")
    assert main(["report", str(folder)]) in (0, 1, 2)


SHARES = {
    "a class with escapes": '{"\\u001b[2J\\n": [0.9, 0.8]}',
    "200,000 positions": '{"a": [' + "1.0," * 200_000 + "1.0]}",
    "long nonsense": '{"a": [' + "2," * 200_000 + "2]}",
    "cells that are numbers": '{"cells": [1, [2], null]}',
    "a class that is a list": '{"cells": [{"class": [], "acceptance": {"per_position": [0.5]}}]}',
    "acceptance that is a text": '{"cells": [{"class": "a", "acceptance": "x"}]}',
}


@pytest.mark.parametrize("case", SHARES)
def test_acceptance_that_nobody_measured_is_refused_in_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shares.json"
    path.write_text(SHARES[case])
    assert main(["advise", "--acceptance", str(path), "--step-times", "0=0.045,7=0.09"]) == 2
    told = capsys.readouterr().err
    assert (told.count("\n"), told.strip().isprintable(), len(told) < 1000) == (1, True, True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--step-times", "0=1e308,7=1e308"),
        ("--step-times", "0=1e-320,7=1e-310"),
        ("--mix", "a=1e308,b=1e308"),
        ("--mix", "a=1e-320,b=1e-320"),
    ],
)
def test_numbers_whose_sums_or_ratios_overflow_are_refused(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shares.json"
    path.write_text('{"a": [0.9], "b": [0.5]}')
    with pytest.raises(SystemExit) as refused:
        main(["advise", "--acceptance", str(path), "--step-times", "0=0.045,7=0.09", option, value])
    assert refused.value.code == 2
    assert "is not a number above 0" in capsys.readouterr().err


def test_ten_thousand_windows_are_not_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(tmp_path)
    assert main(["advise", str(tmp_path), "--speculative-tokens", "spec=10000"]) == 2
    assert "10000 windows are more than" in capsys.readouterr().err
