"""Files of prompts as people have them, read as lines of one form. The keys of an entry tell its format:

- JSON lines: `prompt`, `messages` or `text`; `id`, `class` (or `category`) and `max_tokens` where there are any;
- Spec-Bench and MT-Bench: `question_id`, `category`, `turns`
  (https://github.com/hemingkx/Spec-Bench/blob/main/data/spec_bench/question.jsonl,
  https://github.com/lm-sys/FastChat/blob/main/fastchat/llm_judge/data/mt_bench/question.jsonl);
- ShareGPT: `id`, `conversations` of `from` (`human`, `gpt`) and `value`
  (https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered);
- OpenAI batch: `custom_id`, `body` with `messages` or `prompt`
  (https://platform.openai.com/docs/api-reference/batch/request-input).

Of the turns of Spec-Bench and ShareGPT the user's first is asked: a later one follows an answer that is not in the file, or that
another model gave.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiment.finding import Finding, shortened
from experiment.parsing import UnreadableFile, whole_text

if TYPE_CHECKING:
    from pathlib import Path

NAME = re.compile(r"[!-9;-~][ -~]{0,99}")
"""A class or an id: printable ASCII, because both become dimensions of CloudWatch metrics."""
LARGEST_BYTES = 16 * 2**20
_MOST_PROBLEMS = 20
_OURS, _TURNS, _SHARED, _BATCH = (
    "JSON lines",
    "Spec-Bench format, first turns only",
    "ShareGPT format, first turns only",
    "OpenAI batch format",
)
_OWN_KEYS = ("prompt", "messages", "text")
_FORMATS = {**dict.fromkeys(_OWN_KEYS, _OURS), "turns": _TURNS, "conversations": _SHARED, "body": _BATCH}
"""By the first of these keys that an entry has."""
_IDS, _CLASSES, _LIMITS = (
    ("id", "question_id", "custom_id"),
    ("class", "category"),
    ("max_tokens", "max_completion_tokens"),
)


@dataclass(frozen=True)
class Line:
    """An entry of a file: `id`, `class`, either `prompt` or `messages`, and `max_tokens` where it has its own."""

    place: str
    """`line 9 of mine.jsonl`."""
    content: dict[str, Any]


@dataclass(frozen=True)
class PromptFile:
    """What could be read of a file, and what could not."""

    format: str
    lines: tuple[Line, ...]
    problems: tuple[Finding, ...]


class _Unusable(Exception):
    """Why an entry cannot be used, and what to do."""


def read_file(path: Path, *, name: str) -> PromptFile:
    """The file at `path`, which messages call `name`."""
    try:
        entries = _entries(whole_text(path, most_bytes=LARGEST_BYTES), name)
    except (UnreadableFile, _Unusable) as error:
        remedy = "give JSON lines or a JSON list in UTF-8, with no more than the prompts to ask"
        return PromptFile("", (), (Finding("prompts.file", name, str(error.args[0]), remedy),))
    unnamed = path.stem if NAME.fullmatch(path.stem) else "all"
    formats: list[str] = []
    lines: list[Line] = []
    problems: list[Finding] = []
    for number, (place, text) in enumerate(entries, start=1):
        try:
            entry = _object(text)
            formats.append(_format_of(entry))
            if formats[-1] != formats[0]:
                raise _Unusable(
                    f"is {formats[-1]}, and the file began as {formats[0]}", "keep one format a file"
                )
            lines.append(Line(place, _line(entry, formats[0], unnamed, number)))
        except _Unusable as error:
            problems.append(Finding("prompts.file", place, *error.args))
    problems += [
        Finding("prompts.file", name, f"id {id_!r} stands {count} times", "make ids distinct")
        for id_, count in Counter(line.content["id"] for line in lines).items()
        if count > 1
    ]
    return PromptFile(formats[0] if formats else "", tuple(lines), tuple(first_of(problems, name)))


def first_of(problems: list[Finding], name: str) -> list[Finding]:
    """As many as a person reads; a file of another format is wrong in every line."""
    if len(problems) <= _MOST_PROBLEMS:
        return problems
    more = f"{len(problems) - _MOST_PROBLEMS} more lines are wrong"
    return [*problems[:_MOST_PROBLEMS], Finding("prompts.file", name, more, "fix these first")]


def _entries(text: str, name: str) -> list[tuple[str, str]]:
    """Each entry as JSON, and where it stands: in a list, or on a line of its own."""
    if text.lstrip().startswith("["):
        try:
            in_list = enumerate(json.loads(text), start=1)
            found = [(f"entry {number} of {name}", json.dumps(one)) for number, one in in_list]
        except (ValueError, RecursionError) as error:
            raise _Unusable(f"begins as a JSON list and is not JSON ({error})") from None
    else:
        lines = enumerate(text.split("\n"), start=1)
        found = [(f"line {number} of {name}", line) for number, line in lines if line.strip()]
    if not found:
        raise _Unusable("holds no prompt")
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        entry: Any = json.loads(text)
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Unusable("holds half a character (a lone surrogate)", "write whole characters") from None
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"is not JSON ({error})", "write one JSON object a line, or one JSON list") from None
    if not isinstance(entry, dict):
        raise _Unusable(
            f"is not a JSON object: {_short(entry)}", 'write {"id": ..., "class": ..., "prompt": ...}'
        )
    return entry


def _format_of(entry: dict[str, Any]) -> str:
    for key, name in _FORMATS.items():
        if key in entry:
            return name
    keys = ", ".join(f"`{key}`" for key in sorted(entry))
    why = (
        f"needs either `prompt` or `messages` and has {f'only {shortened(keys, 200)}' if keys else 'no key'}"
    )
    raise _Unusable(why, f"give one of them, or a known format (one of the keys {', '.join(_FORMATS)})")


def _line(entry: dict[str, Any], format_: str, unnamed: str, number: int) -> dict[str, Any]:
    """An entry in the form of our own lines."""
    class_ = _name(entry, _CLASSES, unnamed)
    common = {"id": _name(entry, _IDS, f"{class_}-{number}"), "class": class_}
    if format_ == _TURNS:
        first = entry["turns"][:1] if isinstance(entry["turns"], list) else []
        return common | _said("turns", entry["turns"], first)
    if format_ == _SHARED:
        turns = entry["conversations"] if isinstance(entry["conversations"], list) else []
        said = [one.get("value") for one in turns if isinstance(one, dict) and one.get("from") == "human"]
        return common | _said("conversations", entry["conversations"], said)
    asked = entry["body"] if format_ == _BATCH else entry
    if not isinstance(asked, dict):
        raise _Unusable(f"`body` is {_short(asked)}", "give the body of a request, a JSON object")
    own = [key for key in _OWN_KEYS if key in asked]
    if len(own) != 1:
        found = " and ".join(f"`{key}`" for key in own) or "neither"
        raise _Unusable(f"needs either `prompt` or `messages` and has {found}", "give one of them")
    for key in asked.keys() - set(_LIMITS):
        if close := difflib.get_close_matches(key, _LIMITS, n=1, cutoff=0.8):
            raise _Unusable(f"has the key {_short(key)}", f"did you mean `{close[0]}`?")
    limit = next((asked[key] for key in _LIMITS if asked.get(key) is not None), None)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise _Unusable(f"`max_tokens` is {_short(limit)}", "give a whole number above 0")
    key = "messages" if own == ["messages"] else "prompt"
    return common | {key: asked[own[0]]} | ({"max_tokens": limit} if limit else {})


def _name(entry: dict[str, Any], keys: tuple[str, ...], otherwise: str) -> str:
    """The first of `keys` in the entry; a number counts as text."""
    key = next((key for key in keys if key in entry), None)
    value = otherwise if key is None else str(entry[key]) if type(entry[key]) is int else entry[key]
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise _Unusable(f"`{key}` is {_short(value)}", "give printable ASCII, 100 characters at most")
    return value


def _said(key: str, value: Any, turns: list[Any]) -> dict[str, Any]:
    if not (turns and isinstance(turns[0], str) and turns[0].strip()):
        raise _Unusable(
            f"`{key}` has no first turn of the user: {_short(value)}", "give its text, or remove the entry"
        )
    return {"messages": [{"role": "user", "content": turns[0]}]}


def _short(value: Any) -> str:
    return shortened(repr(value), 60)
