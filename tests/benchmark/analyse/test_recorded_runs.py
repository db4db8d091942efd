"""Runs that were recorded on a real accelerator, against what their servers counted (`tests/data/h200/README.md`)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.benchmark.records import cautions, recorded_run, summary_of
from tests.conftest import ROOT
from trnspec.benchmark.analyse.values import pooled
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.metrics import TPOT

RECORDED = ROOT / "tests" / "data" / "h200"
NEAR = (0.91, 1.10)
WITHIN = 0.02
NO_MARKS = "the load was not held while it was measured"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RawRun]:
    """The recordings."""
    folder = tmp_path_factory.mktemp("recorded")
    names = sorted(path.parent.name for path in RECORDED.glob("*/requests.jsonl.gz"))
    return {name: recorded_run(name, folder) for name in names}


@pytest.fixture(scope="module")
def summaries(recorded: dict[str, RawRun]) -> dict[str, dict[str, Any]]:
    """Of each recording, analysed today."""
    return {name: summary_of(raw) for name, raw in recorded.items()}


def truth(raw: RawRun, name: str) -> float:
    """The ratio by what the servers counted over the run: seconds of pauses over tokens after the first, less those of the
    warm-up's requests, which they counted too."""
    counted = json.loads((RECORDED / name / "truth.json").read_text(encoding="utf-8"))["delta"]
    tpot_s = []
    for arm, server in zip(
        raw.plan.arms, ("plain", next(key for key in counted if key != "plain")), strict=True
    ):
        warm = [one for one in raw.requests if one.arm == arm.name and one.phase == "warmup"]
        beside = pooled(warm, arm.max_tokens_per_step)
        assert beside
        own = counted[server]
        tokens = own["gen"] - own["first"] - beside.tokens
        tpot_s.append((own["itl_s"] - beside.span_s) / tokens)
    plain_s, drafted_s = tpot_s
    return float(plain_s / drafted_s)


def speed_ups(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in summary["comparisons"] if one["metric"] == TPOT.name]


@pytest.mark.parametrize(
    ("name", "counted", "verdict"),
    [
        ("e1-mid", 0.595, "slower"),
        ("e2-low", 0.315, "slower"),
        ("e4-k1", 1.254, "faster"),
        ("e4-k3", 1.024, "withheld"),
    ],
)
def test_at_four_at_once_the_ratio_is_what_the_servers_counted(
    recorded: dict[str, RawRun], summaries: dict[str, dict[str, Any]], name: str, counted: float, verdict: str
) -> None:
    (found,) = speed_ups(summaries[name])
    assert truth(recorded[name], name) == pytest.approx(counted, abs=0.0015)
    assert found["ratio"] == pytest.approx(counted, rel=WITHIN)
    assert found["ci_low"] < counted < found["ci_high"]
    assert (found["verdict"], found["one_start"]) == (verdict, False)
    (over_mix,) = summaries[name]["mix"]
    assert over_mix["verdict"] == verdict
    (why,) = summaries[name]["explanations"]
    assert why["tokens_per_step"] / why["step_time_ratio"] == pytest.approx(counted, rel=0.002), (
        "not by medians, as pauses are skewed"
    )


def test_a_server_measured_against_itself_is_as_fast_as_itself(summaries: dict[str, dict[str, Any]]) -> None:
    (found,) = speed_ups(summaries["e5-aa"])
    assert found["ratio"] == pytest.approx(1.0, abs=0.005)
    assert found["verdict"] == "withheld", "its load was not held"


def test_waves_that_were_fired_once_claim_nothing(summaries: dict[str, dict[str, Any]]) -> None:
    """Steady state says 0.95, 0.82 and 0.90 at 24, 48 and 64 at once; full and draining waves made 1.06, 1.06 and 1.04 of it,
    and a client of that time `pays at every load measured`."""
    summary = summaries["e3k1-list"]
    found = speed_ups(summary)
    assert [one["ratio"] for one in found] == pytest.approx([1.06, 1.06, 1.04], abs=0.01)
    assert {one["verdict"] for one in (*summary["comparisons"], *summary["mix"])} == {"withheld"}, (
        "by any metric"
    )
    assert all(one["p_value"] is None for one in found)
    assert summary["pays_up_to"] == []
    assert {at["advice"] for at in summary["advice"]} == {"cannot tell"}
    assert summary["sentence"].startswith("Cannot tell at every load, so keep plain: ")
    assert "The load was not held" in summary["sentence"]


def test_no_recording_without_marks_has_a_verdict_near_1(summaries: dict[str, dict[str, Any]]) -> None:
    assert len(summaries) == 6
    for summary in summaries.values():
        assert [NO_MARKS in warning for warning in cautions(summary)].count(True) == 1
        for one in (*summary["comparisons"], *summary["mix"]):
            if one["ratio"] is not None and NEAR[0] <= one["ratio"] <= NEAR[1]:
                assert one["verdict"] == "withheld"
