"""Files of prompts as people have them, read as lines of one form. The keys of an entry tell its format:

- JSON lines: `prompt`, `messages` or `text`; `id`, `class` (or `category`) and `max_tokens` where there are any; for a
  replay `at_s`, `conversation` and `think_s`;
- Spec-Bench and MT-Bench: `question_id`, `category`, `turns`
  (https://github.com/hemingkx/Spec-Bench/blob/main/data/spec_bench/question.jsonl,
  https://github.com/lm-sys/FastChat/blob/main/fastchat/llm_judge/data/mt_bench/question.jsonl);
- ShareGPT: `id`, `conversations` of `from` (`human`, `gpt`) and `value`
  (https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered);
- OpenAI batch: `custom_id`, `body` with `messages` or `prompt`
  (https://platform.openai.com/docs/api-reference/batch/request-input).

Lines with the same `conversation` are its turns, each with what it adds. Where the `messages` of a later turn begin with an
assistant's, that is the recorded answer to the turn before, and is asked as it stands.

Of the turns of Spec-Bench and ShareGPT the user's first is asked: a later one follows an answer that is not in the file, or that
another model gave.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from core.edge import shortened
from experiment.finding import Finding
from experiment.parsing import UnreadableFile, whole_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = re.compile(r"[!-9;-~][ -~]{0,99}")
"""A class or an id: printable ASCII, because both become dimensions of CloudWatch metrics."""
ALL_FORMATS = "JSON lines, MT-Bench, Spec-Bench, ShareGPT or OpenAI batch"
LARGEST_BYTES = 16 * 2**20
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
"""By the first of these keys that an entry has."""
_IDS, CLASSES = ("id", "question_id", "custom_id"), ("class", "category")
_LIMITS = ("max_tokens", "max_completion_tokens")
Line = tuple[str, dict[str, Any]]
"""Where an entry stands (`line 9 of mine.jsonl`); its `id`, `class`, `prompt` or `messages`, and what else it has of its own:
`max_tokens`, `at_s`, `conversation`, `think_s`, `made_up`."""


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
    try:
        entries = entries_of(whole_text(path, most_bytes=LARGEST_BYTES), name)
    except (UnreadableFile, Unusable) as error:
        remedy = "give JSON lines or a JSON list in UTF-8, with no more than the prompts to ask"
        return PromptFile("", (), (Finding("prompts.file", name, str(error.args[0]), remedy),))
    unnamed = path.stem if NAME.fullmatch(path.stem) else "all"
    formats: list[str] = []
    lines: list[Line] = []
    problems: list[Finding] = []
    for number, (place, text) in enumerate(entries, start=1):
        try:
            entry = entry_of(text)
            formats.append(found := _format_of(entry))
            if found != formats[0]:
                raise Unusable(f"is {found}, and the file began as {formats[0]}", "keep one format a file")
            class_ = name_in(entry, CLASSES, unnamed)
            named = {"id": name_in(entry, _IDS, f"{class_}-{number}"), "class": class_}
            asked = named | _asked(entry, found) | (_arrival(entry) if found == _OURS else {})
            lines.append((place, {key: value for key, value in asked.items() if value is not None}))
        except Unusable as error:
            problems.append(Finding("prompts.file", place, *error.args))
    problems = told_once([*problems, *_out_of_time(lines)])
    ids = Counter(content["id"] for _, content in lines)
    for id_, count in ids.most_common(MOST_PROBLEMS):
        if count > 1:
            why = f"id {id_!r} stands {count} times"
            problems.append(Finding("prompts.file", name, why, "make ids distinct"))
    return PromptFile(formats[0] if formats else "", tuple(lines), tuple(problems))


def entries_of(text: str, name: str) -> list[tuple[str, str]]:
    """Each entry as JSON, and where it stands: in a list, or on a line of its own."""
    if text.lstrip().startswith("["):
        try:
            in_list = enumerate(json.loads(text), start=1)
            found = [(f"entry {number} of {name}", json.dumps(one)) for number, one in in_list]
        except (ValueError, RecursionError) as error:
            raise Unusable(f"begins as a JSON list and is not JSON ({error})") from None
    else:
        lines = enumerate(text.split("\n"), start=1)
        found = [(f"line {number} of {name}", line) for number, line in lines if line.strip()]
    if not found:
        raise Unusable("holds no prompt")
    return found


def told_once(problems: list[Finding]) -> list[Finding]:
    """Problems that more than a few lines have, once with their number."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for one in problems:
        alike.setdefault((one.why, one.remedy), []).append(one)
    told: list[Finding] = []
    for first, *more in alike.values():
        many = f"{first.why}; {len(more)} more entries have the same problem"
        told += [first, *more] if len(more) < _FEW else [replace(first, why=many)]
    return told[:MOST_PROBLEMS]


def _arrival(entry: dict[str, Any]) -> dict[str, Any]:
    """When an entry is asked, and after what."""
    found: dict[str, Any] = {"made_up": True} if entry.get("made_up") is True else {}
    for key in ("at_s", "think_s"):
        if (value := entry.get(key)) is not None:
            if type(value) not in (int, float) or not 0 <= value <= MOST_WAIT_S:
                remedy = f"give seconds from 0 to {MOST_WAIT_S:,} (31 days)"
                raise Unusable(f"`{key}` is {_short(value)}", remedy)
            found[key] = value
    if entry.get("conversation") is not None:
        found["conversation"] = name_in(entry, ("conversation",), "")
        if isinstance(text := entry.get("prompt", entry.get("text")), str):
            found |= {"prompt": None, "messages": [{"role": "user", "content": text}]}
    elif "think_s" in found:
        raise Unusable(
            "has `think_s`, but no turn is before it", "give the `conversation` that it is a turn of"
        )
    return found


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
        raise Unusable(f"is not JSON ({error})", "write one JSON object a line, or one JSON list") from None
    if not isinstance(entry, dict):
        raise Unusable(f"is not a JSON object: {_short(entry)}", 'write {"class": ..., "prompt": ...}')
    return entry


def _format_of(entry: dict[str, Any]) -> str:
    for key, name in _FORMATS.items():
        if key in entry:
            return name
    keys = shortened(", ".join(f"`{key}`" for key in sorted(entry)), 200)
    why = f"needs either `prompt` or `messages` and has {f'only {keys}' if keys else 'no key'}"
    raise Unusable(why, f"give one of them, or a known format (one of the keys {', '.join(_FORMATS)})")


def name_in(entry: dict[str, Any], keys: tuple[str, ...], otherwise: str) -> str:
    """The first of `keys` in the entry; a whole number counts as text."""
    key = next((key for key in keys if key in entry), None)
    value = otherwise if key is None else str(entry[key]) if type(entry[key]) is int else entry[key]
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise Unusable(f"`{key}` is {_short(value)}", "give printable ASCII, 100 characters at most")
    return value


def _asked(entry: dict[str, Any], format_: str) -> dict[str, Any]:
    """What an entry asks, with the keys of our own lines."""
    if format_ in (_TURNS, _SHARED):
        key = "turns" if format_ == _TURNS else "conversations"
        turns = entry[key] if isinstance(entry[key], list) else []
        if format_ == _SHARED:
            turns = [
                one.get("value") for one in turns if isinstance(one, dict) and one.get("from") == "human"
            ]
        if not (turns and isinstance(turns[0], str) and turns[0].strip()):
            why = f"`{key}` has no first turn of the user: {_short(entry[key])}"
            raise Unusable(why, "give its text, or remove the entry")
        return {"messages": [{"role": "user", "content": turns[0]}]}
    body = entry["body"] if format_ == _BATCH else entry
    if not isinstance(body, dict):
        raise Unusable(f"`body` is {_short(body)}", "give the body of a request, a JSON object")
    own = [key for key in _OWN_KEYS if key in body]
    if len(own) != 1:
        found = " and ".join(f"`{key}`" for key in own) or "neither"
        raise Unusable(f"needs either `prompt` or `messages` and has {found}", "give one of them")
    for key in body.keys() - set(_LIMITS):
        if close := difflib.get_close_matches(key, _LIMITS, n=1, cutoff=0.8):
            raise Unusable(f"has the key {_short(key)}", f"did you mean `{close[0]}`?")
    limit = next((body[key] for key in _LIMITS if body.get(key) is not None), None)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise Unusable(f"`max_tokens` is {_short(limit)}", "give a whole number above 0")
    asked = {"messages" if own == ["messages"] else "prompt": body[own[0]]}
    return asked if limit is None else asked | {"max_tokens": limit}


def _short(value: Any) -> str:
    return shortened(repr(value), 60)
