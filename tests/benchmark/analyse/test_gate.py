"""The same plan measured twice: what became slower, and whether it may pass."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.benchmark.analyse.process import Process
from tests.benchmark.conftest import Captured
from tests.benchmark.records import answered, block, cautions, emulated, held, raw_run, store, summary_of
from tests.benchmark.streams.server import WORDS
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.analyse.gate import gate_run
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import REPEATED, RequestRecord
from trnspec.benchmark.measure.schedule import measured_blocks
from trnspec.operations.__main__ import main as trnspec

ENGINE = Process(conditional=(0.9,) * 4, k=4)


def finished(raw: RawRun) -> RawRun:
    """The same run with a held load, all of whose blocks have ended."""
    blocks = (
        block(-10.0, arm=one.arm, class_=one.class_, round=one.round, block=one.number)
        for round_ in (1, REPEATED)
        for one in measured_blocks(raw.plan, round_)
    )
    return held(replace(raw, blocks=tuple(blocks)))


OLD = finished(ENGINE.run())
PROMPT = {"id": "chat-0", "class": "chat", "prompt": "?"}
OTHER = {"name": "other", "url": "http://a/v1"}


def slowed(raw: RawRun, factor: float) -> RawRun:
    """The same run, with the decoding of `spec` so many times slower."""
    requests = [
        replace(r, chunk_s=tuple(r.chunk_s[0] + (at - r.chunk_s[0]) * factor for at in r.chunk_s))
        if r.arm == "spec"
        else r
        for r in raw.requests
    ]
    return replace(raw, requests=tuple(requests))


SLOWER, FASTER = slowed(OLD, 1.25), slowed(OLD, 0.8)


def row(found: dict[str, Any], arm: str) -> dict[str, Any]:
    return next(one for one in found["cells"] if (one["class"], one["arm"]) == ("chat", arm))


def judged(baseline: RawRun, run: RawRun, **limits: float) -> dict[str, Any]:
    return gate_run(baseline, run, **{"slower_by": 0.05, **limits})


def regressions(baseline: RawRun, run: RawRun, **limits: float) -> list[str]:
    texts: list[str] = judged(baseline, run, **limits)["regressions"]
    return texts


def test_an_arm_that_became_slower_is_found_and_the_others_are_not_blamed() -> None:
    found = judged(held(OLD), held(slowed(replace(ENGINE, seed=2).run(), 1.25)))
    spec = row(found, "spec")
    assert (spec["verdict"], spec["ratio"]) == ("slower", pytest.approx(1 / 1.25, rel=0.05))
    assert row(found, "steady")["verdict"] == "same"
    assert spec["old"] / spec["new"] == pytest.approx(spec["ratio"])
    (text,) = [one for one in regressions(OLD, SLOWER) if one.startswith("chat")]
    assert "spec: 25.0% more time per token" in text
    assert regressions(OLD, SLOWER, slower_by=0.5) == [], "tolerated, although it is shown"
    for new, verdict in ((OLD, "same"), (FASTER, "faster")):
        found = judged(held(OLD), held(new))
        assert [row(found, arm)["verdict"] for arm in ("spec", "steady")] == [verdict, "same"]
        assert (found["warnings"], regressions(OLD, new)) == ([], [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "another"}, "different models"),
        ({"prompts": [PROMPT]}, "different prompts: 16 differ, 'chat-0' first"),
        ({"concurrency": [7]}, "share no load"),
        ({"arms": [OTHER], "baseline": "other"}, "share no arm .old: steady, spec; new: other."),
        ({}, "the baseline is emulated, the run measured"),
    ],
)
def test_runs_that_say_nothing_about_each_other_are_refused(change: dict[str, Any], message: str) -> None:
    old = raw_run(answered()) if change else emulated(raw_run(answered()))
    with pytest.raises(ResultsError, match=message) as refusal:
        judged(old, raw_run(**change))
    assert "\n" not in str(refusal.value)


def test_what_else_differs_is_warned_of() -> None:
    old = raw_run(answered())
    found = judged(old, raw_run(answered(), max_tokens=99))
    assert found["warnings"] == ["max_tokens differs: 13 in the old run, 99 in the new one"]
    new = replace(old, sessions=(*old.sessions, replace(old.sessions[0], session=2, client="0.3.0")))
    (text,) = judged(old, new)["warnings"]
    assert text.startswith("client 0 measured the old run, client 0 and 0.3.0 the new one")
    assert judged(new, new)["warnings"] == []


@pytest.mark.parametrize("in_old", [True, False], ids=["made up before", "made up later"])
def test_what_an_emulator_made_up_is_not_judged_and_passes_no_gate(in_old: bool) -> None:
    old, new = (
        emulated(raw, **({"made_up": {"spec": ["chat"]}} if made_up else {}))
        for raw, made_up in ((OLD, in_old), (SLOWER, not in_old))
    )
    found = judged(held(old), held(new))
    assert (row(found, "spec")["verdict"], row(found, "spec")["ratio"]) == ("withheld", None)
    assert row(found, "steady")["verdict"] == "same"
    told = regressions(old, new, slower_by=0.5)
    assert any("chat" in text and "cannot be judged" in text for text in told)


def _spoilt(one: RequestRecord, spoil: str) -> RequestRecord:
    if one.arm == "spec" and spoil == "one piece":
        return replace(one, chunk_s=(1.0, 1.0))
    return replace(one, text="ha ha " * 300) if (one.arm, spoil) == ("spec", "loops") else one


@pytest.mark.parametrize(
    ("spoil", "why"), [("loops", "repeat themselves or are noise"), ("one piece", "they came in one piece")]
)
def test_an_arm_against_which_evidence_speaks_passes_no_gate(spoil: str, why: str) -> None:
    texts = {one.pair_id: " ".join(Random(one.pair_id).choices(WORDS, k=400)) for one in OLD.requests}
    sane = replace(OLD, requests=tuple(replace(one, text=texts[one.pair_id]) for one in OLD.requests))
    spoilt = replace(sane, requests=tuple(_spoilt(one, spoil) for one in sane.requests))
    assert regressions(sane, sane) == []
    for pair in ((sane, spoilt), (spoilt, sane)):
        (told,) = (text for text in regressions(*pair) if "cannot be judged" in text)
        assert ", spec: cannot be judged: run r1: " in told
        assert why in told
        assert row(judged(*pair), "spec")["verdict"] == "withheld"
        assert row(judged(*pair), "steady")["verdict"] == "same"


def test_more_failures_what_cannot_be_judged_and_an_arm_that_is_gone_do_not_pass() -> None:
    steady = [record for record in OLD.requests if record.arm == "steady"]
    lost = [replace(r, error="timeout") if r in steady[:3] else r for r in OLD.requests]
    worse = replace(OLD, requests=tuple(lost))
    assert [text.split(":")[0] for text in regressions(OLD, worse)] == ["steady"]
    assert regressions(worse, OLD) == []

    prompts = sorted({record.prompt_id for record in OLD.requests})[:3]
    asked = tuple(r for r in OLD.requests if r.prompt_id in prompts)
    few = regressions(OLD, replace(OLD, requests=asked, blocks=()))
    assert any("not finished" in text for text in few)
    assert any("too few to judge" in text for text in few)
    without = RawRun((replace(OLD.sessions[0], plan=OLD.plan.with_arms(["steady"])),), tuple(steady))
    assert "spec: is in the baseline, not in the run" in regressions(OLD, without)


def test_what_the_interval_shows_beyond_the_tolerance_does_not_pass_whatever_the_verdict() -> None:
    new = slowed(OLD, 1.035)
    assert row(judged(OLD, new), "spec")["verdict"] == "same"
    assert regressions(OLD, new) == []
    told = regressions(OLD, new, slower_by=0.02)
    assert told
    assert all("spec: 3.5% more time per token" in text for text in told)


@pytest.mark.parametrize(("minutes", "more", "cut"), [(2.0, 0, True), (2.0, 40, False), (None, 0, False)])
def test_cells_that_their_limit_cut_short_are_warned_of(minutes: float | None, more: int, cut: bool) -> None:
    plan = OLD.plan.model_copy(update={"cell_minutes": minutes})
    again = tuple(replace(one, pair_id=f"again/{one.pair_id}") for one in OLD.requests[:more])
    sessions = tuple(replace(one, plan=plan) for one in OLD.sessions)
    found = summary_of(replace(OLD, requests=(*OLD.requests, *again), sessions=sessions))
    assert any(text.startswith("cells ended after 2 minutes") for text in cautions(found)) == cut


def test_a_load_that_was_not_held_passes_no_gate_where_the_ratio_is_close_to_1() -> None:
    waves = replace(OLD, sessions=tuple(replace(one, held=False) for one in OLD.sessions))
    for baseline, run in ((OLD, slowed(waves, 1.085)), (waves, slowed(OLD, 1.085))):
        told = [text for text in regressions(baseline, run) if ", spec: " in text]
        assert told
        assert all("cannot be judged: a load was not held" in text for text in told)


def test_the_gate_ends_with_1_where_something_became_slower(tmp_path: Path, capsys: Captured) -> None:
    other = replace(OLD, sessions=(replace(OLD.sessions[0], client="9.9.9"),))
    runs = {"old": OLD, "new": SLOWER, "other": other}
    old, new, other_client = (str(store(raw, tmp_path / name)) for name, raw in runs.items())

    def said(*arguments: str) -> tuple[int, str]:
        act = trnspec if arguments[0] == "compare" else main
        return act(list(arguments)), capsys.readouterr().out

    code, shown = said("gate", other_client, "--baseline", old)
    _, warning, *_, last = shown.splitlines()
    assert (code, last) == (0, "passes")
    assert warning.startswith("warning: client 0 measured the old run, client 9.9.9")
    code, shown = said("gate", new, "--baseline", old, "--json")
    assert (code, *said("compare", old, new, "--json")) == (1, 1, shown)
    assert json.loads(shown)["regressions"]
    assert said("compare", old, new, "--max-slower", "90%")[0] == 0
    assert main(["gate", old, "--baseline", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
