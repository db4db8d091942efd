from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.__main__ import main
from benchmark.analyse.two_runs import compare_runs, judge
from benchmark.errors import ResultsError
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RunRecord
from tests.benchmark.analyse.acceptance.process import Process
from tests.benchmark.records import answered, raw_run, store

ENGINE = Process(conditional=(0.9,) * 4, k=4)


def slowed(raw: RawRun, arm: str, factor: float) -> RawRun:
    """The same run, with one arm's decoding so many times slower."""
    return replace(
        raw,
        requests=tuple(
            replace(r, chunk_s=tuple(r.chunk_s[0] + (at - r.chunk_s[0]) * factor for at in r.chunk_s))
            if r.arm == arm
            else r
            for r in raw.requests
        ),
    )


def row(found: dict[str, Any], arm: str) -> dict[str, Any]:
    return next(one for one in found["arms"] if (one["class"], one["arm"]) == ("chat", arm))


def test_an_arm_that_became_slower_is_found_and_the_others_are_not_blamed() -> None:
    found = compare_runs(ENGINE.run(), slowed(replace(ENGINE, seed=2).run(), "spec", 1.25))
    assert row(found, "spec")["verdict"] == "slower"
    assert row(found, "spec")["ratio"] == pytest.approx(1 / 1.25, rel=0.05)
    assert row(found, "steady")["verdict"] == "equivalent"
    (gain,) = [one for one in found["speed_ups"] if one["class"] == "chat"]
    assert gain["verdict"] == "slower"
    assert gain["new"] / gain["old"] == pytest.approx(gain["ratio"])
    assert len(found["slower"]) == 2


def test_the_same_run_twice_is_equivalent() -> None:
    found = compare_runs(ENGINE.run(), ENGINE.run())
    assert {one["verdict"] for one in (*found["arms"], *found["speed_ups"])} == {"equivalent"}
    assert (found["slower"], found["warnings"]) == ([], [])


def test_becoming_faster_is_nothing_to_complain_of() -> None:
    found = compare_runs(ENGINE.run(), slowed(ENGINE.run(), "spec", 0.8))
    assert row(found, "spec")["verdict"] == "faster"
    assert found["slower"] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "another"}, "different models"),
        (
            {"prompts": [{"id": "chat-0", "class": "chat", "prompt": "?"}]},
            "different prompts: 12 differ, 'chat-0' first",
        ),
        ({"concurrency": [7]}, "share no load"),
        (
            {"arms": [{"name": "other", "url": "http://a/v1"}], "baseline": "other"},
            "share no arm .old: steady, spec; new: other.",
        ),
    ],
)
def test_runs_that_say_nothing_about_each_other_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ResultsError, match=message) as refusal:
        compare_runs(raw_run(answered()), raw_run(answered(), **change))
    assert "\n" not in str(refusal.value)


def test_what_else_differs_is_warned_of() -> None:
    found = compare_runs(raw_run(answered()), raw_run(answered(), max_tokens=99))
    assert found["warnings"] == ["max_tokens differs: 13 in the old run, 99 in the new one"]


def test_speed_ups_over_different_baselines_are_not_compared() -> None:
    found = compare_runs(raw_run(answered()), raw_run(answered(), baseline="spec"))
    assert found["speed_ups"] == []
    assert "the baselines differ (steady, spec)" in found["warnings"][0]


def test_the_verb_ends_with_1_where_something_became_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    store(ENGINE.run(), old)
    store(slowed(ENGINE.run(), "spec", 1.5), new)
    assert main(["compare", str(old), str(old)]) == 0
    capsys.readouterr()
    assert main(["compare", str(old), str(new)]) == 1
    shown = capsys.readouterr().out
    assert "spec is slower" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert main(["compare", str(old), str(new), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["slower"]
    assert main(["compare", str(old), str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("in_old", [True, False], ids=["made up before", "made up later"])
def test_what_an_emulator_made_up_is_not_judged_and_passes_no_gate(in_old: bool) -> None:
    before, after = (
        replace(raw, sittings=_emulated(raw)) for raw in (ENGINE.run(), slowed(ENGINE.run(), "spec", 1.25))
    )
    made_up = replace(before if in_old else after, sittings=_emulated(before, made_up={"spec": ["chat"]}))
    old, new = (made_up, after) if in_old else (before, made_up)
    found = compare_runs(old, new)
    assert (row(found, "spec")["verdict"], row(found, "spec")["ratio"]) == ("not judged", None)
    assert row(found, "steady")["verdict"] == "equivalent"
    (gain,) = [one for one in found["speed_ups"] if one["class"] == "chat"]
    assert gain["verdict"] == "not judged"
    assert not [text for text in found["slower"] if "chat" in text]
    told = judge(old, new, slower_by=0.5, more_errors=0.5)["regressions"]
    assert any("chat" in text and "cannot be judged" in text for text in told)


def _emulated(raw: RawRun, **changes: Any) -> tuple[RunRecord, ...]:
    return tuple(replace(one, provenance="emulated", **changes) for one in raw.sittings)


NOISY = Process(conditional=(0.9,) * 4, k=4)


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
    return NOISY.run()


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
