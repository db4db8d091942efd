"""`report --mix` and `report --by-length`: the user's traffic, and long prompts apart from short ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmark.analyse.test_decision import run_of
from tests.benchmark.conftest import Captured
from tests.benchmark.records import store
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.summary import summarise
from trnspec.benchmark.measure.raw_run import RawRun

GAINS = {"drafted-k7": {"code": 2.0, "chat": 0.8}}
USD = {"plain": 10.0, "drafted-k7": 10.0}


def test_the_users_shares_weigh_the_mean_over_classes() -> None:
    """Both classes take the same time plainly, so that S = 1 / (w / 2.0 + (1 - w) / 0.8)."""
    raw = run_of(GAINS, usd=USD, spread=0.0)
    for shares, truth in ((None, 1.142857), ({"code": 9.0, "chat": 1.0}, 1.739130), ({"chat": 1.0}, 0.8)):
        result = summarise(cells_of(raw, shares=shares))
        (mix,) = result.mix
        assert mix.ratio == pytest.approx(truth, abs=1e-4)
        weight = {one.class_: one.share for one in mix.classes}
        total = sum((shares or {"code": 1, "chat": 1}).values())
        assert weight == pytest.approx({c: (shares or {}).get(c, 0 if shares else 1) / total for c in weight})
        if shares:
            assert "your mix" in result.sentence


@pytest.fixture
def by_length() -> RawRun:
    """Of sixteen prompts the eight long ones, of 900 tokens, are drafted at half the speed of the short ones."""
    raw = run_of({"drafted-k7": {"chat": 2.0}}, prompts=16, max_tokens=200)
    requests = []
    for one in raw.requests:
        long = int(one.prompt_id.rpartition("-")[2]) >= 8
        slower = 2.5 if long and one.arm != "plain" else 1.0
        times = [one.chunk_s[0] + (at - one.chunk_s[0]) * slower for at in one.chunk_s]
        known = {"prompt_tokens": 900 if long else 40, "chunk_s": times, "e2e_s": times[-1]}
        requests.append(replace(one, **known))
    return replace(raw, requests=tuple(requests))


def test_long_prompts_are_a_class_of_their_own(by_length: RawRun) -> None:
    result = summarise(cells_of(by_length, by_length=True))
    found = {one.class_: one for one in result.comparisons if one.metric == "tpot_s"}
    short, long = found["chat up to 40 tokens"], found["chat above 40 tokens"]
    assert (short.n_prompts, long.n_prompts) == (8, 8)
    assert short.ratio == pytest.approx(2.0, rel=0.05)
    assert long.ratio == pytest.approx(0.8, rel=0.05)
    assert short.verdict == "faster"
    assert result.run.complete
    assert {cell.class_ for cell in summarise(cells_of(by_length)).cells} == {"chat"}


def test_a_class_with_too_few_prompts_is_not_split() -> None:
    raw = run_of({"drafted-k7": {"chat": 2.0}}, prompts=9)
    assert {cell.class_ for cell in summarise(cells_of(raw, by_length=True)).cells} == {"chat"}


def test_report_takes_both_and_refuses_a_class_that_is_not_there(
    tmp_path: Path, by_length: RawRun, capsys: Captured
) -> None:
    store(by_length, tmp_path)
    assert main(["report", str(tmp_path), "--by-length", "--mix", "chat above 40 tokens=1"]) == 0
    assert main(["report", str(tmp_path), "--mix", "other=1"]) == 2
    error = capsys.readouterr().err
    assert "--mix: 'other' is not a class of the run; its classes are chat" in error
    assert main(["report", str(tmp_path), "--by-length"]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {one["class"] for one in summary["cells"]} == {"chat up to 40 tokens", "chat above 40 tokens"}
