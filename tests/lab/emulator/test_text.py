"""Answers are made up, reproducible, of the length asked for, and cut where asked."""

from __future__ import annotations

import pytest

from lab.emulator.text import NATURAL_LENGTH_TOKENS, prompt_tokens, write_answer

CLASSES = sorted(NATURAL_LENGTH_TOKENS)


@pytest.mark.parametrize("prompt_class", [*CLASSES, "poems"])
@pytest.mark.parametrize("max_tokens", [1, 64, 600])
def test_an_answer_has_max_tokens_pieces_of_text(prompt_class: str, max_tokens: int) -> None:
    answer = write_answer("[7f3a2c] Do: it", prompt_class, max_tokens=max_tokens)
    assert len(answer.pieces) == max_tokens
    assert all(piece.strip() for piece in answer.pieces)
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("prompt_class", CLASSES)
def test_an_answer_ends_by_itself_beyond_its_natural_length_unless_told_not_to(prompt_class: str) -> None:
    natural = NATURAL_LENGTH_TOKENS[prompt_class]
    answer = write_answer("p", prompt_class, max_tokens=natural + 1)
    assert (len(answer.pieces), answer.finish_reason) == (natural, "stop")
    forced = write_answer("p", prompt_class, max_tokens=natural + 1, ignore_eos=True)
    assert (len(forced.pieces), forced.finish_reason) == (natural + 1, "length")


@pytest.mark.parametrize("prompt_class", CLASSES)
def test_the_same_prompt_has_the_same_text_and_more_tokens_continue_it(prompt_class: str) -> None:
    short = write_answer("p", prompt_class, max_tokens=20)
    assert short == write_answer("p", prompt_class, max_tokens=20)
    assert write_answer("p", prompt_class, max_tokens=40).pieces[:20] == short.pieces


def test_open_ended_answers_differ_from_prompt_to_prompt() -> None:
    assert write_answer("p", "open-ended", max_tokens=20) != write_answer("q", "open-ended", max_tokens=20)


def test_a_repetition_repeats_the_line_after_the_colon() -> None:
    pieces = write_answer("[00ff00] Repeat exactly twice: to be", "repetition", max_tokens=4).pieces
    assert "".join(pieces) == "to be\nto be"


def test_a_stop_string_ends_the_text_before_it_and_the_tokens_after_it() -> None:
    answer = write_answer("p", "numeric", max_tokens=50, stop=["zzz", " 3"])
    assert "".join(answer.pieces) == "1, 2,"
    assert (len(answer.pieces), answer.finish_reason) == (3, "stop")
    assert write_answer("p", "numeric", max_tokens=2, stop=[" 3"]).finish_reason == "length"


def test_prompt_tokens_are_a_quarter_of_the_bytes_rounded_up() -> None:
    assert [prompt_tokens(text) for text in ("", "a", "abcd", "abcde", "ä" * 4)] == [1, 1, 1, 2, 2]
