"""What a search states about each load of a grid, and what counts as a contradiction."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lab.real.search_grid import told

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
    return {"crossovers": [{**nothing, **more, **told, **found}], "mix": mix}


ALWAYS = {"found": "always", "signs": [[1.0, 1], [16.0, 1]]}
NEVER = {"found": "never", "signs": [[1.0, -1], [16.0, -1]]}
ANSWERED = {"found": "while answered", "load": 4.0, "failing": 8.0}


@pytest.mark.parametrize(
    ("found", "intervals", "agree", "said"),
    [
        (CROSSING, {1: UP, 4: UP, 8: DOWN, 16: DOWN}, True, "3 of 3, 1"),
        (CROSSING, {1: UP, 4: DOWN, 8: UP, 16: UNKNOWN}, False, "1 of 2, 2"),
        ({**CROSSING, "rising": True}, {1: DOWN, 16: UP}, True, "2 of 2, 0"),
        ({**CROSSING, "more": True}, {1: UP, 16: UP}, True, "1 of 1, 1"),
        (ALWAYS, {1: UP, 4: UP, 8: NONE, 16: UP}, True, "3 of 3, 1"),
        (ALWAYS, {1: UP, 4: UP, 8: UP, 16: DOWN}, False, "3 of 4, 0"),
        (NEVER, {1: DOWN, 4: UNKNOWN, 16: UP}, False, "1 of 2, 1"),
        (ANSWERED, {4: UP, 8: DOWN}, True, "1 of 1, 1"),
        (UNCLEAR, {1: UP, 4: DOWN, 8: UP, 16: (1.01, 1.04)}, True, "2 of 2, 2"),
        (UNCLEAR, {1: UP, 16: UP}, False, "1 of 2, 0"),
        (UNCLEAR, {1: UNKNOWN, 4: UP}, None, "0 of 0, 2"),
    ],
)
def test_a_load_of_the_grid_whose_interval_excludes_1_must_lie_where_the_search_says(
    found: dict[str, Any],
    intervals: dict[int, tuple[float | None, float | None]],
    agree: bool | None,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = _summary({"found": "not shown", "signs": [[1.0, 1]]}, intervals)
    judged = told(_summary(found, {}), grid)
    assert (all(judged) if judged else None) == agree
    counts, unable = said.split(", ")
    line = f"{counts} loads that can be compared agree, {unable} cannot tell"
    assert line in capsys.readouterr().out
