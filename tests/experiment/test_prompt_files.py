"""`prompts: file:`: the user's own prompts, in the formats in which people have them."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.prompt_files import read_file
from experiment import Experiment, InvalidExperiment, load
from experiment.__main__ import main
from experiment.arms import digest
from experiment.description import as_json, as_text
from experiment.expected import expected
from experiment.prompts import estimated
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
    chat_line = {"id": "chat", "class": "mine", "prompt": None, "messages": _CONVERSATION, "max_tokens": 50}
    lines.append(json.dumps(chat_line))
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
    problem, end = places(["Plain text."] * 5000)
    assert "is not JSON" in problem
    assert "the same in 999 more entries" in problem
    assert end == "line 1000 of mine.jsonl: is read no further, because 1,000 entries are wrong"
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
lines | {"id": 1.5, "class": "mine", "prompt": "x"} | `id` is 1.5; give printable text, 128 characters at most
lines | {"id": "x", "class": "other", "prompt": "x"} | add 7 more, or put its prompts into another
lines | {"id": "x", "class": "mine"} | needs either `prompt` or `messages` and has only `class`, `id`
lines | {"prompt": "x", "messages": []} | needs either `prompt` or `messages`
lines | {"id": "x", "class": "mine", "messages": ["hi"]} | `messages` is empty or malformed
lines | {"prompt": "x", "max_tokens": true} | `max_tokens` is True
lines | {"id": "x", "class": "mine", "prompt": "\ud800"} | half a character
lines | {"id": "x", "class": "a\u0007b", "prompt": "x"} | `class` is .* printable text
lines | {"id": "x", "class": "mine", "prompt": null} | needs either `prompt` or `messages` and has only `class`, `id`
lines | {"id": "x", "class": "mine", "prompt": "x", "tokens": "9"} | `tokens` is '9'; give a whole number above 0
lines | {"id": "x", "class": "mine", "messages": [{"role": "assistant", "content": "x"}]} | `messages` is empty
lines | {"id": "x", "class": "mine", "messages": [{"role": "system", "content": "x"}]} | `messages` is empty or malformed
lines | {"id": "q1", "class": "mine", "prompt": "x"} | id 'q1' stands 2 times
lines | {"prompt": "x", "at_s": -1} | `at_s` is -1; give seconds from 0 to 2,678,400
lines | {"prompt": "x", "at_s": 1} | line 1 of mine.jsonl.*has no `at_s`, and other entries have; the same in 7 more entries
lines | {"prompt": "x", "think_s": 1} | has `think_s`, but no turn is before it
lines | {"prompt": "x", "conversation": "\n", "at_s": 1} | `conversation` is .* give printable text
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
    (
        "lines",
        _line(9, prompt="y" * 500),
        r"up to 500 tokens \(its UTF-8 bytes\) of the prompt.*--tokenizer tokenizer.json",
    ),
    ("lines", _line(9, prompt="y" * 500, tokens=400), r"up to 400 tokens \(as its line states\)"),
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
        (None, "is larger than 16 MiB; give JSON lines, CSV, MT-Bench"),
        (b'{"prompt":"x"}\n' * 100_000, "has 100,000 entries or more"),
        (
            b"instruction,input\nAdd,1\n",
            "is CSV without a column `prompt`; its heading is 'instruction,input'",
        ),
    ],
)
def test_a_file_without_prompts_or_of_a_gigabyte_is_refused_as_a_whole(
    variation: Variation, content: bytes | None, words: str
) -> None:
    name = "mine.csv" if "CSV without" in words else "mine.jsonl"
    path = variation(lambda data: data.update(prompts={"file": name}))
    with (path.parent / name).open("wb") as file:
        file.truncate(2**30 if content is None else 0)
        file.write(content or b"")
    with pytest.raises(InvalidExperiment, match=words) as caught:
        load(path)
    assert len(caught.value.findings) == 1


def test_a_name_of_a_file_that_no_class_can_have_is_not_one(variation: Variation) -> None:
    path = variation(lambda data: data.update(prompts={"file": ":mine.jsonl"}))
    (path.parent / ":mine.jsonl").write_text("\n".join(json.dumps(_text(n)) for n in range(8)))
    assert load(path).classes == ("all",)


def test_answers_to_learn_are_cut_from_a_file_for_fine_tuning(variation: Variation) -> None:
    answer = {"role": "assistant", "content": "Because."}
    talk = [*_CONVERSATION, answer, {"role": "user", "content": "Sure?"}]
    lines = [
        json.dumps({"messages": [*_CONVERSATION[:1], {"role": "user", "content": f"{n}?"}, answer]})
        for n in range(8)
    ]
    lines.append(json.dumps({"messages": [*talk, answer, answer]}))
    lines.append(json.dumps({"messages": talk}))
    experiment = load(_with_file(variation, lines))
    first, *_, cut, asked = experiment.prompts
    assert first.messages == (("system", "Be brief."), ("user", "0?"))
    assert cut.messages == asked.messages
    assert [role for role, _ in cut.messages] == ["system", "user", "assistant", "user"]
    assert "JSON lines, 9 final answers of an assistant cut" in " ".join(as_text(experiment).split())


LONG_FIELD = "Wort " * 40_000


@pytest.mark.parametrize(("delimiter", "begin"), [(",", ""), (";", "\ufeff"), ("\t", "")])
def test_csv_with_a_column_prompt_is_read_with_its_classes_and_lengths(
    variation: Variation, delimiter: str, begin: str
) -> None:
    path = variation(lambda data: data.update(prompts={"file": "mine.csv"}))
    with (path.parent / "mine.csv").open("w", encoding="utf-8", newline="") as file:
        file.write(begin)
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow(["Prompt", "class", "tokens", "max_tokens"])
        rows.writerows([f"Grüße, {n};\t{n}?", "Übersetzung", "", "20"] for n in range(7))
        rows.writerow([f"Two\nlines, {LONG_FIELD}", "Übersetzung", 300, ""])
    experiment = load(path)
    assert (experiment.classes, experiment.prompt_format) == (("Übersetzung",), "CSV")
    first, *_, last = experiment.prompts
    assert (first.messages, first.max_tokens, first.tokens) == ((("user", "Grüße, 0;\t0?"),), 20, None)
    assert (last.messages, last.max_tokens, last.tokens) == (
        (("user", f"Two\nlines, {LONG_FIELD}"),),
        None,
        300,
    )


@pytest.mark.parametrize("entry", ["0", "[]", '{"a": 0}'])
def test_a_list_of_15_mb_is_read_no_further_than_it_is_worth(tmp_path: Path, entry: str) -> None:
    (tmp_path / "mine.json").write_text(f"[{','.join([entry] * (15_000_000 // (len(entry) + 1)))}]")
    began = time.process_time()
    *_, end = read_file(tmp_path / "mine.json", name="mine.json").problems
    assert end.why == "is read no further, because 1,000 entries are wrong"
    assert time.process_time() - began < 5


def test_a_comma_in_a_field_without_quotes_is_not_cut_off(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("prompt,class\nOne, two and three,list\n")
    (problem,) = read_file(tmp_path / "mine.csv", name="mine.csv").problems
    assert problem.line().startswith(
        "prompts.file = 'line 2 of mine.csv': has more fields than the heading; put quotes"
    )


def test_what_people_typed_is_printed_as_they_typed_it_and_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.jsonl"
    entries = [{"class": "Übersetzung", "prompt": "日本語で"}, {"class": "код", "prompt": "Привет"}]
    invisible = {"class": "код", "prompt": "à\u00a0la\u2028carte \U0001f469\u200d\U0001f4bb \U000e0041"}
    mine.write_text("\n\ufeff".join(json.dumps(one) for one in [*entries, invisible]), encoding="utf-8")
    assert main(["prompts", str(mine)]) == 0
    said = capsys.readouterr().out
    assert all(text in said for one in entries for text in one.values())
    mine.write_text(f"\ufeff{said}", encoding="utf-8")
    read = read_file(mine, name="mine.jsonl")
    assert [{key: line[key] for key in ("class", "prompt")} for _, line in read.lines] == [
        *entries,
        invisible,
    ]


GERMAN = "Die Bundesrepublik besteht aus sechzehn Ländern, deren Verfassungen denselben Grundsätzen folgen müssen. "


def test_long_prompts_in_other_languages_keep_their_bound_and_their_forecast(variation: Variation) -> None:
    text = GERMAN * 105
    assert len(text.encode()) > 11_000

    def loaded(length: int, **fields: Any) -> Experiment:
        lines = [_line(number, prompt=f"{number} {text}", **fields) for number in range(8)]
        path = _with_file(variation, lines)
        path.write_text(path.read_text().replace("max_model_len: 1024", f"max_model_len: {length}"))
        return load(path)

    with pytest.raises(
        InvalidExperiment, match=r"benchmark.max_tokens.*\(its UTF-8 bytes\).*prompts FILE --tokenizer"
    ):
        loaded(8192)
    experiment = loaded(16384)
    _, drafted = expected(experiment)
    assert drafted.plain.likely_s is not None
    assert drafted.drafted is not None
    assert drafted.drafted.likely is not None
    assert "of max_model_len 16,384, steps read 8,192 tokens" in as_text(experiment)
    counted = loaded(4096, tokens=3300)
    assert expected(counted)[0].plain.likely_s is not None
    assert digest(counted) != digest(experiment)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The quick brown fox jumps over the lazy dog.", (9, 15)),
        ("Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства.", (25, 55)),
        ("我能吞下玻璃而不伤身体。今天的天气很好，我们去公园散步吧。", (18, 32)),
        ("私はガラスを食べられます。それは私を傷つけません。", (15, 26)),
        ("나는 유리를 먹을 수 있어요. 그래도 아프지 않아요", (15, 27)),
    ],
)
def test_an_estimate_of_a_script_is_near_what_tokenizers_count(text: str, tokens: tuple[int, int]) -> None:
    """Bounds: what the vocabularies of Qwen and Llama 3 count, less and more a third."""
    assert tokens[0] <= estimated(text) <= tokens[1]


def test_without_its_package_a_tokenizer_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main(["prompts", str(tmp_path / "mine.jsonl"), "--tokenizer", "tokenizer.json"]) == 2
    assert (
        "the Python package `tokenizers` is not installed; type `.venv/bin/pip install"
        in capsys.readouterr().err
    )


def test_a_tokenizer_states_the_length_of_each_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.enable_truncation(2)
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "mine.jsonl").write_text(
        json.dumps({"messages": [*_CONVERSATION, {"role": "user", "content": "a a a"}]})
    )
    asked = ["prompts", str(tmp_path / "mine.jsonl"), "--tokenizer"]
    assert main([*asked, str(tmp_path / "tokenizer.json")]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 3 + 2 + 3
    assert main([*asked, str(tmp_path / "mine.jsonl")]) == 2
    assert "is not a tokenizer" in capsys.readouterr().err


def test_what_cannot_be_printed_as_lines_is_refused_in_lines_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.jsonl").write_text('{"turns": ["a"]}\n{"turns": []}\n{"text": "b"}\n')
    assert main(["prompts", str(tmp_path / "mine.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        "line 2 of mine.jsonl",
        "line 3 of mine.jsonl",
    ]
