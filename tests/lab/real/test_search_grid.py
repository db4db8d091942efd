"""What a search states about each load of a grid, and what counts as a contradiction."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.real.search_grid import tell

CROSSING = {"found": "crossing", "load": 7.0, "low": 6.0, "high": 8.0, "near_low": 5.0, "near_high": 9.0}
UNCLEAR = {"found": "not shown", "signs": [[1.0, 1], [4.0, 0], [16.0, 0]], "same": [16.0]}
UP, DOWN, UNKNOWN, NONE = (1.2, 1.4), (0.6, 0.9), (0.9, 1.1), (None, None)


def _summary(
    found: dict[str, Any], intervals: dict[int, tuple[float | None, float | None]]
) -> dict[str, Any]:
    nothing = dict.fromkeys(("load", "low", "high", "near_low", "near_high", "failing"))
    more: dict[str, Any] = {
        "class": None,
        "treatment": "spec",
        "signs": [],
        "same": [],
        "more": False,
        "rising": False,
    }
    told = {"failed": [], "precise": True, "by": "concurrency", "one_start": False}
    mix = [
        {"concurrency": at, "ratio": low, "ci_low": low, "ci_high": high, "classes": [{"n_prompts": 8}]}
        for at, (low, high) in intervals.items()
    ]
    run = {"requests_recorded": 8, "started": "then", "finished": "later", "complete": True}
    return {"run": run, "crossovers": [{**nothing, **more, **told, **found}], "mix": mix}


@pytest.mark.parametrize(
    ("found", "intervals", "code", "said"),
    [
        (CROSSING, {1: UP, 4: UP, 8: DOWN, 16: DOWN}, 0, "3 of 3 loads agree, 1 cannot tell"),
        (CROSSING, {1: UP, 4: DOWN, 8: UP, 16: UNKNOWN}, 1, "1 of 2 loads agree, 2 cannot tell"),
        ({**CROSSING, "rising": True}, {1: UP, 16: UP}, 1, "1 of 2 loads agree"),
        ({**CROSSING, "more": True}, {1: UP, 16: UP}, 0, "1 of 1 loads agree, 1 cannot tell"),
        ({"found": "always"}, {1: UP, 4: UP, 8: NONE, 16: UP}, 0, "3 of 3 loads agree, 1 cannot tell"),
        ({"found": "always"}, {1: UP, 4: UP, 8: UP, 16: DOWN}, 1, "3 of 4 loads agree"),
        ({"found": "never"}, {1: DOWN, 4: UNKNOWN, 16: UP}, 1, "1 of 2 loads agree, 1 cannot tell"),
        ({"found": "while answered", "load": 4.0, "failing": 8.0}, {4: UP, 8: DOWN}, 0, "1 of 1 loads agree"),
        (UNCLEAR, {1: UP, 4: DOWN, 8: UP, 16: (1.01, 1.04)}, 0, "2 of 2 loads agree, 2 cannot tell"),
        (UNCLEAR, {1: UP, 16: UP}, 1, "1 of 2 loads agree"),
        (UNCLEAR, {1: UNKNOWN, 4: UP}, 1, "no load can be compared: ask more --requests"),
    ],
)
def test_a_load_of_the_grid_whose_interval_excludes_1_must_lie_where_the_search_says(
    found: dict[str, Any],
    intervals: dict[int, tuple[float | None, float | None]],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = _summary({"found": "not shown", "signs": [[1.0, 1]]}, intervals)
    assert tell(_summary(found, {}), grid) == code
    assert said in capsys.readouterr().out


def test_a_run_that_has_not_ended_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    grid = _summary({"found": "always"}, {1: UP})
    grid["run"]["complete"] = False
    assert tell(_summary({"found": "always"}, {}), grid) == 1
    assert "grid has not ended" in capsys.readouterr().out
