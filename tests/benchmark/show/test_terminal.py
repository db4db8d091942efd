"""The report on the terminal, for runs of all kinds, as people read it.

`python -m tests.benchmark.show.test_terminal` writes the texts again; what changed is read in the diff.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.summary import summarise
from benchmark.show.text import render, render_all
from tests.benchmark.analyse.test_decision import BETTER, two_batches
from tests.benchmark.analyse.test_summary import with_verdicts
from tests.benchmark.show.runs import all_runs

TEXTS = Path(__file__).parent / "data"
CASES = sorted([*all_runs(), "two batches", "near-ties", "faults"])


def shown(summary: dict[str, Any]) -> str:
    """The short report and the long one."""
    return f"{render(summary)}\n\n{' --all ':=^100}\n\n{render_all(summary)}\n"


@pytest.fixture(scope="module")
def all_summaries(summaries: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {**summaries, **of_others()}


def of_others() -> dict[str, dict[str, Any]]:
    more = {
        "two batches": two_batches(BETTER),
        "near-ties": with_verdicts(0.2),
        "faults": with_verdicts(2.0, itself=4),
    }
    return {name: summarise(raw) for name, raw in more.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_report_reads_as_it_is_written_down_and_fits_the_terminal(
    all_summaries: dict[str, dict[str, Any]], case: str
) -> None:
    text = shown(all_summaries[case])
    if case != "search":  # what a search finds is judged where it searches
        assert text == (TEXTS / f"{case.replace(' ', '-')}.txt").read_text(encoding="utf-8")
    assert len(render(all_summaries[case]).splitlines()) <= 35


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_lost(
    all_summaries: dict[str, dict[str, Any]], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for case, summary in all_summaries.items():
        monkeypatch.setenv("COLUMNS", "100")
        numbers = Counter(re.findall(r"\d+\.\d+", render_all(summary)))
        monkeypatch.setenv("COLUMNS", str(columns))
        text = f"{render(summary)}\n{render_all(summary)}"
        assert max(map(len, text.splitlines())) <= columns, case
        assert Counter(re.findall(r"\d+\.\d+", render_all(summary))) == numbers, case


def test_of_many_warnings_the_first_are_in_the_short_report_and_another_engine_is_among_them(
    summaries: dict[str, dict[str, Any]],
) -> None:
    odd = {"path": "async_mode", "baseline": True, "this": False}
    engines = {"qwen-sd-vllm": {"compared": True, "declared": 3, "undeclared": [odd]}}
    summary = {**summaries["reference"], "engines": engines}
    assert "! Engine of qwen-sd-vllm against qwen-vllm: apart from" in render(summary)
    summary["run"] = {**summary["run"], "warnings": [f"warning {number}" for number in range(9)]}
    assert render(summary).endswith("! and 4 more warnings; --all has them")


if __name__ == "__main__":
    made = {name: summarise(raw) for name, raw in all_runs().items() if name != "search"} | of_others()
    for name, summary in made.items():
        (TEXTS / f"{name.replace(' ', '-')}.txt").write_text(shown(summary), encoding="utf-8")
