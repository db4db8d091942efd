from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.__main__ import main
from benchmark.analyse.gate import judge
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from tests.benchmark.analyse.process import Process
from tests.benchmark.analyse.test_two_runs import slowed
from tests.benchmark.records import store

ENGINE = Process(conditional=(0.9,) * 4, k=4)


def regressions(baseline: RawRun, run: RawRun, **limits: float) -> list[str]:
    found = judge(baseline, run, **{"slower_by": 0.05, "more_errors": 0.01, **limits})
    texts: list[str] = found["regressions"]
    return texts


def failing(raw: RawRun, arm: str, count: int) -> RawRun:
    """The same run, in which the arm's first `count` requests failed."""
    left = count
    requests = []
    for record in raw.requests:
        if record.arm == arm and left:
            left -= 1
            record = replace(record, error="timeout", message="because")
        requests.append(record)
    return replace(raw, requests=tuple(requests))


@pytest.fixture(scope="module")
def run() -> RawRun:
    return ENGINE.run()


def test_the_same_run_again_passes(run: RawRun) -> None:
    assert regressions(run, run) == []


def test_a_slower_arm_is_refused_by_name_and_by_how_much(run: RawRun) -> None:
    (text,) = [one for one in regressions(run, slowed(run, "spec", 1.25)) if one.startswith("chat")]
    assert "spec" in text
    assert "more time per token" in text


def test_what_is_tolerated_passes_although_it_is_shown(run: RawRun) -> None:
    assert regressions(run, slowed(run, "spec", 1.25), slower_by=0.5) == []


def test_becoming_faster_passes(run: RawRun) -> None:
    assert regressions(run, slowed(run, "spec", 0.8)) == []


def test_more_failures_are_refused_even_where_the_rest_became_no_slower(run: RawRun) -> None:
    worse = failing(run, "steady", 3)
    assert [text.split(":")[0] for text in regressions(run, worse)] == ["steady"]
    assert regressions(run, worse, more_errors=0.9) == []
    assert regressions(worse, run) == []


def test_what_cannot_be_judged_does_not_pass(run: RawRun) -> None:
    prompts = sorted({record.prompt_id for record in run.requests})[:3]
    few = replace(run, requests=tuple(r for r in run.requests if r.prompt_id in prompts))
    texts = regressions(run, few)
    assert any("not finished" in text for text in texts)
    assert any("too few to judge" in text for text in texts)


def test_an_arm_that_is_gone_is_refused(run: RawRun) -> None:
    alone = run.plan.model_copy(update={"arms": run.plan.arms[:1]})
    without = RawRun(
        (replace(run.sittings[0], plan=alone),), tuple(r for r in run.requests if r.arm == "steady")
    )
    assert "spec: is in the baseline, not in the run" in regressions(run, without)


def test_an_emulated_run_is_no_baseline_for_a_measured_one(run: RawRun) -> None:
    emulated = replace(run, sittings=(replace(run.sittings[0], provenance="emulated"),))
    with pytest.raises(ResultsError, match="the baseline is emulated, the run measured"):
        judge(emulated, run, slower_by=0.05, more_errors=0.01)


def test_the_command_line_passes_refuses_and_prints_json(
    run: RawRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = str(store(run, tmp_path / "old"))
    new = str(store(slowed(run, "spec", 1.25), tmp_path / "new"))
    assert main(["gate", old, "--baseline", old]) == 0
    assert capsys.readouterr().out.endswith("passes\n")
    assert main(["gate", new, "--baseline", old, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["regressions"]
