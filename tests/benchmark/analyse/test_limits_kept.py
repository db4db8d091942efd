"""The share of requests within the limits of an SLO, in whose interval a prompt counts once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.benchmark.records import answered, failed, raw_run, result_of, summary_of
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.delivered import limits_kept
from trnspec.benchmark.analyse.statistics import wilson
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import RequestRecord
from trnspec.benchmark.show import page, tables
from trnspec.benchmark.show.report_templates import render

SLO = {"tpot_s": 0.04}
FAST, SLOW = ((0.1, 0.1 + tpot_s, 0.1 + 2 * tpot_s) for tpot_s in (0.01, 0.1))
CLUSTERS: dict[str, Callable[[random.Random], float]] = {
    "requests that are independent": lambda dice: 0.9,
    "prompts that differ": lambda dice: dice.betavariate(1.8, 0.2),
    "prompts that are good or bad": lambda dice: float(dice.random() < 0.9),
}
"""How likely a request of a prompt is within the limit; in the mean 90 %."""


def asked(arm: str, prompt: int, number: int, within: bool, **more: Any) -> RequestRecord:
    names: dict[str, Any] = {"prompt_id": f"chat-{prompt}", "pair_id": f"chat/c2/{prompt}-{number}"}
    return answered(arm, number, **{"chunk_s": FAST if within else SLOW} | names | more)


def run_of(*records: RequestRecord, prompts: int, slo: dict[str, float] | None = None) -> RawRun:
    texts = [{"id": f"chat-{i}", "class": "chat", "prompt": f"Question {i}?"} for i in range(prompts)]
    return raw_run(*records, prompts=texts, slo=slo or SLO)


def kept(raw: RawRun, arm: str = "steady") -> list[dict[str, Any]]:
    return [row for row in limits_kept(cells_of(raw)) if row["arm"] == arm]


@pytest.mark.parametrize("times", [1, 3])
def test_a_prompt_counts_once_however_often_it_is_asked_and_a_failure_keeps_nothing(times: int) -> None:
    records = [asked("steady", i, n, i >= 3) for i in range(20) for n in range(times)]
    raw = run_of(*records, prompts=20)
    (row,) = kept(raw)
    assert (row["n"], row["within"], row["prompts"]) == (20 * times, 17 * times, 20)
    assert (row["share"], row["low"], row["high"]) == pytest.approx((0.85, *wilson(17, 20)))
    lost = failed("steady", prompt_id="chat-19", pair_id="chat/c2/lost")
    (less,) = kept(replace(raw, requests=(*raw.requests, lost)))
    assert less["share"] == 17 * times / (20 * times + 1)


def test_each_limit_has_its_share_and_all_of_them_that_of_goodput() -> None:
    slo = {"tpot_s": 0.04, "ttft_s": 0.05}
    records = [asked("steady", i, 0, i < 8) for i in range(10)]
    records[0] = asked("steady", 0, 0, True, chunk_s=(0.04, 0.05, 0.06))
    result = result_of(run_of(*records, prompts=10, slo=slo))
    summary = result.model_dump(mode="json")
    rows = {row["metric"]: row for row in summary["limits_kept"] if row["arm"] == "steady"}
    assert {name: row["within"] for name, row in rows.items()} == {"tpot_s": 8, "ttft_s": 1, None: 1}
    (cell,) = (one for one in summary["cells"] if one["arm"] == "steady")
    assert rows[None]["share"] == cell["goodput"]["share"]
    assert summary_of(raw_run(*records))["limits_kept"] == []
    headings = tables.limits_table(result).headings
    assert headings == ("load", "arm", "TPOT 0.04 s", "TTFT 0.05 s", "all", "requests", "prompts")


def test_the_shares_are_on_the_terminal_and_on_the_page() -> None:
    records = [asked("steady", i, 0, i % 100 < 72) for i in range(100)]
    records += [asked("spec", i, 0, True) for i in range(100)]
    raw = run_of(*records, prompts=100)
    result = result_of(raw)
    table = tables.limits_table(result)
    assert [row[1:3] for row in table.rows] == [
        ("steady", "72.0 % [62.5, 79.9]"),
        ("spec", "100.0 % [96.3, 100.0]"),
    ]
    for text in (render(result), render(result, everything=True), page.render(cells_of(raw), result)):
        for words in (table.title, *(row[2] for row in table.rows)):
            assert words in " ".join(text.split())


@pytest.mark.parametrize("kind", CLUSTERS)
def test_the_interval_holds_the_share_in_19_of_20_runs_whatever_prompts_have_in_common(kind: str) -> None:
    prompts, times, runs = 64, 3, 200
    dice, right, raw = random.Random(kind), 0, run_of(prompts=prompts)
    each = {
        (i, n, within): asked("steady", i, n, within)
        for i in range(prompts)
        for n in range(times)
        for within in (True, False)
    }
    for _ in range(runs):
        likely = [CLUSTERS[kind](dice) for _ in range(prompts)]
        records = (each[i, n, dice.random() < likely[i]] for i in range(prompts) for n in range(times))
        (row,) = kept(replace(raw, requests=tuple(records)))
        right += row["low"] <= 0.9 <= row["high"]
    assert right >= 0.95 * runs - 6, "two standard errors"
