"""Files of prompts as people have them, read as lines of one form. The keys of an entry tell its format:

- JSON lines or a JSON list: `prompt`, `messages` or `text`; `id`, `class` (or `category`), `max_tokens` and `tokens` where there
  are any; for a replay `at_s`, `conversation` and `think_s`;
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

Lines with the same `conversation` are its turns, each with what it adds. Where the `messages` of a later turn begin with an
assistant's, that is the recorded answer to the turn before, and is asked unchanged.

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

from core.edge import shortened
from core.files import UnreadableFile, whole_text
from core.findings import Finding
from core.words import WANTED, count, is_label

if TYPE_CHECKING:
    from pathlib import Path

ALL_FORMATS = "JSON lines, CSV, MT-Bench, Spec-Bench, ShareGPT, OpenAI batch or OpenAI fine-tuning"
_READ = f"give {ALL_FORMATS} in UTF-8; JSON has `prompt`, `messages` or `text` in each entry, CSV a column `prompt`"
LARGEST_BYTES = 16 * 2**20
MOST_ENTRIES = 100_000
MOST_WRONG = 1000
"""Entries after which a file is read no further."""
MOST_PROBLEMS = 20
"""As many as a person reads; a file of another format is wrong in every line."""
_FEW = 3
MOST_WAIT_S = 31 * 86_400
_OURS, _TURNS, _SHARED, _BATCH = (
    "JSON lines",
    "Spec-Bench format, first turns only",
    "ShareGPT format, first turns only",
    "OpenAI batch format",
)
_OWN_KEYS = ("prompt", "messages", "text")
_FORMATS = {**dict.fromkeys(_OWN_KEYS, _OURS), "turns": _TURNS, "conversations": _SHARED, "body": _BATCH}
"""The first of these keys that an entry has tells its format."""
_IDS, CLASSES = ("id", "question_id", "custom_id"), ("class", "category")
_LIMITS = ("max_tokens", "max_completion_tokens")
_NUMBERS = (*_LIMITS, "tokens", "at_s", "think_s")
_MORE = "fields beyond the heading"
_SPACE = re.compile(r"[ \t\r\n]*")
Line = tuple[str, dict[str, Any]]
"""Where an entry is (`line 9 of mine.jsonl`); its `id`, `class`, `prompt` or `messages`, and what else it has of its own:
`max_tokens`, `tokens`, `at_s`, `conversation`, `think_s`, `made_up`."""


@dataclass(frozen=True)
class PromptFile:
    """What could be read of a file, and what could not."""

    format: str
    lines: tuple[Line, ...]
    problems: tuple[Finding, ...]


class Unusable(Exception):
    """Why an entry cannot be used, and what to do, as arguments."""


def read_file(path: Path, *, name: str) -> PromptFile:
    """The file at `path`, which messages call `name`."""
    formats: list[str] = []
    lines: list[Line] = []
    problems: list[Finding] = []
    unnamed, cut = path.stem if is_label(path.stem) else "all", 0
    try:
        text = whole_text(path, most_bytes=LARGEST_BYTES)
        kind, entries = _entries(text, name)
        for number, (place, entry_text) in enumerate(entries, start=1):
            try:
                entry = entry_of(entry_text)
                formats.append(format_ := _format_of(entry))
                if format_ != formats[0]:
                    raise Unusable(
                        f"is {format_}, and the file began as {formats[0]}", "keep one format a file"
                    )
                class_ = name_in(entry, CLASSES, unnamed)
                named = {"id": name_in(entry, _IDS, f"{class_}-{number}"), "class": class_}
                asked = named | _asked(entry, format_) | (_arrival(entry) if format_ == _OURS else {})
                cut += asked.pop("cut", 0)
                lines.append((place, {key: value for key, value in asked.items() if value is not None}))
            except Unusable as error:
                problems.append(Finding("prompts.file", place, *error.args))
            if len(problems) == MOST_WRONG:
                reason = f"is read no further, because {MOST_WRONG:,} entries are wrong"
                return PromptFile(
                    "", (), (*each_once(problems), Finding("prompts.file", place, reason, _READ))
                )
            if number == MOST_ENTRIES:
                raise Unusable(f"has {MOST_ENTRIES:,} entries or more")
    except (UnreadableFile, Unusable) as error:
        return PromptFile("", (), (Finding("prompts.file", name, str(error.args[0]), _READ),))
    problems = each_once([*problems, *_out_of_time(lines)])
    ids = Counter(content["id"] for _, content in lines)
    for id_, times in ids.most_common(MOST_PROBLEMS):
        if times > 1:
            reason = f"id {id_!r} appears {times} times"
            problems.append(Finding("prompts.file", name, reason, "make ids distinct"))
    said = f", {count(cut, 'final answer')} of an assistant cut" if cut else ""
    return PromptFile(f"{kind or formats[0]}{said}" if formats else "", tuple(lines), tuple(problems))


def _entries(text: str, name: str) -> tuple[str, Iterator[tuple[str, str]]]:
    """The format, where the entries do not tell it, and they."""
    heading = text[: max(text.find("\n"), 0) or None].strip("\ufeff \t\r\n")
    if heading[:1] in ("{", "[", ""):
        return "", entries_of(text, name)
    for delimiter in ",;\t":
        if "prompt" in (column.strip(' "') for column in heading.lower().split(delimiter)):
            rest = text.lstrip("\ufeff \t\r\n")[len(heading) :]
            return "CSV", _in_rows(heading.lower() + rest, name, delimiter)
    if name.lower().endswith((".csv", ".tsv")):
        raise Unusable(f"is CSV without a column `prompt`; its heading is {_short(heading)}")
    return "", entries_of(text, name)


def entries_of(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Each entry as JSON, and where it is: in a list, or on a line of its own. Raises `Unusable` for a file without entries."""
    begins, number = _SPACE.match(text).end(), 0  # type: ignore[union-attr]  # it matches nothing, too
    entries = _in_list(text, begins + 1, name) if text[begins : begins + 1] == "[" else _on_lines(text, name)
    for number, entry in enumerate(entries, start=1):  # noqa: B007
        yield entry
    if not number:
        raise Unusable("holds no prompt")


def _on_lines(text: str, name: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(StringIO(text, newline="\n"), start=1):
        if entry := line.strip("\ufeff \t\r\n"):
            yield f"line {number} of {name}", entry


def _in_list(text: str, at: int, name: str) -> Iterator[tuple[str, str]]:
    """The entries of a JSON list that begins before `at`, one by one: what follows a wrong one need not be read."""
    decoder, number = json.JSONDecoder(), 0
    try:
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if number == 0 and text[at : at + 1] == "]":
                return
            number += 1
            end = decoder.raw_decode(text, at)[1]
            yield f"entry {number} of {name}", text[at:end]
            at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
            if text[at : at + 1] == "]" and not text[at + 1 :].strip():
                return
            if text[at : at + 1] != ",":
                raise ValueError(f"no comma after entry {number}")
            at += 1
    except (ValueError, RecursionError) as error:
        raise Unusable(f"begins as a JSON list and is not JSON ({error})") from None


def _in_rows(text: str, name: str, delimiter: str) -> Iterator[tuple[str, str]]:
    """The rows of CSV by the names of its heading; what is beyond the heading has the key `_MORE`. Raises `Unusable`."""
    csv.field_size_limit(LARGEST_BYTES)  # as long as a file; the module's own limit is 128 KiB
    rows = csv.DictReader(StringIO(text, newline="\n"), delimiter=delimiter, restkey=_MORE)
    try:
        for row in rows:
            fields = {key.strip(): value for key, value in row.items() if value}
            for key in fields.keys() & set(_NUMBERS):
                with suppress(ValueError):
                    fields[key] = json.loads(fields[key])
            yield f"line {rows.line_num} of {name}", json.dumps(fields)
    except csv.Error as error:
        raise Unusable(f"is not CSV at line {rows.line_num} ({error})") from None
    if not rows.line_num > 1:
        raise Unusable("has one line, and CSV has a heading and entries")


def each_once(problems: list[Finding]) -> list[Finding]:
    """Problems that more than a few lines have, once with their number."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for problem in problems:
        alike.setdefault((problem.why, problem.remedy), []).append(problem)
    kept: list[Finding] = []
    for first, *more in alike.values():
        many = f"{first.why}; the same in {count(len(more), 'more entry')}"
        kept += [first, *more] if len(more) < _FEW else [replace(first, why=many)]
    return kept[:MOST_PROBLEMS]


def _arrival(entry: dict[str, Any]) -> dict[str, Any]:
    """When an entry is asked, and after what."""
    arrival: dict[str, Any] = {"made_up": True} if entry.get("made_up") is True else {}
    for key in ("at_s", "think_s"):
        if (value := entry.get(key)) is not None:
            if type(value) not in (int, float) or not 0 <= value <= MOST_WAIT_S:
                remedy = f"give seconds from 0 to {MOST_WAIT_S:,} (31 days)"
                raise Unusable(f"`{key}` is {_short(value)}", remedy)
            arrival[key] = value
    if entry.get("conversation") is not None:
        arrival["conversation"] = name_in(entry, ("conversation",), "")
        if isinstance(text := entry.get("prompt") or entry.get("text"), str):
            arrival |= {"prompt": None, "messages": [{"role": "user", "content": text}]}
    elif "think_s" in arrival:
        raise Unusable(
            "has `think_s`, but no turn is before it", "give the `conversation` that it is a turn of"
        )
    return arrival


def _out_of_time(lines: list[Line]) -> Iterator[Finding]:
    """Entries without an arrival time beside others with one, and turns that arrive before the turn that they follow."""
    last: dict[str, float | None] = {}
    timed = any("at_s" in content for _, content in lines)
    for place, content in lines if timed else ():
        talk, at_s = content.get("conversation"), content.get("at_s")
        if at_s is None and (talk is None or talk not in last):
            remedy = "give every entry one, or none; only later turns of a conversation do without"
            yield Finding("prompts.file", place, "has no `at_s`, and other entries have", remedy)
        before_s = last.get(talk) if talk else None
        if before_s is not None and at_s is not None and at_s < before_s:
            why = f"`at_s` is {at_s:g}, and the turn before it has {before_s:g}"
            yield Finding("prompts.file", place, why, "write the turns of a conversation in their order")
        if talk:
            last[talk] = before_s if at_s is None else at_s


def entry_of(text: str) -> dict[str, Any]:
    try:
        entry: Any = json.loads(text)
        json.dumps(entry, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Unusable("holds half a character (a lone surrogate)", "write whole characters") from None
    except (ValueError, RecursionError) as error:
        raise Unusable(f"is not JSON ({error})", _READ) from None
    if not isinstance(entry, dict):
        raise Unusable(f"is not a JSON object: {_short(entry)}", 'write {"class": ..., "prompt": ...}')
    return entry


def _format_of(entry: dict[str, Any]) -> str:
    if _MORE in entry:
        raise Unusable("has more fields than the heading", "put quotes around text with a delimiter in it")
    for key, name in _FORMATS.items():
        if entry.get(key) is not None:
            return name
    keys = shortened(", ".join(f"`{key}`" for key in sorted(entry) if entry[key] is not None), 200)
    why = f"needs either `prompt` or `messages` and has {f'only {keys}' if keys else 'no key'}"
    raise Unusable(why, f"give one of them, or a known format (one of the keys {', '.join(_FORMATS)})")


def name_in(entry: dict[str, Any], keys: tuple[str, ...], otherwise: str) -> str:
    """The first of `keys` in the entry; a whole number counts as text."""
    key = next((key for key in keys if key in entry), None)
    value = otherwise if key is None else str(entry[key]) if type(entry[key]) is int else entry[key]
    if not isinstance(value, str) or not is_label(value):
        raise Unusable(f"`{key}` is {_short(value)}", f"give {WANTED}")
    return value


def _asked(entry: dict[str, Any], format_: str) -> dict[str, Any]:
    """What an entry asks, with the keys of our own lines."""
    if format_ in (_TURNS, _SHARED):
        key = "turns" if format_ == _TURNS else "conversations"
        turns = entry[key] if isinstance(entry[key], list) else []
        if format_ == _SHARED:
            said = [turn for turn in turns if isinstance(turn, dict) and turn.get("from") == "human"]
            turns = [turn.get("value") for turn in said]
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
        raise Unusable(f"needs either `prompt` or `messages` and has {given}", "give one of them")
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


def as_line(content: dict[str, Any]) -> str:
    """JSON with letters of any language as they were typed; what no terminal shows is escaped."""
    text = json.dumps(content, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )


def texts_of(line: dict[str, Any]) -> list[str]:
    """What a line asks, as far as it is text."""
    messages = line["messages"] if isinstance(line.get("messages"), list) else []
    texts = [
        line.get("prompt"),
        *(message.get("content") for message in messages if isinstance(message, dict)),
    ]
    return [text for text in texts if isinstance(text, str)]


def _short(value: Any) -> str:
    return shortened(repr(value), 60)
