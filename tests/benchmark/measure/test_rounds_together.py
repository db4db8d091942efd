"""Rounds of one run, each in a folder of its own, read as one run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.analyse.test_decision import BETTER, run_of, two_batches
from tests.benchmark.conftest import Captured
from tests.benchmark.records import cautions, store, summary_of
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure.journal import read
from trnspec.benchmark.measure.raw_run import RawRun


def stored(raw: RawRun, folder: Path, *rounds: list[str], **changes: Any) -> Path:
    """The run in as many rounds, with these arms; of the last the plan is changed."""
    for number, names in enumerate(rounds, start=1):
        plan = raw.plan.with_arms(names).model_copy(update={"max_tokens": 200})
        if number == len(rounds):
            plan = plan.model_copy(update=changes)
        own = replace(raw.sessions[0], run=f"r{number}", plan=plan, plan_sha256=plan.sha256())
        requests = tuple(replace(one, run=f"r{number}") for one in raw.requests if one.arm in names)
        store(replace(raw, sessions=(own,), requests=requests), folder / f"round-{number}")
    return folder


PAIRS = (["plain", "spec-k7"], ["plain-b8", "spec-k7-b8"])
ALONE = tuple([name] for pair in PAIRS for name in pair)


def in_any_order(text: str) -> list[str]:
    """The words of a sentence that lists the arms, which a run of rounds has in another order."""
    return sorted(re.split(r", | and |: ", text))


@pytest.mark.parametrize("rounds", [PAIRS, ALONE], ids=["in pairs", "one by one"])
def test_arms_of_different_rounds_are_compared_and_reported_as_if_they_had_been_in_one(
    tmp_path: Path, rounds: tuple[list[str], ...], capsys: Captured
) -> None:
    raw = two_batches(BETTER)
    together = read(stored(raw, tmp_path, *rounds))
    assert together.plan.baselines == raw.plan.baselines
    ours, whole = summary_of(together), summary_of(raw)
    for part in ("mix", "best"):
        assert ours[part] == whole[part]
    assert ours["run"]["complete"]
    said = next(
        text for text in cautions(ours) if text.startswith(f"{len(rounds)} rounds, one after the other")
    )
    assert [in_any_order(text) for text in cautions(ours) if text != said] == [
        in_any_order(text) for text in cautions(whole)
    ]
    assert main(["report", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "times as fast as plain-b8 (1.99 to 2.04, all classes weighted equally). It costs $5.76 instead of $11.16"
        in printed
    )
    assert (tmp_path / "report.html").is_file()
    assert not (tmp_path / "requests.jsonl").exists()


def test_of_an_arm_in_several_rounds_the_first_counts_and_10_is_after_2(tmp_path: Path) -> None:
    names = [f"spec-k{k}" for k in range(2, 12)]
    raw = run_of({name: {"a": 2.0} for name in names})
    found = read(stored(raw, tmp_path, *(["plain", name] for name in names)))
    assert [arm.name for arm in found.plan.arms] == ["plain", *names]
    assert len(found.requests) == len(raw.requests)
    assert [one.run for one in found.requests if one.arm == "plain"] == ["r1"] * 8


@pytest.mark.parametrize("changes", [{"seed": 7}, {"concurrency": (8,)}])
def test_rounds_that_were_not_asked_alike_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ResultsError, match="differ in more than their arms") as error:
        read(stored(two_batches(BETTER), tmp_path, *PAIRS, **changes))
    assert str(tmp_path) in str(error.value)
