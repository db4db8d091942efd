"""The forecast: bounds that cannot be crossed, evidence that must suffice, and what is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment import Experiment
from experiment.expected import expected_of
from experiment.finding import Misuse
from operations.__main__ import main
from operations.forecast import (
    Prediction,
    measured,
    of_file,
    predict,
    published,
)
from tests.conftest import REFERENCE

ALL = [1.0] * 7
NONE = [0.0] * 7


def _file(folder: Path, shares: dict[str, list[float]]) -> Path:
    path = folder / "acceptance.json"
    path.write_text(json.dumps(shares), encoding="utf-8")
    return path


def _predict(
    experiment: Experiment, folder: Path, shares: dict[str, list[float]], **points: Any
) -> tuple[Prediction, ...]:
    arm = experiment.arms[1]
    steps = measured({0: 0.045, 7: 0.09}, 7) if points.get("own") else published(expected_of(experiment, arm))
    return predict(experiment, arm, steps=steps, advice=of_file(_file(folder, shares)), mix=None)


def test_perfect_acceptance_gives_the_ceiling_of_a_healthy_baseline(
    reference: Experiment, tmp_path: Path
) -> None:
    (one,) = _predict(reference, tmp_path, {"repetition": ALL})
    assert one.tokens_per_step == 7, "k drafts yield k tokens on this runtime, not k + 1"
    assert one.speed_up == pytest.approx(2.0, abs=0.1)
    assert 1 < one.low < one.speed_up < one.high
    assert one.verdict == "pays"


def test_a_draft_that_is_never_right_cannot_pay(reference: Experiment, tmp_path: Path) -> None:
    (one,) = _predict(reference, tmp_path, {"noise": NONE})
    assert one.high < 1
    assert one.verdict == "does not pay"
    assert one.repaid_after_million_tokens(72.0) is None


def test_step_times_of_ones_own_leave_no_bounds_and_give_the_plain_arithmetic(
    reference: Experiment, tmp_path: Path
) -> None:
    (one,) = _predict(reference, tmp_path, {"half": ALL}, own=True)
    assert one.low == one.speed_up == one.high == pytest.approx(7 * 0.045 / 0.09)
    # Half a trn2.48xlarge at $35.76 an hour, four sequences, one token each in 45 ms.
    assert one.baseline_usd_per_million == pytest.approx(17.88 / (4 / 0.045 * 3600) * 1e6)
    assert one.usd_per_million == pytest.approx(one.baseline_usd_per_million / one.speed_up)


def test_one_timed_window_beside_the_arms_own_leaves_a_range() -> None:
    steps = measured({0: 0.0126, 3: 0.02}, 7)
    assert steps.fast.step_s(7) == pytest.approx(0.02)
    assert steps.slow.step_s(7) == pytest.approx(0.0126 + 7 / 3 * 0.0074)
    same = measured({0: 0.0126, 7: 0.02}, 7)
    assert same.slow.step_s(7) == same.fast.step_s(7)


def test_a_drafted_step_shorter_than_the_plain_one_is_refused() -> None:
    with pytest.raises(Misuse, match=r"--step-times 7=1e-06: is shorter than the plain step of 0.01 s"):
        measured({0: 0.01, 7: 1e-6}, 7)


def test_a_mixture_lies_between_its_classes(reference: Experiment, tmp_path: Path) -> None:
    best, worst, both = _predict(reference, tmp_path, {"a": ALL, "b": NONE})
    assert both.class_name == "all classes"
    assert worst.speed_up < both.speed_up < best.speed_up
    assert worst.tokens_per_step < both.tokens_per_step < best.tokens_per_step


def test_acceptance_that_ends_before_the_window_is_refused(reference: Experiment, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"short: acceptance is known up to k = 4, the arm drafts 7"):
        _predict(reference, tmp_path, {"short": [0.9, 0.8, 0.7]})


def test_no_step_times_are_guessed_beyond_what_is_published(reference: Experiment) -> None:
    arm = reference.arms[1]
    other = replace(arm, serving=arm.serving.model_copy(update={"max_num_seqs": 8}))
    with pytest.raises(Misuse, match=r"more than 4 sequences .* times the formula.*; give --step-times"):
        published(expected_of(reference, other))


def test_the_command_prints_a_range_a_price_and_what_finding_out_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, {"structured": ALL, "open-ended": [0.5, 0.2, 0.1, 0.0, 0.0, 0.0]})
    assert main(["forecast", str(REFERENCE), "--acceptance", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PREDICTED for qwen-sd-vllm of qwen3-32b (k = 7)")
    assert "nothing ran on Trn2" in out
    assert "structured" in out
    assert "all classes" in out
    assert "qwen-sd-vllm" in out, "what is expected of each arm"
    assert all(len(line) <= 100 for line in out.splitlines()[3:])


def test_exit_1_when_it_pays_for_no_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, {"noise": NONE})
    assert main(["forecast", str(REFERENCE), "--acceptance", str(path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["origin"] == "predicted"
    assert said["classes"][0]["verdict"] == "does not pay"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--acceptance", "nowhere.json"], "nowhere.json"),
        (["--acceptance", "{file}", "--arm", "qwen-vllm"], "has no such arm that speculates"),
        (["--run", "nowhere"], "nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, {"structured": ALL})
    assert main(["forecast", str(REFERENCE), *(word.format(file=path) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
