"""Files of prompts: the formats in which people have them, and what cannot be read of one."""

from __future__ import annotations

import csv
import gzip
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnspec.benchmark.plan import PlannedPrompt
from trnspec.benchmark.prompt_files import PromptFile, planned, read_file
from trnspec.core.findings import Finding

CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def read(folder: Path, lines: list[str]) -> PromptFile:
    (folder / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return read_file(folder / "mine.jsonl", name="mine.jsonl")


def line(number: int, **fields: Any) -> str:
    return json.dumps({"id": f"q{number}", "class": "mine", "prompt": f"Question {number}?", **fields})


def mt_bench(number: int) -> dict[str, Any]:
    turns = [f"Question {number}?", "And why?"]
    return {"question_id": 81 + number, "category": ["writing", "math"][number % 2], "turns": turns}


def shared(number: int) -> dict[str, Any]:
    said = [("system", "Be brief."), ("human", f"Question {number}?"), ("gpt", "Yes."), ("human", "Why?")]
    return {"id": f"s{number}_0", "conversations": [{"from": who, "value": what} for who, what in said]}


def batch(number: int) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": f"Question {number}?"}], "max_tokens": 50}
    return {"custom_id": f"request-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def speed(number: int) -> dict[str, Any]:
    own = {"sub_category": "poem", "src_id": f"x_{number}", "source": "y", "difficulty": None}
    return mt_bench(number) | own


FORMATS: dict[str, tuple[Callable[[int], dict[str, Any]], str, str, str]] = {
    "Spec-Bench": (mt_bench, "84", "math", "Spec-Bench format, first turns only"),
    "SPEED-Bench": (
        speed,
        "84",
        "math",
        "SPEED-Bench format, first turns only, not used: `source` (16), `src_id` (16) and `sub_category` (16)",
    ),
    "ShareGPT": (shared, "s3_0", "mine", "ShareGPT format, first turns only"),
    "OpenAI batch": (batch, "request-3", "mine", "OpenAI batch format, not used: `model` (16)"),
    "text": (lambda number: {"text": f"Question {number}?"}, "mine-4", "mine", "JSON lines"),
}
"""An entry; what the fourth is called, its class; and what the format is called."""


@pytest.mark.parametrize("as_list", [False, True], ids=["lines", "list"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_recognised_from_its_content(tmp_path: Path, name: str, as_list: bool) -> None:
    entry, id_, class_, said = FORMATS[name]
    entries = [entry(number) for number in range(16)]
    whole = [json.dumps(entries, indent=1)] if as_list else [f"{json.dumps(one)}\r" for one in entries]
    file = read(tmp_path, whole)
    assert (file.format, len(file.lines), file.problems) == (said, 16, ())
    fourth = file.lines[3][1]
    assert (fourth["id"], fourth["class"]) == (id_, class_)
    assert "Question 3?" in (fourth.get("prompt"), fourth.get("messages", [{}])[-1].get("content"))
    assert fourth.get("max_tokens") == (50 if name == "OpenAI batch" else None)


def test_entries_are_read_with_their_own_limits_and_further_keys_are_not(tmp_path: Path) -> None:
    lines = [line(number, source="ticket", note={"by": "me"}) for number in range(7)]
    chat = {"id": "chat", "class": "mine", "prompt": None, "messages": CONVERSATION, "max_tokens": 50}
    separated = json.dumps({"id": "u", "class": "mine", "prompt": "one\u2028two"}, ensure_ascii=False)
    first, *_, second, third = read(
        tmp_path, [f"\ufeff{lines[0]}", *lines[1:], json.dumps(chat), separated]
    ).lines
    assert first[1] == {"id": "q0", "class": "mine", "prompt": "Question 0?"}
    assert second[1] == {key: value for key, value in chat.items() if value is not None}
    assert third[1]["prompt"] == "one\u2028two"


def test_alike_problems_are_said_once_and_a_wrong_file_is_read_no_further(tmp_path: Path) -> None:
    broken = [json.dumps({"id": "b1", "question": "x"}), line(8, max_tokens="9"), line(9, max_tokens="9")]
    found = read(tmp_path, [*map(line, range(7)), *broken]).problems
    assert [one.value for one in found] == [f"line {n} of mine.jsonl" for n in (8, 9, 10)]
    problem, end = read(tmp_path, ["Plain text."] * 5000).problems
    assert "is not JSON" in problem.why
    assert "the same in 999 more entries" in problem.why
    assert end.value == "line 1000 of mine.jsonl"
    assert end.why == "is read no further, because 1,000 entries are wrong"
    assert len(read(tmp_path, [*map(line, range(2000))]).lines) == 2000


BESIDE: dict[str, Callable[[str], list[str]]] = {
    "lines": lambda line_: [*map(line, range(8)), line_],
    "Spec-Bench": lambda line_: [*(json.dumps(mt_bench(number)) for number in range(16)), line_],
    "list": lambda entry: [f"[{', '.join(json.dumps(shared(number)) for number in range(8))}, {entry}]"],
    "body": lambda body: [
        *(json.dumps(batch(number)) for number in range(8)),
        f'{{"custom_id": "x", "body": {body}}}',
    ],
}
REFUSED = r"""
lines | {"prompt": "x", "tokens": NaN} | line 9 of mine.jsonl.*is not JSON
lines | {"messages": [{"role": "user", "content": "x", "n": 1e400}]} | line 9 of mine.jsonl.*is not JSON
lines | { | line 9 of mine.jsonl.*is not JSON
lines | {"prompt": "x", "max_token": 9} | has the key 'max_token'; did you mean `max_tokens`
lines | {"id": 1.5, "class": "mine", "prompt": "x"} | `id` is 1.5; give printable text, 128 characters at most
lines | {"id": "x", "class": "mine"} | needs either `prompt` or `messages` and has only `class`, `id`
lines | {"prompt": "x", "messages": []} | needs either `prompt` or `messages`
lines | {"prompt": "x", "max_tokens": true} | `max_tokens` is True
lines | {"id": "x", "class": "mine", "prompt": "\ud800"} | half a character
lines | {"id": "x", "class": "a\u0007b", "prompt": "x"} | `class` is .* printable text
lines | {"id": "x", "class": "mine", "prompt": null} | needs either `prompt` or `messages` and has only `class`, `id`
lines | {"id": "x", "class": "mine", "prompt": "x", "tokens": "9"} | `tokens` is '9'; give a whole number above 0
lines | {"id": "q1", "class": "mine", "prompt": "x"} | id 'q1' appears 2 times
Spec-Bench | {"conversations": [{"from": "human", "value": "Why?"}]} | line 17 of mine.jsonl.*is ShareGPT format.*began as Spec-Bench
Spec-Bench | {"turns": []} | `turns` has no first turn of the user: \[\]
Spec-Bench | {"turns": "Question?"} | `turns` has no first turn
Spec-Bench | {"question_id": 7} | has only `question_id`; give one of them, or a known format
Spec-Bench | {} | and has no key
list | {"id": "x", "conversations": {"from": "human"}} | `conversations` has no first turn
list | 7 | entry 9 of mine.jsonl.*is not a JSON object: 7
body | [] | line 9 of mine.jsonl.*`body` is \[\]
body | {"input": "x"} | needs either `prompt` or `messages` and has neither
body | {"prompt": "x", "max_tokens": 1.5} | `max_tokens` is 1.5
body | {"prompt": "x", "max_completion_token": 5} | did you mean `max_completion_tokens`
"""
"""In which file | the entry after those that are right | words of the line."""
DEEP = ("lines", "[" * 100_000, "is not JSON")


@pytest.mark.parametrize("row", [*(row.split(" | ") for row in REFUSED.strip().splitlines()), DEEP])
def test_an_entry_that_cannot_be_asked_is_refused(tmp_path: Path, row: tuple[str, str, str]) -> None:
    beside, entry, words = row
    problems = read(tmp_path, BESIDE[beside](entry)).problems
    assert any(re.search(words, problem.line()) for problem in problems), problems


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no prompt"),
        (b"[]", "holds no prompt"),
        (b"[{]", "begins as a JSON list and is not JSON"),
        (b'[{"text": "x"} 7]', "begins as a JSON list and is not JSON (no comma after entry 1)"),
        (b'[{"text": "x"}] 7', "begins as a JSON list and is not JSON (no comma after entry 1)"),
        (b"[" * 100_000, "begins as a JSON list and is not JSON"),
        (json.dumps({"text": "x"}).encode("utf-16"), "is not UTF-8"),
        (None, "is larger than 16 MiB"),
        (b'{"prompt":"x"}\n' * 2000, "has 2,000 entries or more"),
        (
            b"instruction,input\nAdd,1\n",
            "is CSV without a column `prompt`; its heading is 'instruction,input'",
        ),
    ],
)
def test_a_file_without_prompts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, words: str
) -> None:
    monkeypatch.setattr("trnspec.benchmark.prompt_files.MAX_ENTRIES", 2000)
    path = tmp_path / ("mine.csv" if "CSV without" in words else "mine.jsonl")
    with path.open("wb") as file:
        file.truncate(2**30 if content is None else 0)
        file.write(content or b"")
    (problem,) = read_file(path, name=path.name).problems
    assert words in problem.why
    assert "give JSON lines, CSV, MT-Bench" in problem.remedy


def test_answers_to_learn_are_cut_from_a_file_for_fine_tuning(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "Because."}
    talk = [*CONVERSATION, answer, {"role": "user", "content": "Sure?"}]
    entries = [[*CONVERSATION, answer]] * 8 + [[*talk, answer, answer], talk]
    file = read(tmp_path, [json.dumps({"messages": messages}) for messages in entries])
    first, *_, cut, asked = (content["messages"] for _, content in file.lines)
    assert first == CONVERSATION
    assert cut == asked == talk
    assert file.format == "JSON lines, final answer of an assistant cut (9)"


LONG_FIELD = "Wort " * 40_000


@pytest.mark.parametrize(("delimiter", "begin"), [(",", ""), (";", "\ufeff"), ("\t", "")])
def test_csv_is_read_with_its_classes_and_lengths(tmp_path: Path, delimiter: str, begin: str) -> None:
    with (tmp_path / "mine.csv").open("w", encoding="utf-8", newline="") as file:
        file.write(begin)
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow(["Prompt", "class", "tokens", "max_tokens"])
        rows.writerows([f"Grüße, {n};\t{n}?", "Übersetzung", "", "20"] for n in range(7))
        rows.writerow([f"Two\nlines, {LONG_FIELD}", "Übersetzung", 300, ""])
    found = read_file(tmp_path / "mine.csv", name="mine.csv")
    assert found.format == "CSV"
    (_, first), *_, (_, last) = found.lines
    named = {"id": "Übersetzung-1", "class": "Übersetzung"}
    assert first == {**named, "prompt": "Grüße, 0;\t0?", "max_tokens": 20}
    assert (last["prompt"], last["tokens"]) == (f"Two\nlines, {LONG_FIELD}", 300)


@pytest.mark.parametrize("entry", ["0", "[]", '{"a": 0}'])
def test_a_list_of_15_mb_is_read_no_further_than_it_is_worth(tmp_path: Path, entry: str) -> None:
    (tmp_path / "mine.json").write_text(f"[{','.join([entry] * (15_000_000 // (len(entry) + 1)))}]")
    began = time.process_time()
    *_, end = read_file(tmp_path / "mine.json", name="mine.json").problems
    assert end.why == "is read no further, because 1,000 entries are wrong"
    assert time.process_time() - began < 5


def asked(
    folder: Path, entries: list[dict[str, Any]], *, endpoint: str = "chat", ignored: tuple[str, ...] = ()
) -> tuple[list[PlannedPrompt], list[Finding]]:
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, entries)))
    file = read_file(folder / "mine.jsonl", name="mine.jsonl", ignored=ignored)
    return planned(file, endpoint=endpoint, run={"temperature": 0})


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def test_what_belongs_to_the_task_of_a_prompt_is_kept(tmp_path: Path) -> None:
    own = {"response_format": {"type": "json_object"}, "tools": TOOLS, "tool_choice": "auto", "stop": ["END"]}
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
    told = {"role": "tool", "tool_call_id": "1", "content": "Rain."}
    parts = [{"type": "text", "text": "Is it"}, {"type": "text", "text": "raining?"}]
    messages = [{"role": "user", "content": parts}, called, told]
    entry = batch(1)
    entry["body"] |= own | {"messages": messages}
    (prompt,), problems = asked(tmp_path, [entry])
    assert (problems, prompt.request, prompt.max_tokens) == ([], own, 50)
    assert prompt.messages == ({"role": "user", "content": "Is it\nraining?"}, called, told)
    _, (problem,) = asked(tmp_path, [{"prompt": "x", "tools": TOOLS}], endpoint="completions")
    assert "has `tools`, which raw text (endpoint completions) cannot express" in problem.why


@pytest.mark.parametrize(
    "key", ["max_completion_tokens", "output_tokens", "output_length", "output_tokens_count"]
)
def test_the_length_of_an_answer_is_kept_under_the_names_of_other_tools(tmp_path: Path, key: str) -> None:
    (prompt,), _ = asked(tmp_path, [{"text": "x", key: 30}])
    assert prompt.max_tokens == 30


def test_what_would_change_decoding_is_refused_with_its_lines_unless_it_is_the_runs(tmp_path: Path) -> None:
    entries = [{"prompt": f"Question {n}?", "temperature": n % 2, "top_p": 1, "n": 1} for n in range(10)]
    _, (problem,) = asked(tmp_path, entries)
    assert problem.line() == (
        "prompts.file = 'line 2 of mine.jsonl': asks for `temperature` of its own, and the run's is 0; the same in 4 more "
        "entries; remove it, or ignore it: `--ignore temperature` of new and measure, `prompts.ignore: [temperature]` of an experiment"
    )
    prompts, problems = asked(tmp_path, entries, ignored=("temperature",))
    assert (len(prompts), problems) == (10, [])


def test_every_other_key_is_named_once_with_its_count(tmp_path: Path) -> None:
    entries = [line(n, source="ticket", seed=7) for n in range(3)] + [
        line(3, extra={"stop": "END", "user": "u"})
    ]
    file = read(tmp_path, entries)
    assert file.format == "JSON lines, not used: `seed` (3), `source` (3) and `user` (1)"
    assert file.lines[3][1]["stop"] == "END"


def test_a_conversation_keeps_its_system_message_and_one_that_begins_with_an_answer_is_left_out(
    tmp_path: Path,
) -> None:
    begun = {
        "id": "b",
        "conversations": [{"from": "gpt", "value": "Yes."}, {"from": "human", "value": "No?"}],
    }
    file = read(tmp_path, [json.dumps(shared(1)), json.dumps(begun)])
    assert [content["messages"] for _, content in file.lines] == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Question 1?"}]
    ]
    assert file.format.endswith("conversation that begins with an answer left out (1)")
    (problem,) = read(tmp_path, [json.dumps(begun)]).problems
    assert problem.why == "has no conversation that begins with a question"


def test_a_template_is_filled_from_its_row_and_what_stays_open_is_said(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("prompt,topic\nSay {{ topic }} in {{tone}}.,rain\n")
    file = read_file(tmp_path / "mine.csv", name="mine.csv")
    assert file.lines[0][1]["prompt"] == "Say rain in {{tone}}."
    assert file.format == "CSV, prompt with `{{tone}}`, which no key fills and which is sent as it is (1)"


ABSENT = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


def test_a_placeholder_is_not_asked(tmp_path: Path) -> None:
    _, problems = asked(tmp_path, [speed(n) | {"turns": [ABSENT]} for n in range(9)])
    assert len(problems) == 1
    assert "SPEED-Bench's placeholder" in problems[0].why
    assert "prepare_data.py" in problems[0].remedy
    _, (alike,) = asked(tmp_path, [{"prompt": "Same?"}] * 9 + [{"prompt": "Other?"}])
    assert alike.why == "is mostly one text: 9 of 10 prompts are 'Same?'"


def test_a_null_is_an_absent_key_and_a_compressed_file_is_read(tmp_path: Path) -> None:
    text = json.dumps({"id": None, "class": None, "prompt": "Why?", "temperature": None})
    path = tmp_path / "mine.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_file(path, name=path.name).lines[0][1] == {"id": "mine-1", "class": "mine", "prompt": "Why?"}
    path.write_bytes(gzip.compress(text.encode())[:-9])
    (problem,) = read_file(path, name=path.name).problems
    assert "begins as gzip and cannot be unpacked" in problem.why


def test_an_image_is_refused(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    _, (problem,) = asked(tmp_path, [{"messages": [{"role": "user", "content": [image]}]}])
    assert "content that is not text" in problem.why


def test_a_comma_in_a_field_without_quotes_is_not_cut_off(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("prompt,class\nOne, two and three,list\n")
    (problem,) = read_file(tmp_path / "mine.csv", name="mine.csv").problems
    assert problem.line().startswith(
        "prompts.file = 'line 2 of mine.csv': has more fields than the heading; put quotes"
    )
