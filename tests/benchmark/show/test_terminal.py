"""The table on the terminal, for runs of all kinds."""

from __future__ import annotations

import pytest

from benchmark.analyse.summary import summarise
from benchmark.measure.journal import RawRun
from benchmark.show.terminal import WIDTH, render
from tests.benchmark.records import emulated
from tests.benchmark.show.runs import run_of
from tests.benchmark.show.test_page import CASES


@pytest.mark.parametrize("case", CASES)
def test_no_line_is_wider_than_the_terminal(runs: dict[str, RawRun], case: str) -> None:
    assert max(map(len, render(summarise(runs[case])).splitlines())) <= WIDTH


def test_reasons_and_costs_stand_below_the_answer(runs: dict[str, RawRun]) -> None:
    text = render(summarise(runs["three arms, failures"]))
    (line,) = [line for line in text.splitlines() if line.startswith("json") and line.count(".") == 6][:1]
    tokens, ratio, expected, found = map(float, line.split()[2:6])
    assert expected == pytest.approx(tokens / ratio, abs=0.02)
    assert found == pytest.approx(expected, rel=0.1)
    assert "$/M tokens" in text


def test_prices_are_left_out_where_the_plan_has_none() -> None:
    plain = {"name": "a", "url": "http://a/v1"}
    text = render(summarise(run_of((plain, {**plain, "name": "b", "url": "http://b/v1"}), ("json",))))
    assert "$/M tokens" not in text


def test_the_title_says_what_the_numbers_are_and_whether_all_are_there(runs: dict[str, RawRun]) -> None:
    measured, made_up = (render(summarise(raw)) for raw in (runs["rate"], emulated(runs["nothing asked"])))
    assert measured.splitlines()[0].endswith(", MEASURED")
    assert ", EMULATED, INCOMPLETE (0 of 24)" in made_up.splitlines()[0]


def test_what_went_wrong_in_a_cell_is_one_line_of_it(runs: dict[str, RawRun]) -> None:
    text = " ".join(render(summarise(runs["nothing answered"])).split())
    assert (
        "! json, qwen-sd-vllm, 4 at a time: failed: http_500 3, timeout 3, reset 2; error rates differ"
        in text
    )
