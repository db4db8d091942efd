"""A prompt's class is recognised behind the nonce; answers are made up, reproducible, and of the length asked for."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import ROOT
from tests.lab.emulator.arms import OPEN_ENDED, PLAN, REPETITION, plan_of
from trnspec.lab.emulator.payloads import (
    NATURAL_LENGTH_TOKENS,
    PromptClasses,
    load_classes,
    prompt_tokens,
    write_answer,
)
from trnspec.lab.emulator.timings import CONDITIONAL_ACCEPTANCE


def _load(folder: Path, plan: object) -> PromptClasses:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    return load_classes(path)


def test_a_prompt_is_known_by_its_end_the_longest_known_one_wins_and_an_unknown_one_is_open_ended(
    tmp_path: Path,
) -> None:
    classes = _load(tmp_path, PLAN)
    assert classes.of(f"[7f3a2c] {REPETITION}\n") == "repetition"
    assert classes.of(f"[7f3a2c] {OPEN_ENDED}") == "open-ended"
    assert classes.of("What now?") == PromptClasses().of(REPETITION) == "open-ended"
    assert classes.seed == 1
    prompts = [{"class": "poems", "prompt": "line"}, {"class": "json", "prompt": "Repeat the line"}]
    classes = _load(tmp_path, plan_of(prompts))
    assert (classes.of("[0] Repeat the line"), classes.of("[0] A line")) == ("json", "poems")


def test_acceptance_is_known_of_shipped_prompts_whatever_their_class_is_called(tmp_path: Path) -> None:
    lines = [
        json.loads(line)
        for path in (ROOT / "experiments/prompts").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    for class_ in dict.fromkeys(one["class"] for one in lines):
        own = [one["prompt"] for one in lines if one["class"] == class_]
        renamed = _load(tmp_path, plan_of([{"class": "mine", "prompt": text} for text in own]))
        assert {renamed.drafted_as(f"[0] {text}") for text in own} == {class_}
        assert (renamed.beyond([class_]), renamed.beyond(["other"])) == ([], ["mine"])
        mixed = _load(tmp_path, plan_of([{"class": class_, "prompt": text} for text in (own[0], "My own.")]))
        assert mixed.drafted_as("[0] My own.") == "open-ended"
        assert mixed.beyond([*dict.fromkeys(one["class"] for one in lines)]) == [class_]


def test_an_answer_has_as_many_pieces_as_asked_for_and_ends_by_itself_unless_told_not_to() -> None:
    natural = NATURAL_LENGTH_TOKENS
    for prompt_class in (*CONDITIONAL_ACCEPTANCE, "poems"):
        for max_tokens in (1, 64, natural):
            answer = write_answer("[7f3a2c] Do: it", prompt_class, max_tokens=max_tokens)
            assert (len(answer.pieces), answer.finish_reason) == (max_tokens, "length")
            assert all(piece.strip() for piece in answer.pieces)
        answer = write_answer("p", prompt_class, max_tokens=natural + 1)
        assert (len(answer.pieces), answer.finish_reason) == (natural, "stop")
        forced = write_answer("p", prompt_class, max_tokens=natural + 1, ignore_eos=True)
        assert (len(forced.pieces), forced.finish_reason) == (natural + 1, "length")
        assert forced.pieces[:natural] == answer.pieces, "more tokens continue the same text"
    assert write_answer("q", "open-ended", max_tokens=20) != write_answer("p", "open-ended", max_tokens=20)
    echoed = write_answer("[00ff00] Repeat exactly twice: to be", "repetition", max_tokens=4)
    assert "".join(echoed.pieces) == "to be\nto be"


def test_a_prompt_has_a_token_for_each_four_bytes_begun_and_one_at_least() -> None:
    assert [prompt_tokens(text) for text in ("", "a", "abcd", "abcde", "ä" * 4)] == [1, 1, 1, 2, 2]
