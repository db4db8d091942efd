"""`prompts: file:`: the user's own prompts, in the formats in which people have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment import InvalidExperiment, load
from experiment.__main__ import main
from experiment.arms import digest
from experiment.description import as_json, as_text
from tests.experiment.edits import Variation

_CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def _with_file(variation: Variation, lines: list[str]) -> Path:
    path = variation(lambda data: data.update(prompts={"file": "mine.jsonl"}))
    (path.parent / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return path


def _line(number: int, **fields: Any) -> str:
    return json.dumps({"id": f"q{number}", "class": "mine", "prompt": f"Question {number}?", **fields})


def test_entries_are_read_with_their_own_limits_and_further_keys_are_not(variation: Variation) -> None:
    lines = [_line(number, source="ticket", note={"by": "me"}) for number in range(7)]
    lines.append(json.dumps({"id": "chat", "class": "mine", "messages": _CONVERSATION, "max_tokens": 50}))
    lines.append(json.dumps({"id": "u", "class": "mine", "prompt": "one\u2028two"}, ensure_ascii=False))
    lines[0] = f"\ufeff{lines[0]}"
    experiment = load(_with_file(variation, lines))
    first, *_, chat, separated = experiment.prompts
    assert first.messages == (("user", "Question 0?"),)
    assert (chat.messages, chat.max_tokens) == ((("system", "Be brief."), ("user", "Why?")), 50)
    assert separated.messages == (("user", "one\u2028two"),)
    assert len(experiment.prompts) == 9
    assert digest(experiment) == digest(replace(experiment, prompt_format="")), "what a file is called"


def test_the_endpoint_of_the_experiment_decides_how_a_prompt_is_asked(variation: Variation) -> None:
    turns = [json.dumps(_mt_bench(number)) for number in range(16)]
    lines = [_line(number) for number in range(8)]
    for entries in (turns, lines):
        path = _with_file(variation, entries)
        path.write_text(path.read_text().replace("endpoint: chat", "endpoint: completions"))
        assert load(path).prompts[0].text == "Question 0?"
    lines.append(json.dumps({"id": "m", "class": "mine", "messages": _CONVERSATION}))
    (path.parent / "mine.jsonl").write_text("\n".join(lines))
    with pytest.raises(InvalidExperiment, match=r"line 9 of mine.jsonl.*for endpoint completions"):
        load(path)


def test_every_wrong_line_is_reported_and_alike_ones_once_with_their_number(variation: Variation) -> None:
    def places(lines: list[str]) -> list[str]:
        with pytest.raises(InvalidExperiment) as caught:
            load(_with_file(variation, lines))
        assert len(caught.value.findings) < 30
        return [f"{problem.value}: {problem.why}" for problem in caught.value.findings]

    broken = [
        json.dumps({"id": "b1", "class": "mine", "question": "x"}),
        _line(8, max_tokens="9"),
        _line(9, max_tokens="9"),
    ]
    found = places([*map(_line, range(7)), *broken])
    assert [one.partition(":")[0] for one in found] == [f"line {n} of mine.jsonl" for n in (8, 9, 10)]
    (problem,) = places(["Plain text."] * 5000)
    assert "is not JSON" in problem
    assert "4999 more entries have the same problem" in problem
    path = _with_file(variation, [_line(number) for number in range(2000)])
    path.write_text(path.read_text().replace("requests: 16", "requests: 2000"))
    assert len(load(path).prompts) == 2000


def test_turns_that_arrive_in_another_order_are_refused(variation: Variation) -> None:
    times = [*range(8), 5, 4]
    lines = [
        _line(n, at_s=at_s, **({"conversation": "talk"} if n > 7 else {})) for n, at_s in enumerate(times)
    ]
    with pytest.raises(
        InvalidExperiment, match=r"line 10 of mine.jsonl.*`at_s` is 4, and the turn before it has 5"
    ):
        load(_with_file(variation, lines))


def _mt_bench(number: int) -> dict[str, Any]:
    turns = [f"Question {number}?", "And why?"]
    return {"question_id": 81 + number, "category": ["writing", "math"][number % 2], "turns": turns}


def _shared(number: int) -> dict[str, Any]:
    said = [("system", "Be brief."), ("human", f"Question {number}?"), ("gpt", "Yes."), ("human", "Why?")]
    return {"id": f"s{number}_0", "conversations": [{"from": who, "value": what} for who, what in said]}


def _batch(number: int) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": f"Question {number}?"}], "max_tokens": 50}
    return {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def _text(number: int) -> dict[str, Any]:
    return {"text": f"Question {number}?"}


FORMATS: dict[str, tuple[Callable[[int], dict[str, Any]], str, str, str]] = {
    "Spec-Bench": (_mt_bench, "84", "math", "Spec-Bench format, first turns only"),
    "ShareGPT": (_shared, "s3_0", "mine", "ShareGPT format, first turns only"),
    "OpenAI batch": (_batch, "request-3", "mine", "OpenAI batch format"),
    "text": (_text, "mine-4", "mine", "JSON lines"),
}
"""An entry; what the fourth is called, its class; and what `check` says."""


@pytest.mark.parametrize("as_list", [False, True], ids=["lines", "list"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_recognised_from_its_content_and_can_be_printed_as_lines(
    variation: Variation, capsys: pytest.CaptureFixture[str], name: str, as_list: bool
) -> None:
    entry, id_, class_, said = FORMATS[name]
    entries = [entry(number) for number in range(16)]
    lines = [json.dumps(entries, indent=1)] if as_list else [f"{json.dumps(one)}\r" for one in entries]
    path = _with_file(variation, lines)
    experiment = load(path)
    assert len(experiment.prompts) == 16
    fourth = experiment.prompts[3]
    assert (fourth.id, fourth.class_name, fourth.messages) == (id_, class_, (("user", "Question 3?"),))
    assert fourth.max_tokens == (50 if name == "OpenAI batch" else None)
    text = " ".join(as_text(experiment).split())
    assert f"prompts 16 of {len(experiment.classes)} class" in text
    assert said in text
    assert as_json(experiment)["prompt_format"] == said
    mine = path.parent / "mine.jsonl"
    assert main(["prompts", str(mine)]) == 0
    mine.write_text(capsys.readouterr().out)
    assert load(path).prompts == experiment.prompts


BESIDE: dict[str, Callable[[str], list[str]]] = {
    "lines": lambda line: [*map(_line, range(8)), line],
    "Spec-Bench": lambda line: [*(json.dumps(_mt_bench(number)) for number in range(16)), line],
    "list": lambda entry: [f"[{', '.join(json.dumps(_shared(number)) for number in range(8))}, {entry}]"],
    "body": lambda body: [
        *(json.dumps(_batch(number)) for number in range(8)),
        f'{{"custom_id": "x", "body": {body}}}',
    ],
}
REFUSED = r"""
lines | {"prompt": "x", "at_s": NaN} | line 9 of mine.jsonl.*is not JSON
lines | {"messages": [{"role": "user", "content": "x", "n": 1e400}]} | line 9 of mine.jsonl.*is not JSON
lines | { | line 9 of mine.jsonl.*is not JSON
lines | {"prompt": "x", "max_token": 9} | has the key 'max_token'; did you mean `max_tokens`
lines | {"id": 1.5, "class": "mine", "prompt": "x"} | `id` is 1.5; give printable ASCII
lines | {"id": "x", "class": "other", "prompt": "x"} | add 7 more, or put its prompts into another
lines | {"id": "x", "class": "mine"} | needs either `prompt` or `messages` and has only `class`, `id`
lines | {"prompt": "x", "messages": []} | needs either `prompt` or `messages`
lines | {"id": "x", "class": "mine", "messages": ["hi"]} | `messages` is empty or malformed
lines | {"prompt": "x", "max_tokens": true} | `max_tokens` is True
lines | {"id": "x", "class": "mine", "prompt": "\ud800"} | half a character
lines | {"id": "x", "class": "d\u00e9j\u00e0", "prompt": "x"} | `class` is .* printable ASCII
lines | {"id": "x", "class": "mine", "messages": [{"role": "system", "content": "x"}]} | `messages` is empty or malformed
lines | {"id": "q1", "class": "mine", "prompt": "x"} | id 'q1' stands 2 times
lines | {"prompt": "x", "at_s": -1} | `at_s` is -1; give seconds from 0 to 2,678,400
lines | {"prompt": "x", "at_s": 1} | line 1 of mine.jsonl.*has no `at_s`, and other entries have; 7 more entries
lines | {"prompt": "x", "think_s": 1} | has `think_s`, but no turn is before it
lines | {"prompt": "x", "conversation": "\n", "at_s": 1} | `conversation` is .* give printable ASCII
Spec-Bench | {"conversations": [{"from": "human", "value": "Why?"}]} | line 17 of mine.jsonl.*is ShareGPT format.*began as Spec-Bench
Spec-Bench | {"turns": []} | `turns` has no first turn of the user: \[\]
Spec-Bench | {"turns": "Question?"} | `turns` has no first turn
Spec-Bench | {"question_id": null, "turns": ["Why?"]} | `question_id` is None
Spec-Bench | {"question_id": 7} | has only `question_id`; give one of them, or a known format
Spec-Bench | {} | and has no key
list | {"id": "x", "conversations": [{"from": "gpt", "value": "Yes."}]} | `conversations` has no first turn
list | {"id": "x", "conversations": {"from": "human"}} | `conversations` has no first turn
list | 7 | entry 9 of mine.jsonl.*is not a JSON object: 7
body | [] | line 9 of mine.jsonl.*`body` is \[\]
body | {"input": "x"} | needs either `prompt` or `messages` and has neither
body | {"prompt": ["x"]} | line 9 of mine.jsonl.*`prompt` is empty or malformed
body | {"prompt": "x", "max_tokens": 1.5} | `max_tokens` is 1.5
body | {"prompt": "x", "max_completion_token": 5} | did you mean `max_completion_tokens`
"""
"""In which file | the entry after those that are right | words of the line."""
LONG = [
    ("lines", "[" * 100_000, "is not JSON"),
    ("lines", _line(9, prompt="y" * 500), "up to 500 prompt tokens"),
]


@pytest.mark.parametrize("row", [*(line.split(" | ") for line in REFUSED.strip().splitlines()), *LONG])
def test_an_entry_that_cannot_be_asked_is_refused_with_its_place(
    variation: Variation, row: tuple[str, str, str]
) -> None:
    beside, entry, words = row
    with pytest.raises(InvalidExperiment, match=words):
        load(_with_file(variation, BESIDE[beside](entry)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no prompt"),
        (b"[]", "holds no prompt"),
        (b"[{]", "begins as a JSON list and is not JSON"),
        (b"[" * 100_000, "begins as a JSON list and is not JSON"),
        (json.dumps(_text(1)).encode("utf-16"), "is not UTF-8"),
        (None, "is larger than 16 MiB; give JSON lines or a JSON list"),
    ],
)
def test_a_file_without_prompts_or_of_a_gigabyte_is_refused_as_a_whole(
    variation: Variation, content: bytes | None, words: str
) -> None:
    path = _with_file(variation, [])
    with (path.parent / "mine.jsonl").open("wb") as file:
        file.truncate(2**30 if content is None else 0)
        file.write(content or b"")
    with pytest.raises(InvalidExperiment, match=words) as caught:
        load(path)
    assert len(caught.value.findings) == 1


def test_a_name_of_a_file_that_no_class_can_have_is_not_one(variation: Variation) -> None:
    path = variation(lambda data: data.update(prompts={"file": "d\u00e9j\u00e0.jsonl"}))
    (path.parent / "d\u00e9j\u00e0.jsonl").write_text("\n".join(json.dumps(_text(n)) for n in range(8)))
    assert load(path).classes == ("all",)


def test_what_cannot_be_printed_as_lines_is_refused_in_lines_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.jsonl").write_text('{"turns": ["a"]}\n{"turns": []}\n{"text": "b"}\n')
    assert main(["prompts", str(tmp_path / "mine.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "line 2 of mine.jsonl",
        "line 3 of mine.jsonl",
    ]
