from __future__ import annotations

import json
import random
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.analyse.process import DRAFT_S, PLAIN_S, VERIFY_S, Process
from tests.benchmark.conftest import Captured
from tests.benchmark.records import answered, counted_drafts, raw_run, recorded_run, store, summary_of
from trnspec.benchmark.__main__ import main
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.draft_cost import step_times
from trnspec.benchmark.analyse.window_advice import advise, forecast
from trnspec.benchmark.analyse.windows import AdviceOptions
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure.journal import read
from trnspec.benchmark.measure.raw_run import RawRun

DECAY = (0.93, 0.90, 0.86, 0.81, 0.75, 0.68, 0.60)
UPSTREAM = Process(conditional=DECAY, k=7, requests=64)
FUSED = replace(UPSTREAM, unused=1)
SHORT = replace(UPSTREAM, conditional=(0.95,) * 7, tokens=65)


def cell(raw: RawRun, **wishes: Any) -> dict[str, Any]:
    found: dict[str, Any] = advise(cells_of(raw), AdviceOptions(**wishes))["cells"][0]
    return found


def speed_ups(found: dict[str, Any]) -> list[float]:
    return [row["speed_up"] for row in found["by_k"]]


def truths(engine: Process) -> Any:
    return pytest.approx([engine.measured_speed_up(k) for k in range(1, 8)], rel=0.03)


@pytest.mark.parametrize("engine", [UPSTREAM, FUSED, SHORT], ids=["k+1 a step", "k a step", "cut answers"])
def test_one_run_at_the_largest_window_tells_of_every_smaller_one(engine: Process) -> None:
    found = cell(engine.run())
    assert speed_ups(found) == truths(engine)
    for k, row in enumerate(found["by_k"], start=1):
        assert (row["k"], row["tokens_per_step"]) == (k, pytest.approx(1 + sum(engine.survival(k)), rel=0.03))
        assert row["ci_low"] <= row["speed_up"] <= row["ci_high"]
    assert found["draft_s"] == pytest.approx(DRAFT_S, rel=0.02)
    assert found["unused_drafts"] == engine.unused
    chosen, best = found["recommended_k"], max(range(1, 8), key=engine.measured_speed_up)
    assert chosen <= best
    assert engine.measured_speed_up(chosen) > 0.98 * engine.measured_speed_up(best)


def in_one_packet(raw: RawRun, arms: tuple[str, ...]) -> RawRun:
    """The same run, where one packet brought some answers of these arms: their tokens are known, their time is not."""
    requests = [
        replace(one, chunk_s=(one.chunk_s[-1],) * len(one.chunk_s))
        if one.arm in arms and one.pair_id.endswith("31" if one.arm == "spec" else "32")
        else one
        for one in raw.requests
    ]
    return replace(raw, requests=tuple(requests))


@pytest.mark.parametrize("windows", [{7: "spec"}, {7: "spec", 3: "narrow"}], ids=["one arm", "two arms"])
@pytest.mark.parametrize("packed", [(), ("spec",), ("steady", "spec", "narrow")], ids=len)
def test_a_measured_window_has_the_speed_up_of_the_report(
    packed: tuple[str, ...], windows: dict[int, str]
) -> None:
    narrow_k = 3 if 3 in windows else None
    engine = replace(UPSTREAM, classes=("chat", "code"), requests=61, narrow_k=narrow_k)
    run = in_one_packet(engine.run(), packed)
    report = summary_of(run)
    told = advise(cells_of(run), AdviceOptions(timed_with=[*windows.values()]))
    cells = [cell for cell in [*told["cells"], *told["mixes"]] if cell["arm"] == "spec"]
    assert [cell.get("class") for cell in cells] == ["chat", "code", None]
    for cell, k in product(cells, windows):
        where = (cell.get("class"), windows[k], "tpot_s")
        rows = [*report["comparisons"], *({"metric": "tpot_s", **row} for row in report["mix"])]
        (own,) = (row for row in rows if (row["class"], row["treatment"], row["metric"]) == where)
        row = cell["by_k"][k - 1]
        assert row["speed_up"] == pytest.approx(own["ratio"], rel=1e-12)
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((own["ci_low"], own["ci_high"]))
        assert cell["together"] == own["together"]


@pytest.mark.parametrize("fixed_s", [0.0, 0.3 * PLAIN_S, 0.5 * PLAIN_S])
def test_one_timed_window_names_those_it_cannot_tell_apart_and_a_second_decides(fixed_s: float) -> None:
    """A step line through one point: with a fixed part in it the true best window is another, and it is among those named."""
    engine = replace(UPSTREAM, conditional=(0.6, 0.5, 0.4, 0.4, 0.3, 0.3, 0.2), fixed_s=fixed_s, narrow_k=1)
    best, found = max(range(1, 8), key=engine.measured_speed_up), cell(engine.run())
    assert best in {*found["not_told_apart"], found["recommended_k"]}
    assert len(found["not_told_apart"]) > 1
    assert found["text"].startswith("cannot choose between ")
    assert f": time window {found['time_next']} too (--timed-with). " in found["text"]
    assert all(row["low"] <= engine.measured_speed_up(row["k"]) <= row["high"] for row in found["by_k"])
    told = cell(engine.run(), timed_with=["narrow"])
    assert told["not_told_apart"] == []
    assert "--timed-with" not in told["text"]
    assert speed_ups(told) == truths(engine)
    assert told["draft_s"] == pytest.approx(DRAFT_S, rel=0.05)
    assert told["verify_s"] == pytest.approx(VERIFY_S + fixed_s, rel=0.03)


def told_by(*words: str) -> dict[str, Any]:
    """What the command prints for a machine."""
    with redirect_stdout(StringIO()) as shown:
        assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(shown.getvalue())
    return found


def _advised(shares: list[float], points: dict[int, float]) -> dict[str, Any]:
    found: dict[str, Any] = forecast(
        {"a": shares}, AdviceOptions(step_times=step_times(points)), basis="a test"
    )
    (cell,) = found["cells"]
    return dict(cell)


FALLING = [0.8, 0.6, 0.4, 0.25, 0.15, 0.1, 0.06]


def test_a_second_window_decides_and_noise_is_used_too() -> None:
    assert _advised(FALLING, {0: 10.0, 7: 20.0})["not_told_apart"][-1] == 7
    assert _advised(FALLING, {0: 10.0, 3: 19.9, 7: 20.0})["not_told_apart"] == []
    steep = _advised(FALLING, {0: 0.010, 6: 0.019, 7: 0.022})
    assert steep["timed_s"] == {6: pytest.approx(0.019), 7: pytest.approx(0.022)}
    falling = _advised(FALLING, {0: 10.0, 1: 16.0, 3: 14.0, 7: 20.0})
    assert falling["timed_s"] == pytest.approx({1: 15.0, 3: 15.0, 7: 20.0}), (
        "no step is shorter with more drafts"
    )
    # A fixed part and later drafts that cost more: on the line window 2 is best, and where all is fixed, plain decoding.
    found = _advised([0.9, 0.73, 0.53, 0.35, 0.21, 0.11, 0.05, 0.02], {0: 1.0, 8: 4.5})
    assert {0, 2, 3, 4} <= set(found["not_told_apart"])
    # vllm#20780, EAGLE-3: the step of k = 3 alone is known, and k = 4, between two, was published as the fastest.
    found = _advised([0.79, 0.57, 0.43, 0.29, 0.24, 0.14, 0.08], {0: 7.07, 3: 11.4})
    assert {3, 4, 5} <= set(found["not_told_apart"])
    assert "window 4 " in found["text"]


def test_a_window_that_is_best_however_drafting_costs_is_recommended_alone_and_none_where_none_pays() -> None:
    sure = cell(replace(UPSTREAM, conditional=(0.99,) * 7).run())
    assert (sure["recommended_k"], sure["not_told_apart"]) == (7, [])
    assert cell(UPSTREAM.run(), timed_with=["spec"]) == cell(UPSTREAM.run()), "never with itself"
    found = cell(replace(FUSED, conditional=(0.1,) * 7).run())
    assert found["recommended_k"] == 0
    assert "keep plain decoding" in found["text"]


def measured_in(name: str, folder: Path) -> float:
    """The speed-up that a run at that window measured."""
    rows = summary_of(recorded_run(name, folder))["comparisons"]
    return float(next(row["ratio"] for row in rows if row["metric"] == "tpot_s"))


def test_one_window_of_a_convex_engine_spans_what_smaller_ones_were_measured_to_give(tmp_path: Path) -> None:
    # One H200: the first draft costs 5 ms, the next two 9 to 10 each, later ones 10 to 11.
    found = cell(recorded_run("e1-mid", tmp_path))
    rows = {row["k"]: row for row in found["by_k"]}
    for k, name in ((1, "e4-k1"), (3, "e4-k3")):
        assert rows[k]["low"] < measured_in(name, tmp_path) < rows[k]["high"]
        assert (rows[k]["ci_low"], rows[k]["ci_high"]) == (rows[k]["low"], rows[k]["high"])
    assert rows[7]["speed_up"] == pytest.approx(measured_in("e1-mid", tmp_path), rel=1e-12)
    both = "plain decoding and window 1"
    assert found["text"].startswith(f"cannot choose between {both}: time window 1 too (--timed-with). ")


@pytest.mark.parametrize("how", ["step times", "run", "run and arm"])
def test_a_second_window_of_a_convex_engine_is_used_and_predicts_the_others(how: str, tmp_path: Path) -> None:
    run = recorded_run("e1-mid", tmp_path)
    narrow, middle = (measured_in(name, tmp_path) for name in ("e4-k1", "e4-k3"))
    folder, extra_variance = str(tmp_path / "e1-mid"), str(tmp_path / "e4-k1")
    options = {
        "step times": ["--step-times", "0=0.0186,1=0.02414,7=0.08524"],
        "run": ["--timed-with", extra_variance],
        "run and arm": ["--timed-with", f"{extra_variance}:k1"],
    }[how]
    found = told_by("advise", folder, *options)["cells"][0]
    assert list(found["timed_s"]) == ["1", "7"]
    rows = {row["k"]: row for row in found["by_k"]}
    assert rows[1]["speed_up"] == pytest.approx(narrow, rel=0.03)
    assert rows[3]["speed_up"] == pytest.approx(middle, rel=0.04)
    assert rows[3]["low"] < middle < rows[3]["high"]
    assert rows[1]["ci_low"] < rows[1]["speed_up"] < rows[1]["ci_high"], "prompts differ, whatever the times"
    all_three = cell(run, timed_in=[(read(tmp_path / name), None) for name in ("e4-k1", "e4-k3")])
    assert (list(all_three["timed_s"]), all_three["not_told_apart"]) == ([1, 3, 7], [])
    assert all_three["recommended_k"] == 1


def test_what_cannot_be_used_of_another_run_is_named(tmp_path: Path, capsys: Captured) -> None:
    run = recorded_run("e1-mid", tmp_path)
    (note,) = advise(cells_of(run), AdviceOptions(timed_in=[(UPSTREAM.run(), None)]))["cells"][0]["notes"]
    assert (
        note
        == "The step time of spec of run r1 (window 7) is not used: it was not measured at 4 concurrent requests."
    )
    drafting = [
        {"name": name, "url": f"http://{name}/v1", "speculative_tokens": 1} for name in ("steady", "spec")
    ]
    no_plain = raw_run(
        answered(concurrency=4), answered("spec", concurrency=4), arms=drafting, concurrency=[4]
    )
    notes = advise(cells_of(run), AdviceOptions(timed_in=[(no_plain, "spec")]))["cells"][0]["notes"]
    assert notes == [
        "The step time of spec of run r1 (window 1) is not used: it was not measured at 4 concurrent requests."
    ]
    store(replace(UPSTREAM, narrow_k=1).run(), tmp_path / "both")
    assert main(["advise", str(tmp_path / "both")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "same draft, use --timed-with ARM: spec (window 7), narrow (window 1)" in shown


@pytest.mark.parametrize("fixed", [0.0, 0.4, 1.0], ids=["from the first draft on", "a fixed part", "flat"])
@pytest.mark.parametrize("power", [0.6, 1.0, 1.3, 1.8], ids=["concave", "linear", "convex", "steep"])
def test_other_windows_lie_in_the_range_whatever_a_draft_costs(fixed: float, power: float) -> None:
    def truth_s(k: int) -> float:
        return 0.02 * (1 + (fixed + (1 - fixed) * (k / 8) ** power)) if k else 0.02

    for windows in ([8], [1, 8], [3, 8], [1, 3, 8], [3]):
        found = _advised([0.8**k for k in range(1, 9)], {k: truth_s(k) for k in (0, *windows)})
        for row in found["by_k"]:
            speed_up = row["speed_up"] * row["step_s"] / truth_s(row["k"])
            assert row["low"] * 0.999 < speed_up < row["high"] * 1.001, (windows, row["k"])
            if row["k"] in windows:
                assert row["step_s"] == pytest.approx(truth_s(row["k"]))
        steps = [row["step_s"] for row in found["by_k"]]
        assert steps == sorted(steps), "monotone"


def test_the_servers_counters_predict_as_chunks_do() -> None:
    run, dice = UPSTREAM.run(), random.Random(8)
    steps = [step for _ in range(300) for step in replace(UPSTREAM, tokens=2000).steps(dice)]
    survivors = [sum(step > drafts for step in steps) for drafts in range(1, 8)]
    counted = counted_drafts(steps=len(steps), accepted=sum(steps) - len(steps), survivors=survivors)
    # Chunks that the network merged: useless as steps, and not needed.
    merged = tuple(
        replace(r, chunk_s=(r.chunk_s[0], r.chunk_s[-1]), chunk_tokens=(1, 255)) if r.arm == "spec" else r
        for r in run.requests
    )
    found = cell(replace(run, requests=merged, blocks=(counted,)))
    assert found["source"] == "server counters"
    assert speed_ups(found) == truths(UPSTREAM)


def test_step_times_of_another_machine_go_with_the_acceptance_of_a_run_or_of_a_file() -> None:
    times = step_times({0: 0.02, 4: 0.03})
    row = cell(UPSTREAM.run(), step_times=times)["by_k"][3]
    expected = (1 + sum(UPSTREAM.survival(7)[:4])) * 0.02 / 0.03
    assert row["speed_up"] == pytest.approx(expected, rel=0.03)
    assert row["ci_low"] < row["speed_up"]
    found = cell(UPSTREAM.run(), step_times=times, unused_drafts=1)["by_k"]
    assert [one["k"] for one in found] == list(range(1, 9)), "which yields k tokens, needs one draft more"
    assert found[0]["tokens_per_step"] == 1.0

    wishes = AdviceOptions(step_times=step_times({0: 0.045, 7: 0.0926}), unused_drafts=1)
    said = forecast({"code": [0.9, 0.8], "prose": [0.4, 0.1]}, wishes, basis="a file")
    assert (said["origin"], said["step_times"]) == ("predicted", "as given, of another machine")
    code, prose = said["cells"]
    assert [row["tokens_per_step"] for row in code["by_k"]] == pytest.approx([1.0, 1.9, 2.7])
    assert code["by_k"][0]["ci_low"] is None
    assert (code["recommended_k"], prose["recommended_k"]) == (3, 2)

    wishes = AdviceOptions(step_times=step_times({0: 0.04, 2: 0.04}), mix={"code": 3.0, "prose": 1.0})
    (mix,) = forecast({"code": [1.0], "prose": [0.0]}, wishes, basis="a file")["mixes"]
    assert mix["weights"] == {"code": 0.75, "prose": 0.25}, "by tokens"
    assert mix["by_k"][0]["speed_up"] == pytest.approx(1 / (0.75 / 2 + 0.25))


def test_step_times_that_replace_the_runs_own_or_cannot_be_right_are_named() -> None:
    run = replace(UPSTREAM, narrow_k=1).run()
    replaced = "The step times of spec and narrow in this run are not used: --step-times replaces them."
    assert advise(cells_of(run), AdviceOptions(step_times=step_times({0: 0.02, 7: 0.03})))["notes"] == [
        replaced
    ]
    wishes = AdviceOptions(step_times=step_times({0: 0.0186, 1: 0.01}))
    short = "--step-times: a step of window 1 (10.0 ms) cannot be shorter than a plain step (18.6 ms). Check both."
    assert advise(cells_of(run), wishes)["notes"] == [short, replaced]
    assert forecast({"code": [0.9]}, wishes, basis="a file")["notes"] == [short]


def test_each_measured_load_has_its_window() -> None:
    often = replace(UPSTREAM, k=1, conditional=(0.9,))
    engines = {1: often, 4: replace(often, conditional=(0.05,))}
    records = [
        replace(record, concurrency=load, pair_id=f"{load}/{record.pair_id}")
        for load, engine in engines.items()
        for record in engine.run().requests
    ]
    run = raw_run(*records, **often.run().plan.to_dict() | {"concurrency": [*engines]})
    (by_load,) = advise(cells_of(run))["by_load"]
    assert by_load["windows"] == [{"load": 1, "k": 1}, {"load": 4, "k": 0}]
    assert by_load["text"] == "1: window 1, 4: plain decoding"


TWO_PLAIN = [{"name": name, "url": f"http://{name}/v1"} for name in ("steady", "spec")]


@pytest.mark.parametrize(
    ("run", "wishes", "message"),
    [
        (UPSTREAM.run(), AdviceOptions(timed_with=["steady"]), "--timed-with: 'steady' is not an arm of the run that drafts; give one of spec, or the folder"),
        (UPSTREAM.run(), AdviceOptions(timed_in=[(raw_run(answered(), arms=TWO_PLAIN), None)]), "--timed-with: no arm drafts in run r1, whose arms are steady, spec"),
        (UPSTREAM.run(), AdviceOptions(timed_in=[(UPSTREAM.run(), "steady")]), "--timed-with: 'steady' is not an arm that drafts"),
        (UPSTREAM.run(), AdviceOptions(mix={"poems": 1.0}), "nothing is known of 'poems'; known are chat"),
        (raw_run(answered(), arms=TWO_PLAIN), AdviceOptions(), "no arm is declared to draft"),
        (raw_run(answered(), answered("spec", chunk_tokens=None)), AdviceOptions(), "how many drafts are accepted by position is not known")
    ],
    ids=["plain arm", "plain run", "plain arm elsewhere", "unknown class", "no window", "untold"]
)  # fmt: skip
def test_what_cannot_be_advised_is_refused(run: RawRun, wishes: AdviceOptions, message: str) -> None:
    with pytest.raises(ResultsError, match=message):
        advise(cells_of(run), wishes)


def test_the_verb_predicts_from_a_run_and_from_its_summary(tmp_path: Path, capsys: Captured) -> None:
    store(FUSED.run(), tmp_path)
    assert main(["advise", str(tmp_path), "--mix", "chat=1"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("PREDICTED from run r1")
    assert "Mix of chat 100%" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert main(["advise", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["recommended_k"] >= 4

    given = tmp_path / "summary.json"
    given.write_text(json.dumps(summary_of(UPSTREAM.run())))
    times = f"0={PLAIN_S},7={VERIFY_S + 7 * DRAFT_S}"
    assert main(["advise", "--acceptance", str(given), "--step-times", times, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["origin"] == "predicted"
    assert said["cells"][0]["by_k"][3]["speed_up"] == pytest.approx(UPSTREAM.speed_up(4), rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give either DIR or --acceptance FILE"),
        ("run --acceptance x", "give either DIR or --acceptance FILE"),
        ("--acceptance x", "needs --step-times"),
        ("x --timed-with n --step-times 0=1,7=2", "--timed-with: adds to the step times"),
        ("--acceptance nowhere.json --step-times 0=1,7=2", "nowhere.json: cannot be read: No such file"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: str, message: str, capsys: Captured) -> None:
    assert main(["advise", *arguments.split()]) == 2
    assert message in capsys.readouterr().err
