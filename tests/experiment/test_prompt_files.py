"""`prompts: file:`: the user's own prompts as JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from experiment import InvalidExperiment, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Variation = Callable[[Callable[[dict[str, Any]], object]], Path]


def _with_file(variation: Variation, lines: list[str]) -> Path:
    path = variation(lambda data: data.update(prompts={"file": "mine.jsonl"}))
    (path.parent / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return path


def _line(number: int, **fields: Any) -> str:
    return json.dumps({"id": f"q{number}", "class": "mine", "prompt": f"Question {number}?", **fields})


def test_prompts_and_messages_are_read_with_their_own_limits(variation: Variation) -> None:
    lines = [_line(number) for number in range(7)]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    lines.append(json.dumps({"id": "chat", "class": "mine", "messages": messages, "max_tokens": 50}))
    prompts = load(_with_file(variation, lines)).prompts
    assert [prompt.messages for prompt in prompts[:2]] == [
        (("user", "Question 0?"),),
        (("user", "Question 1?"),),
    ]
    assert prompts[7].messages == (("system", "Be brief."), ("user", "Why?"))
    assert prompts[7].max_tokens == 50


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 9 of mine.jsonl.*is not JSON"),
        ("[1]", "is not a JSON object"),
        (_line(9, max_token=9), "has the key 'max_token'; did you mean `max_tokens`"),
        (json.dumps({"id": 1, "class": "mine", "prompt": "x"}), "`id` is 1; give printable ASCII"),
        (json.dumps({"id": "x", "prompt": "x"}), "`class` is missing"),
        (
            json.dumps({"id": "x", "class": "mine"}),
            "needs either `prompt` or `messages` and has only `class`, `id`",
        ),
        (_line(9, messages=[]), "needs either `prompt` or `messages`"),
        (json.dumps({"id": "x", "class": "mine", "messages": ["hi"]}), "`messages` is empty or malformed"),
        (_line(9, max_tokens=0), "`max_tokens` is 0"),
        (_line(9, max_tokens=True), "`max_tokens` is True"),
        ('{"id": "x", "class": "mine", "prompt": "\\ud800"}', "half a character"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps({"id": "x", "class": "d\u00e9j\u00e0", "prompt": "x"}), "`class` is .* printable ASCII"),
        (
            json.dumps({"id": "x", "class": "mine", "messages": [{"role": "system", "content": "x"}]}),
            "`messages` is empty or malformed",
        ),
        (_line(1), "id 'q1' stands 2 times"),
        (_line(9, prompt="y" * 500), "up to 500 prompt tokens"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(variation: Variation, line: str, words: str) -> None:
    with pytest.raises(InvalidExperiment, match=words):
        load(_with_file(variation, [*(_line(number) for number in range(8)), line]))


def test_every_wrong_line_is_reported_and_nothing_that_follows_from_it(variation: Variation) -> None:
    good = [_line(number) for number in range(7)]
    broken = [
        json.dumps({"id": "b1", "class": "mine", "text": "x"}),
        _line(8, max_tokens="9"),
        _line(9, max_tokens="9"),
    ]
    with pytest.raises(InvalidExperiment) as caught:
        load(_with_file(variation, [*good, *broken]))
    assert [problem.value for problem in caught.value.findings] == [
        f"line {number} of mine.jsonl" for number in (8, 9, 10)
    ]


def test_further_keys_of_a_line_are_not_read(variation: Variation) -> None:
    lines = [_line(number, source="ticket", note={"by": "me"}) for number in range(8)]
    assert len(load(_with_file(variation, lines)).prompts) == 8


def test_the_endpoint_of_the_experiment_decides_how_a_prompt_is_asked(variation: Variation) -> None:
    lines = [_line(number) for number in range(8)]
    path = _with_file(variation, lines)
    path.write_text(path.read_text().replace("endpoint: chat", "endpoint: completions"))
    assert load(path).prompts[0].text == "Question 0?"
    (path.parent / "mine.jsonl").write_text(
        "\n".join(
            [*lines, json.dumps({"id": "m", "class": "mine", "messages": [{"role": "user", "content": "x"}]})]
        )
    )
    with pytest.raises(InvalidExperiment, match=r"line 9 of mine.jsonl.*for endpoint completions"):
        load(path)


def test_long_files_are_judged_quickly_and_told_briefly(variation: Variation) -> None:
    many = [_line(number) for number in range(2000)]
    path = _with_file(variation, many)
    path.write_text(path.read_text().replace("requests: 32", "requests: 2000"))
    assert len(load(path).prompts) == 2000
    with pytest.raises(InvalidExperiment) as caught:
        load(_with_file(variation, ["{"] * 5000))
    assert len(caught.value.findings) < 30


def test_a_byte_order_mark_and_a_line_separator_inside_a_text_are_fine(variation: Variation) -> None:
    lines = [_line(number) for number in range(7)]
    lines.append(json.dumps({"id": "u", "class": "mine", "prompt": "one\u2028two"}, ensure_ascii=False))
    path = _with_file(variation, lines)
    (path.parent / "mine.jsonl").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert len(load(path).prompts) == 8
