"""Numbers that no server can have counted, in a journal of an earlier version or in another tool's export: none of them
becomes a figure or a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.measure.journal import FILE_NAME

Captured = pytest.CaptureFixture[str]
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


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_an_impossible_number_of_a_record_makes_it_a_failure_and_no_figure(case: str, sound: Path) -> None:
    """Of the last answer of the speculating arm, among sound ones."""
    *lines, last = (sound / FILE_NAME).read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | IMPOSSIBLE[case]))
    (sound / FILE_NAME).write_text("\n".join(lines) + "\n")
    for verb in (["report"], ["advise"], ["compare", str(sound)]):
        assert main([verb[0], str(sound), *verb[1:]]) in (0, 1)
    found = json.loads((sound / "summary.json").read_text())
    cell = next(one for one in found["cells"] if (one["arm"], one["class"]) == ("spec", "chat"))
    assert (cell["n"], cell["errors"]) == (5, 1)
    assert set(cell["error_names"]) <= {"implausible_usage", "implausible_times"}
    assert cell["acceptance"]["tokens_per_step"] == 3.5, "of the five sound answers"
    ratio = next(c["ratio"] for c in found["comparisons"] if (c["class"], c["metric"]) == ("chat", "tpot_s"))
    assert ratio == pytest.approx(3.5)


@pytest.mark.parametrize(
    "said", [[], 5, "x", {"spec": 5}, {"spec": [["chat"]]}, {"nobody": ["chat"]}, {"spec": ["nothing"]}]
)
def test_what_a_journal_says_was_made_up_may_be_anything(said: Any, sound: Path) -> None:
    opening, *lines = (sound / FILE_NAME).read_text().splitlines()
    opening = json.dumps(json.loads(opening) | {"made_up": said, "cautions": said})
    (sound / FILE_NAME).write_text("\n".join([opening, *lines]) + "\n")
    assert main(["report", str(sound)]) in (0, 1, 2)


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
    case: str, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "shares.json"
    path.write_text(SHARES[case])
    assert main(["advise", "--acceptance", str(path), "--step-times", "0=0.045,7=0.09"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.isprintable()
    assert len(told) < 1000


def test_numbers_that_overflow_and_too_many_windows_are_refused(
    sound: Path, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / "shares.json"
    path.write_text('{"a": [0.9], "b": [0.5]}')
    given = ["advise", "--acceptance", str(path), "--step-times", "0=0.045,7=0.09"]
    for large, small in (("1e308", "1e308"), ("1e-320", "1e-310")):
        for option in (["--step-times", f"0={large},7={small}"], ["--mix", f"a={large},b={small}"]):
            assert main([*given, *option]) == 2
            assert "must be a number above 0" in capsys.readouterr().err
    assert main(["advise", str(sound), "--speculative-tokens", "spec=10000"]) == 2
    assert "10000 windows are more than" in capsys.readouterr().err
