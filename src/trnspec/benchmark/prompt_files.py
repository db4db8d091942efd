"""Read files of prompts in common formats as entries of one form. The keys of an entry determine its format:

- JSON lines or a JSON list: `prompt`, `messages` or `text`; `id`, `class` (or `category`), `max_tokens` and `tokens` where there
  are any;
- CSV with a heading: a column `prompt`, and the other keys of JSON lines as columns;
- Spec-Bench and MT-Bench: `question_id`, `category`, `turns`
  (https://github.com/hemingkx/Spec-Bench/blob/main/data/spec_bench/question.jsonl,
  https://github.com/lm-sys/FastChat/blob/main/fastchat/llm_judge/data/mt_bench/question.jsonl);
- ShareGPT: `id`, `conversations` of `from` (`human`, `gpt`) and `value`
  (https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered);
- OpenAI batch: `custom_id`, `body` with `messages` or `prompt`
  (https://platform.openai.com/docs/api-reference/batch/request-input);
- OpenAI fine-tuning: `messages` that end with the assistant's answer, which is cut
  (https://platform.openai.com/docs/guides/supervised-fine-tuning).

Of the turns of Spec-Bench and ShareGPT the user's first is asked: a later one follows an answer that is not in the file, or that
another model gave.
"""

from __future__ import annotations

import csv
import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

from trnspec.core.files import UnreadableFile, text_of
from trnspec.core.findings import Finding
from trnspec.core.safe_output import shortened
from trnspec.core.words import LABEL_RULE, count, is_label

if TYPE_CHECKING:
    from pathlib import Path

ALL_FORMATS = "JSON lines, CSV, MT-Bench, Spec-Bench, ShareGPT, OpenAI batch or OpenAI fine-tuning"
_READ = f"give {ALL_FORMATS} in UTF-8; JSON has `prompt`, `messages` or `text` in each entry, CSV a column `prompt`"
MAX_BYTES = 16 * 2**20
MAX_ENTRIES, MAX_WRONG = 100_000, 1000
"""The maximum number of entries of a file, and of wrong entries after which reading stops."""
MAX_PROBLEMS = 20
"""The maximum number of problems that are reported. In a file of another format every line is wrong."""
_MAX_REPEATED_LINES = 3
_OURS, _TURNS, _SHARED, _BATCH = (
    "JSON lines",
    "Spec-Bench format, first turns only",
    "ShareGPT format, first turns only",
    "OpenAI batch format",
)
_OWN_KEYS = ("prompt", "messages", "text")
_FORMATS = {**dict.fromkeys(_OWN_KEYS, _OURS), "turns": _TURNS, "conversations": _SHARED, "body": _BATCH}
"""The first of these keys that an entry has tells its format."""
_CLASSES = ("class", "category")
_LIMITS = ("max_tokens", "max_completion_tokens")
_NUMBERS = (*_LIMITS, "tokens")
_MORE = "fields beyond the heading"
_BLANK = "\ufeff \t\r\n"
_SPACE = re.compile(r"[ \t\r\n]*")
_GIVE_ONE = "give one of them"
Entry = dict[str, Any]
Line = tuple[str, Entry]
"""Where an entry is (`line 9 of mine.jsonl`); its `id`, `class`, `prompt` or `messages`, and what else it has of its own:
`max_tokens`, `tokens`."""


@dataclass(frozen=True)
class PromptFile:
    """The entries of a file, and its problems."""

    format: str
    lines: tuple[Line, ...]
    problems: tuple[Finding, ...]


class Unusable(Exception):
    """An entry that cannot be used; the arguments are the reason and the remedy."""


def read_file(path: Path, *, name: str) -> PromptFile:
    """The file at `path`, which messages call `name`."""
    formats: list[str] = []
    lines: list[Line] = []
    problems: list[Finding] = []
    unnamed, cut = path.stem if is_label(path.stem) else "all", 0
    try:
        kind, entries = _entries(text_of(path, max_bytes=MAX_BYTES), name)
        for number, (place, content) in enumerate(entries, start=1):
            try:
                entry = _entry_of(content)
                formats.append(_format_of(entry))
                if formats[-1] != formats[0]:
                    why = f"is {formats[-1]}, and the file began as {formats[0]}"
                    raise Unusable(why, "keep one format per file")
                class_ = _name_in(entry, _CLASSES, unnamed)
                id_ = _name_in(entry, ("id", "question_id", "custom_id"), f"{class_}-{number}")
                asked: Entry = {"id": id_, "class": class_} | _asked(entry, formats[-1])
                cut += asked.pop("cut", 0)
                lines.append((place, {key: value for key, value in asked.items() if value is not None}))
            except Unusable as error:
                problems.append(Finding("prompts.file", place, *error.args))
            if len(problems) == MAX_WRONG:
                why = f"is read no further, because {MAX_WRONG:,} entries are wrong"
                end = Finding("prompts.file", place, why, _READ)
                return PromptFile("", (), (*_each_once(problems), end))
            if number == MAX_ENTRIES:
                raise Unusable(f"has {MAX_ENTRIES:,} entries or more")
    except (UnreadableFile, Unusable) as error:
        return PromptFile("", (), (Finding("prompts.file", name, str(error), _READ),))
    problems = _each_once(problems)
    for id_, times in Counter(content["id"] for _, content in lines).most_common(MAX_PROBLEMS):
        if times > 1:
            why = f"id {id_!r} appears {times} times"
            problems.append(Finding("prompts.file", name, why, "make ids distinct"))
    end_cut = f", {count(cut, 'final answer')} of an assistant cut" if cut else ""
    return PromptFile(f"{kind or formats[0]}{end_cut}" if formats else "", tuple(lines), tuple(problems))


def _entries(text: str, name: str) -> tuple[str, Iterator[tuple[str, Any]]]:
    """The format, if it is not determined by the entries, and the entries with their places."""
    heading = text[: max(text.find("\n"), 0) or None].strip(_BLANK)
    if heading[:1] not in ("{", "[", ""):
        for delimiter in ",;\t":
            if "prompt" in (column.strip(' "') for column in heading.lower().split(delimiter)):
                rest = text.lstrip(_BLANK)[len(heading) :]
                return "CSV", _in_rows(heading.lower() + rest, name, delimiter)
        if name.lower().endswith((".csv", ".tsv")):
            raise Unusable(f"is CSV without a column `prompt`; its heading is {_short(heading)}")
    return "", _entries_of(text, name)


def _entries_of(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Each entry as JSON, and where it is: in a list, or on a line of its own. Raises `Unusable` for a file without entries, and
    where a list ends to be JSON: what follows a wrong entry need not be read."""
    decoder, number, at = json.JSONDecoder(), 0, len(text) - len(text.lstrip(_BLANK[1:]))
    if text[at : at + 1] != "[":
        for line_number, line in enumerate(StringIO(text, newline="\n"), start=1):
            if entry := line.strip(_BLANK):
                number += 1
                yield f"line {line_number} of {name}", entry
    elif text[at + 1 :].strip() != "]":
        more = True
        try:
            while more:
                begin, number = _after_blanks(text, at + 1), number + 1
                end = decoder.raw_decode(text, begin)[1]
                yield f"entry {number} of {name}", text[begin:end]
                at = _after_blanks(text, end)
                more = text[at : at + 1] == ","
            if text[at:].strip() != "]":
                raise ValueError(f"no comma after entry {number}")
        except (ValueError, RecursionError) as error:
            raise Unusable(f"begins as a JSON list and is not JSON ({error})") from None
    if not number:
        raise Unusable("holds no prompt")


def _after_blanks(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # pyrefly: ignore[missing-attribute]  # it matches nothing, too


def _in_rows(text: str, name: str, delimiter: str) -> Iterator[tuple[str, Entry]]:
    """The rows of CSV by the names of its heading; what is beyond the heading has the key `_MORE`. Raises `Unusable`."""
    csv.field_size_limit(MAX_BYTES)  # as long as a file; the module's own limit is 128 KiB
    rows = csv.DictReader(StringIO(text, newline="\n"), delimiter=delimiter, restkey=_MORE)
    try:
        for row in rows:
            fields: Entry = {key.strip(): value for key, value in row.items() if value}
            for key in fields.keys() & set(_NUMBERS):
                with suppress(ValueError):
                    fields[key] = json.loads(fields[key])
            yield f"line {rows.line_num} of {name}", fields
    except csv.Error as error:
        raise Unusable(f"is not CSV at line {rows.line_num} ({error})") from None
    if not rows.line_num > 1:
        raise Unusable("has one line, and CSV has a heading and entries")


def _each_once(problems: list[Finding]) -> list[Finding]:
    """The problems, with those of many lines only once with their number."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for problem in problems:
        alike.setdefault((problem.why, problem.remedy), []).append(problem)
    kept: list[Finding] = []
    for first, *more in alike.values():
        many = f"{first.why}; the same in {count(len(more), 'more entry')}"
        kept += [first, *more] if len(more) < _MAX_REPEATED_LINES else [replace(first, why=many)]
    return kept[:MAX_PROBLEMS]


def _entry_of(content: Any) -> Entry:
    """An entry as an object that can be sent; text is parsed."""
    try:
        entry: Any = json.loads(content) if isinstance(content, str) else content
        json.dumps(entry, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Unusable("holds half a character (a lone surrogate)", "write whole characters") from None
    except (ValueError, RecursionError) as error:
        raise Unusable(f"is not JSON ({error})", _READ) from None
    if not isinstance(entry, dict):
        raise Unusable(f"is not a JSON object: {_short(entry)}", 'write {"class": ..., "prompt": ...}')
    return entry


def _format_of(entry: Entry) -> str:
    if _MORE in entry:
        raise Unusable("has more fields than the heading", "put quotes around text with a delimiter in it")
    for key, name in _FORMATS.items():
        if entry.get(key) is not None:
            return name
    keys = shortened(", ".join(f"`{key}`" for key in sorted(entry) if entry[key] is not None), 200)
    why = f"needs either `prompt` or `messages` and has {f'only {keys}' if keys else 'no key'}"
    raise Unusable(why, f"{_GIVE_ONE}, or a known format (one of the keys {', '.join(_FORMATS)})")


def _name_in(entry: Entry, keys: tuple[str, ...], otherwise: str) -> str:
    """The first of `keys` in the entry; a whole number counts as text."""
    key = next((key for key in keys if key in entry), None)
    value = otherwise if key is None else str(entry[key]) if type(entry[key]) is int else entry[key]
    if not isinstance(value, str) or not is_label(value):
        raise Unusable(f"`{key}` is {_short(value)}", f"give {LABEL_RULE}")
    return value


def _asked(entry: Entry, format_: str) -> Entry:
    """The prompt of an entry, with the keys of our own format."""
    if format_ in (_TURNS, _SHARED):
        key = "turns" if format_ == _TURNS else "conversations"
        turns = entry[key] if isinstance(entry[key], list) else []
        if format_ == _SHARED:
            turns = [t.get("value") for t in turns if isinstance(t, dict) and t.get("from") == "human"]
        if not (turns and isinstance(turns[0], str) and turns[0].strip()):
            why = f"`{key}` has no first turn of the user: {_short(entry[key])}"
            raise Unusable(why, "give its text, or remove the entry")
        return {"messages": [{"role": "user", "content": turns[0]}]}
    body = entry["body"] if format_ == _BATCH else entry
    if not isinstance(body, dict):
        raise Unusable(f"`body` is {_short(body)}", "give the body of a request, a JSON object")
    own = [key for key in _OWN_KEYS if body.get(key) is not None]
    if len(own) != 1:
        given = " and ".join(f"`{key}`" for key in own) or "neither"
        raise Unusable(f"needs either `prompt` or `messages` and has {given}", _GIVE_ONE)
    for key in body.keys() - set(_LIMITS):
        if close := difflib.get_close_matches(key, _LIMITS, n=1, cutoff=0.8):
            raise Unusable(f"has the key {_short(key)}", f"did you mean `{close[0]}`?")
    limit = next((body[key] for key in _LIMITS if body.get(key) is not None), None)
    limits = {"max_tokens": limit, "tokens": entry.get("tokens")}
    for key, value in limits.items():
        if value is not None and (type(value) is not int or value < 1):
            raise Unusable(f"`{key}` is {_short(value)}", "give a whole number above 0")
    if own != ["messages"] or not isinstance(messages := body["messages"], list):
        return limits | {own[0] if own == ["messages"] else "prompt": body[own[0]]}
    kept = [*messages]
    while kept and isinstance(kept[-1], dict) and kept[-1].get("role") == "assistant":
        kept.pop()  # the answer to learn, in a file for fine-tuning
    return limits | {"messages": kept, "cut": int(len(kept) < len(messages))}


def as_line(content: Entry) -> str:
    """JSON with letters of any language as typed; characters that a terminal cannot show are escaped."""
    text = json.dumps(content, ensure_ascii=False)
    return (
        text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    )


def texts_of(line: Entry) -> list[str]:
    """The texts of a line."""
    messages = line["messages"] if isinstance(line.get("messages"), list) else []
    said = [message.get("content") for message in messages if isinstance(message, dict)]
    return [text for text in (line.get("prompt"), *said) if isinstance(text, str)]


def _short(value: Any) -> str:
    return shortened(repr(value), 60)
