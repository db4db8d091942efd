"""`step` and `published`: forecasts of engines that stand in no file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiment.__main__ import main
from experiment.catalogue.models import MODELS
from experiment.catalogue.published import DRAFTED, PLAIN
from experiment.model_config import wanted_config

ASK = ["step", "--tensor-parallel", "4", "--tokens", "2048", "--model"]


def test_a_configuration_gives_what_the_name_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(wanted_config(MODELS["Qwen/Qwen3-8B"])), encoding="utf-8")
    assert main([*ASK, "Qwen/Qwen3-8B"]) == 0
    by_name = capsys.readouterr().out
    assert main([*ASK, str(path)]) == 0
    assert capsys.readouterr().out == by_name
    assert by_name.startswith("PREDICTED: a plain step takes ")
    path.write_text(json.dumps({"num_experts": 128}), encoding="utf-8")
    assert main([*ASK, str(path)]) == 2
    error = capsys.readouterr().err
    assert re.search("has num_experts, and nothing is forecast .* openai/gpt-oss-120b", error)
    assert error.count("\n") == 1


def test_a_drafted_step_is_a_range_for_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--mode", "fused", "--draft", "Qwen/Qwen3-0.6B", "--json"]
    assert main([*ASK, "Qwen/Qwen3-8B", *words]) == 0
    drafted = json.loads(capsys.readouterr().out)["drafted"]
    assert 1 < drafted["low"] < drafted["likely"] < drafted["high"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["nowhere"], "is not a model that is known, and as a file it cannot be read"),
        (["openai/gpt-oss-120b"], "nothing is forecast for models with experts; published: 7.00 ms at TP 16"),
        (["x" * 5000], "is not a model that is known"),
        (["Qwen/Qwen3-8B", "--mode", "fused"], "needs --draft"),
        (
            ["Qwen/Qwen3-8B", "--mode", "eagle3", "--at-once", "4"],
            "--at-once 4: a step of --batch 1 takes no more",
        ),
        (["Qwen/Qwen3-8B", "--mode", "fused", "--draft", "nowhere"], "--draft nowhere: is not a model"),
        (["Qwen/Qwen3-8B", "--batch", "0"], "'--batch': 0 is not in the range 1<=x<=4096"),
    ],
)
def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    assert main([*ASK, *more]) == 2
    assert words in capsys.readouterr().err


def test_published_lists_every_row_for_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["published", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["origin"] == "quoted"
    assert (len(said["plain"]), len(said["drafted"])) == (len(PLAIN), len(DRAFTED))
    assert all(row["source"] for row in (*said["plain"], *said["drafted"]))
