"""The report on the terminal, for runs of all kinds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.analyse.summary import summarise
from benchmark.measure.journal import RawRun
from benchmark.show.terminal import WIDTH, render, render_all
from tests.benchmark.records import emulated
from tests.benchmark.show.runs import FUSED, PLAIN, run_of, swept
from tests.benchmark.show.test_page import CASES

DEMO = Path(__file__).parent / "data" / "demo-summary.json"
"""What the demonstration's summary has of the short report, rounded."""
GOLDEN = """\
Does drafting with Qwen3-1.7B pay for Qwen3-32B?
EMULATED: use qwen-sd-vllm (window 7): 2.05 times faster over all classes in equal shares [1.97,
 2.14], $58.81 -> $33.11 per million output tokens; 2.35 to 2.94 times faster for code, json,
 numeric and repetition; no clear difference for open-ended.

4 at a time, qwen-vllm -> treatment; in every row arm qwen-sd-vllm; window 7
class                  TPOT, ms           speed-up  verdict                         $/M
---------------------------------------------------------------------------------------
repetition         46.2 -> 15.7  2.94 [2.76, 3.13]  faster               58.80 -> 23.01
numeric            46.1 -> 16.8  2.75 [2.52, 3.01]  faster               58.81 -> 24.87
json               46.2 -> 18.2  2.54 [2.31, 2.78]  faster               58.83 -> 27.70
code               46.2 -> 19.7  2.35 [2.23, 2.48]  faster               58.81 -> 28.50
open-ended         46.1 -> 42.1  1.10 [0.99, 1.21]  no clear difference  58.79 -> 61.46
all, equal shares  46.2 -> 22.5  2.05 [1.97, 2.14]  faster               58.81 -> 33.11

TPOT: time per output token, geometric mean over pairs of the same prompt. $/M: dollars per million
 output tokens, prompts and waiting included. Speed-up: with its 95 % interval; verdicts stand after
 Holm's correction over all classes and arms.
"""


def test_the_demonstration_is_answered_in_a_few_lines() -> None:
    assert render(json.loads(DEMO.read_text())) + "\n" == GOLDEN


@pytest.mark.parametrize("case", CASES)
def test_no_line_is_wider_than_the_terminal(runs: dict[str, RawRun], case: str) -> None:
    summary = summarise(runs[case])
    for text in (render(summary), render_all(summary)):
        assert max(map(len, text.splitlines())) <= WIDTH
    assert len(render(summary).splitlines()) <= 25


def test_a_sweep_has_its_best_arm_by_class_and_one_line_an_arm() -> None:
    summary = summarise(swept((2, 3, 4, 5, 6, 7, 10)))
    lines = render(summary).splitlines()
    assert len(lines) <= 35
    assert lines[0] == "Which way of drafting pays for Qwen3-32B?"
    table = lines[lines.index(next(line for line in lines if line.startswith("Every treatment"))) :]
    ratios = [float(line.split(" [")[0].split()[-1]) for line in table if line.startswith("qwen-sd-k")]
    assert len(ratios) == 7
    assert ratios == sorted(ratios, reverse=True)


def test_every_load_and_why_stand_in_the_long_report_alone() -> None:
    loads = tuple({"concurrency": level, "rate_per_s": None} for level in (1, 4))
    summary = summarise(run_of(classes=("json", "code"), loads=loads))
    short, whole = render(summary), render_all(summary)
    assert [short.count(f"{level} at a time, qwen-vllm -> treatment") for level in (1, 4)] in ([1, 0], [0, 1])
    assert [whole.count(f"{level} at a time, qwen-vllm -> treatment") for level in (1, 4)] == [1, 1]
    for said in (
        "Tokens per step",
        "Every cell, 4 at a time: medians",
        "Quality: not asked",
        "Engine of qwen-sd-vllm",
    ):
        assert said in whole
        assert said not in short


def test_dollars_are_left_out_where_the_plan_has_no_prices() -> None:
    plain = {"name": "a", "url": "http://a/v1"}
    text = render(summarise(run_of((plain, {**plain, "name": "b", "url": "http://b/v1"}), ("json", "code"))))
    assert "$/M\n" not in text
    assert "-> " in text


def test_what_changes_the_decision_is_said_in_the_short_report(runs: dict[str, RawRun]) -> None:
    text = " ".join(render(summarise(runs["nothing answered"])).split())
    assert "! qwen-sd-vllm: 8 of 8 requests failed: http_500 3, timeout 3, reset 2; pairs" in text
    made_up = render(summarise(emulated(runs["nothing asked"])))
    assert "\nEMULATED, INCOMPLETE (0 of 24 requests): no verdict" in made_up
    summary = summarise(run_of((PLAIN, FUSED), ("json",)))
    odd = {"path": "async_mode", "baseline": True, "this": False}
    summary["engines"] = {"qwen-sd-vllm": {"compared": True, "declared": 3, "undeclared": [odd]}}
    assert "! Engine of qwen-sd-vllm against qwen-vllm: apart from" in render(summary)
    summary["run"]["warnings"] = [f"warning {number}" for number in range(9)]
    assert render(summary).endswith("! and 4 more warnings; --all has them")


def test_what_every_row_has_in_common_stands_above_them() -> None:
    raw = run_of((PLAIN, FUSED), ("json", "code"))
    text = render_all(summarise(raw))
    assert "-> treatment; in every row arm qwen-sd-vllm; window 7" in text
    assert "medians; in every row n 8; errors 0" in text
    fewer = replace(raw, requests=raw.requests[1:])
    assert "in every row errors 0" in render_all(summarise(fewer))
