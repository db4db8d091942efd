"""The forecast: bounds that cannot be crossed, evidence that must suffice, and what is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiment import Experiment
from experiment.expected import expected_of
from experiment.finding import Misuse
from operations.__main__ import main
from operations.forecast import (
    Prediction,
    Steps,
    measured,
    of_file,
    predict,
    published,
)
from tests.conftest import NODE_USD, REFERENCE

ALL = [1.0] * 7
NONE = [0.0] * 7


def _file(folder: Path, shares: dict[str, list[float]]) -> Path:
    path = folder / "acceptance.json"
    path.write_text(json.dumps(shares), encoding="utf-8")
    return path


def _predict(experiment: Experiment, steps: Steps, path: Path) -> tuple[Prediction, ...]:
    return predict(experiment, experiment.arms[1], steps=steps, advice=of_file(path), mix=None)


def test_a_mixture_lies_between_the_ceiling_and_what_cannot_pay(
    reference: Experiment, tmp_path: Path
) -> None:
    steps = published(expected_of(reference, reference.arms[1]))
    best, worst, both = _predict(reference, steps, _file(tmp_path, {"a": ALL, "b": NONE}))
    assert best.tokens_per_step == 7, "k drafts yield k tokens on this runtime, not k + 1"
    assert best.speed_up == pytest.approx(2.0, abs=0.1)
    assert 1 < best.low < best.speed_up < best.high
    assert (best.verdict, worst.verdict, both.class_name) == ("pays", "does not pay", "all classes")
    assert worst.high < 1
    assert worst.repaid_after_million_tokens(72.0) is None
    assert worst.speed_up < both.speed_up < best.speed_up
    assert worst.tokens_per_step < both.tokens_per_step < best.tokens_per_step


def test_step_times_of_ones_own_leave_no_bounds_and_give_the_plain_arithmetic(
    reference: Experiment, tmp_path: Path
) -> None:
    steps = measured({0: 0.045, 7: 0.09}, 7)
    (one,) = _predict(reference, steps, _file(tmp_path, {"half": ALL}))
    assert one.low == one.speed_up == one.high == pytest.approx(7 * 0.045 / 0.09)
    # Half a trn2.48xlarge, four sequences, one token each in 45 ms.
    assert one.baseline_usd_per_million == pytest.approx(NODE_USD / 2 / (4 / 0.045 * 3600) * 1e6)
    assert one.usd_per_million == pytest.approx(one.baseline_usd_per_million / one.speed_up)


def test_step_times_beside_the_arms_own_leave_a_range_and_none_are_guessed(reference: Experiment) -> None:
    steps = measured({0: 0.0126, 3: 0.02}, 7)
    assert steps.fast.step_s(7) == pytest.approx(0.02)
    assert steps.likely.step_s(7) == pytest.approx(0.0126 + 7 / 3 * 0.0074)
    assert steps.slow.step_s(7) == pytest.approx(0.0126 + (7 / 3) ** 2 * 0.0074), (
        "each draft costs more than the one before"
    )
    with pytest.raises(Misuse, match=r"--step-times 7=1e-06: is shorter than the plain step of 0.01 s"):
        measured({0: 0.01, 7: 1e-6}, 7)
    arm = reference.arms[1]
    other = replace(arm, serving=arm.serving.model_copy(update={"max_num_seqs": 8}))
    with pytest.raises(Misuse, match=r"more than 4 sequences .* times the formula.*; give --step-times"):
        published(expected_of(reference, other))


def test_the_command_prints_a_range_and_a_price_and_ends_with_1_when_it_pays_for_no_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, {"structured": ALL, "open-ended": [0.5, 0.2, 0.1, 0.0, 0.0, 0.0]})
    assert main(["forecast", str(REFERENCE), "--acceptance", str(path)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("PREDICTED for qwen-sd-vllm of qwen3-32b (k = 7)")
    for words in ("nothing ran on Trn2", "structured", "all classes", "qwen-sd-vllm"):
        assert any(words in line for line in [first, *lines]), words
    assert all(len(line) <= 100 for line in lines[2:])
    path = _file(tmp_path, {"noise": NONE})
    assert main(["forecast", str(REFERENCE), "--acceptance", str(path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["origin"], said["classes"][0]["verdict"]) == ("predicted", "does not pay")


def test_wrong_input_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, short = tmp_path / "whole", tmp_path / "short"
    for folder, shares in ((whole, ALL), (short, [0.9, 0.8, 0.7])):
        folder.mkdir()
        _file(folder, {"code": shares})
    wrong = {
        f"--acceptance {short}/acceptance.json": "code: acceptance is known up to k = 4, the arm drafts 7",
        "--acceptance nowhere.json": "nowhere.json",
        f"--acceptance {whole}/acceptance.json --arm qwen-vllm": "has no such arm that speculates",
        "--run nowhere": "nowhere",
    }
    for words, message in wrong.items():
        assert main(["forecast", str(REFERENCE), *words.split()]) == 2
        error = capsys.readouterr().err
        assert (message in error, error.count("\n")) == (True, 1), error
