"""Recognising a prompt's class behind the nonce."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiment.finding import Misuse
from lab.emulator.prompts import PromptClasses, last_user_text, load_classes

from .arms import OPEN_ENDED, PLAN, REPETITION


def _load(folder: Path, plan: object) -> PromptClasses:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    return load_classes(path)


def test_a_prompt_is_known_by_its_end(tmp_path: Path) -> None:
    classes = _load(tmp_path, PLAN)
    assert classes.of(f"[7f3a2c] {REPETITION}\n") == "repetition"
    assert classes.of(f"[7f3a2c] {OPEN_ENDED}") == "open-ended"
    assert classes.seed == 1


def test_an_unknown_prompt_is_open_ended(tmp_path: Path) -> None:
    assert _load(tmp_path, PLAN).of("What now?") == "open-ended"
    assert PromptClasses().of(REPETITION) == "open-ended"


def test_the_longest_known_prompt_wins(tmp_path: Path) -> None:
    prompts = [{"class": "code", "prompt": "line"}, {"class": "json", "prompt": "Repeat the line"}]
    assert _load(tmp_path, {"prompts": prompts}).of("[0] Repeat the line") == "json"


def test_classes_without_acceptance_are_named(tmp_path: Path) -> None:
    prompts = [{"class": "poems", "prompt": "Roses"}, {"class": "json", "prompt": "List"}]
    assert _load(tmp_path, {"prompts": prompts}).without_acceptance == ("poems",)


def test_the_last_user_message_counts_whether_text_or_parts() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "user", "content": [{"type": "text", "text": "last"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "so"},
    ]
    assert last_user_text(messages) == "last"
    assert last_user_text([{"role": "system", "content": "x"}]) == ""


@pytest.mark.parametrize(
    ("plan", "part"),
    [
        ([], "'prompts' is NoneType"),
        ({"prompts": {}}, "'prompts' is dict"),
        ({"prompts": [{"class": "json"}]}, "prompts[0] lacks a class or a text"),
        ({"prompts": [{"class": "json", "prompt": " "}]}, "prompts[0] lacks a class or a text"),
        ({"prompts": [{"prompt": "x"}]}, "prompts[0] lacks a class or a text"),
    ],
)
def test_a_broken_plan_is_refused_in_one_line(tmp_path: Path, plan: object, part: str) -> None:
    with pytest.raises(Misuse) as caught:
        _load(tmp_path, plan)
    assert part in str(caught.value)


def test_an_absent_or_undecodable_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="No such file"):
        load_classes(tmp_path / "none.json")
    (tmp_path / "half.json").write_text("{", encoding="utf-8")
    with pytest.raises(Misuse, match="no JSON"):
        load_classes(tmp_path / "half.json")
