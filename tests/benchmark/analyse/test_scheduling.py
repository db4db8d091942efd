"""How the cost of a drafted step is split where a plain arm has the same scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.analyse.explanation import split_steps
from tests.benchmark.records import store
from tests.benchmark.show.runs import FUSED, PLAIN, run_of

OFF = "asynchronous scheduling is off"
SAME = PLAIN | {"name": "plain-sync", "url": "http://same/v1", "also_changes": [OFF]}
DRAFTED = FUSED | {"also_changes": ["the cache is smaller", f"{OFF}: it does not go with speculation"]}


Steps = dict[tuple[str, str, int], float | None]
"""By arm, class and load, a step over the baseline's."""


def summary(ratios: Steps, *arms: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {
            "treatment": arm,
            "class": class_,
            "concurrency": load,
            "rate_per_s": None,
            "baseline": "plain",
            "step_time_ratio": ratio,
        }
        for (arm, class_, load), ratio in ratios.items()
    ]
    return {"run": {"arms": list(arms)}, "explanations": rows}


ARMS = (
    {"name": "plain", "speculative_tokens": 0},
    {"name": "same", "speculative_tokens": 0, "also_changes": [OFF]},
    {"name": "drafted", "speculative_tokens": 1, "also_changes": [f"{OFF}: because"]},
)


def test_the_scheduler_and_drafting_add_up_to_the_step() -> None:
    steps = {("same", "a", 4): 1.1, ("same", "b", 4): 1.1, ("drafted", "a", 4): 1.2, ("drafted", "b", 4): 1.3}
    (line,) = split_steps(summary({**steps, ("drafted", "c", 4): 9.0, ("same", "c", 4): None}, *ARMS))
    assert line == (
        "Step of drafted, 4 at a time: 1.25 times as long as that of plain. What it changes beside drafting (asynchronous scheduling is off) "
        "accounts for +0.10, as same shows, which decodes plainly; drafting accounts for +0.15."
    )
    assert (
        len(list(split_steps(summary({**steps, ("same", "a", 8): 1.2, ("drafted", "a", 8): 1.4}, *ARMS))))
        == 2
    )


@pytest.mark.parametrize(
    "without", [{"also_changes": ["another kernel"]}, {"also_changes": []}, {"speculative_tokens": 3}]
)
def test_an_arm_that_shares_nothing_splits_nothing(without: dict[str, Any]) -> None:
    steps: Steps = {("same", "a", 4): 1.1, ("drafted", "a", 4): 1.2}
    assert not list(split_steps(summary(steps, ARMS[0], ARMS[1] | without, ARMS[2])))


def test_the_report_splits_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = store(run_of((PLAIN, SAME, DRAFTED), classes=("json", "code")), tmp_path)
    assert main(["report", str(folder), "--all"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = "Step of qwen-sd-vllm, 4 at a time: 1."
    assert said in shown
    assert said in " ".join((folder / "report.html").read_text().split())
    assert json.loads((folder / "summary.json").read_text())["explanations"]
