"""`prompts`: an access log of OpenAI-style requests as prompts that arrive when its requests did.

What is kept are times, lengths and classes. Texts are kept on request only: without that, each prompt gets a made-up text of the
recorded length, and says so, because how many drafts are accepted depends on the text. The sources of the formats are in
docs/replay.md.
"""

from __future__ import annotations

import csv
import json
import math
import random
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from core.edge import shortened
from experiment.__main__ import main as prompts_of
from experiment.finding import Finding, Misuse
from experiment.parsing import UnreadableFile, whole_text
from experiment.prompt_files import (
    CLASSES,
    LARGEST_BYTES,
    NAME,
    Unusable,
    entries_of,
    entry_of,
    name_in,
    told_once,
)
from operations.options import FILE

_MOST_BYTES = 512 * 2**20
_MADE_UP = "texts are made up, so a replay cannot tell how much drafting helps your traffic"
_FORMATS = {
    "Mooncake trace": ("timestamp", 1000, "input_length", "output_length"),
    "Azure LLM inference trace": ("TIMESTAMP", 1, "ContextTokens", "GeneratedTokens"),
    "BurstGPT trace": ("Timestamp", 1, "Request tokens", "Response tokens"),
    "LiteLLM log": ("startTime", 1, "prompt_tokens", "completion_tokens"),
    "Envoy AI Gateway access log": ("start_time", 1, "genai_tokens_input", "genai_tokens_output"),
    "nginx access log": ("msec", 1, "request_body", ""),
}
"""By name: the key of the time, its units a second, and the keys of both lengths, in tokens."""
_WORDS = "the of and to in is it you that he was for on are as with at be this from or had by but not what all we can out"
"""Common words, nearly always a token each."""
_MOST_TOKENS = 1 << 20
"""A longer prompt or answer is a mistake of the log."""


@click.command()
@click.argument("path", type=FILE, metavar="FILE")
@click.option("--log", is_flag=True, help=f"FILE is an access log or a trace: {', '.join(_FORMATS)}.")
@click.option("--texts", is_flag=True, help="With --log: keep the texts, which are made up otherwise.")
@click.option("--class", "class_key", metavar="KEY", default="", help="With --log: the key of the class.")
@click.option("--seed", type=int, metavar="N", default=1, help="Of made-up texts; by default 1.")
def command(path: Path, log: bool, texts: bool, class_key: str, seed: int) -> int:
    """Print a file of prompts as JSON lines, which a run takes; of an access log with the times of its requests.

    What the file is, and what was left out, goes to stderr.
    """
    if not log:
        if texts or class_key:
            raise Misuse("--texts and --class go with --log; add it, or leave them out")
        return prompts_of(["prompts", str(path)], prog="trnspec")
    format_, lines, unanswered, unusable = read_log(path, texts=texts, class_key=class_key, seed=seed)
    remarks = [f"{len(lines)} prompts in {lines[-1]['at_s']:g} s, {format_}"]
    left_out = {"without an answer": unanswered, "that cannot be used": len(unusable)}
    if any(left_out.values()):
        remarks += [f"left out: {', '.join(f'{count} {why}' for why, count in left_out.items() if count)}"]
    remarks += [] if texts else [_MADE_UP]
    text = "\n".join(map(json.dumps, lines))
    if len(text) > LARGEST_BYTES:
        remarks.append(
            f"above {LARGEST_BYTES >> 20} MiB, which a run reads; take the first, as with head -n 1000"
        )
    told = [f"{path.name}: {'; '.join(remarks)}", *(one.line() for one in told_once(unusable))]
    print("\n".join(told), file=sys.stderr)
    print(text, flush=True)
    return 0


def read_log(
    path: Path, *, texts: bool, class_key: str, seed: int
) -> tuple[str, list[dict[str, Any]], int, list[Finding]]:
    """The format of the log at `path`, its requests in the order of arrival, how many entries have no answer, and what is wrong
    with those that cannot be used: a log may end in half a line. `texts`: keep what was asked; `class_key`: where the class is,
    with dots into objects; `seed`: of made-up texts. Raises `Misuse` where nothing is left.
    """
    unusable: list[Finding] = []
    found: list[tuple[float, dict[str, Any]]] = []
    try:
        entries = _entries(whole_text(path, most_bytes=_MOST_BYTES), path.name)
        format_ = _format_of(_first_of(entries))
    except (UnreadableFile, Unusable) as error:
        remedy = (
            error.args[1] if len(error.args) > 1 else "give JSON lines, a JSON list, or CSV with a heading"
        )
        raise Misuse(Finding(path.name, None, str(error.args[0]), remedy)) from None
    unnamed = path.stem if NAME.fullmatch(path.stem) else "all"
    for number, (place, text) in enumerate(entries, start=1):
        try:
            entry = entry_of(text)
            if asked := _asked(entry, format_, None if texts else random.Random(f"{seed}/{number}")):
                class_ = name_in(_classed(entry, class_key), (class_key,) if class_key else CLASSES, unnamed)
                found.append((_arrived_s(entry, format_), {"class": class_} | asked))
        except Unusable as error:
            unusable.append(Finding(place, None, *error.args))
    if not found and unusable:
        raise Misuse(*told_once(unusable))
    if not found:
        why = f"none of its {len(entries)} entries has a length of prompt and answer"
        raise Misuse(Finding(path.name, None, why, "give a log of requests that were answered"))
    found.sort(key=lambda one: one[0])
    lines = [
        {"id": f"request-{number}", "at_s": round(at_s - found[0][0], 6)} | content
        for number, (at_s, content) in enumerate(found, start=1)
    ]
    return format_, lines, len(entries) - len(found) - len(unusable), unusable


def _first_of(entries: list[tuple[str, str]]) -> dict[str, Any]:
    """The first entry that is whole: a log may begin in the middle of a line."""
    for _, text in entries:
        with suppress(Unusable):
            return entry_of(text)
    return entry_of(entries[0][1])


def _entries(text: str, name: str) -> list[tuple[str, str]]:
    if not text.strip() or any(line.lstrip()[:1] in ("{", "[") for line in text.lstrip().split("\n", 2)[:2]):
        return entries_of(text, name)
    rows = csv.DictReader(text.splitlines())
    found = [
        (f"line {rows.line_num} of {name}", json.dumps({str(k): v for k, v in row.items()})) for row in rows
    ]
    if not found:
        raise Unusable("has one line, and a log in CSV has a heading and entries")
    return found


def _format_of(entry: dict[str, Any]) -> str:
    for name, (at, _, given, _) in _FORMATS.items():
        if at in entry and given in entry:
            return name
    known = "; ".join(f"{at}, {given}" for at, _, given, _ in _FORMATS.values())
    keys = shortened(", ".join(sorted(entry)), 200)
    raise Unusable(
        f"is not a known log format, its first entry has {keys or 'no key'}",
        f"known by two keys each: {known}",
    )


def _asked(entry: dict[str, Any], format_: str, chance: random.Random | None) -> dict[str, Any] | None:
    """What an entry asked, its text made up where there is `chance`; nothing where it was not answered."""
    _, _, given, taken = _FORMATS[format_]
    try:
        body = entry if taken else entry_of(str(entry[given]))
    except (Unusable, LookupError):
        return None
    messages, said = body.get("messages"), body.get("prompt")
    if isinstance(messages, list):
        said = "\n".join(str(one.get("content")) for one in messages if isinstance(one, dict))
    elif isinstance(said, str):
        messages = [{"role": "user", "content": said}]
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    most = _count(entry, taken) if taken else _count(body, limit)
    own = {"max_tokens": most} if most else {}
    words = _count(entry, given) if taken else len(said) // 2 + 1 if isinstance(said, str) else 0
    if not words or (taken and not most):
        return None
    if chance is None:
        if not messages:
            raise Unusable("has no text of its request", "leave --texts out, and texts are made up")
        return own | {"messages": messages}
    text = " ".join(chance.choices(_WORDS.split(), k=words))
    text = text if taken else text[: len(said or "")]  # where no tokens were counted, as many characters
    return own | {"messages": [{"role": "user", "content": text}], "made_up": True}


def _classed(entry: dict[str, Any], key: str) -> dict[str, Any]:
    """The entry, or its value at `key` alone where one is named."""
    if not key:
        return entry
    found: Any = entry
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if found is None:
        raise Unusable(f"has no `{shortened(key, 60)}`", "name a key that entries have with --class")
    return {key: found}


def _count(entry: dict[str, Any], key: str) -> int:
    """A length; 0 where it is missing."""
    try:
        count = max(0, int(float(entry[key])))
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0
    if count > _MOST_TOKENS:
        raise Unusable(
            f"`{key}` is {shortened(repr(entry[key]), 60)}, above {_MOST_TOKENS:,} tokens",
            "correct the length",
        )
    return count


def _arrived_s(entry: dict[str, Any], format_: str) -> float:
    """When a request came, in seconds. nginx writes it down at its end."""
    at, per_s, _, taken = _FORMATS[format_]
    return _time(entry, at) / per_s - (0.0 if taken else _time(entry, "request_time"))


def _time(entry: dict[str, Any], key: str) -> float:
    value = entry.get(key)
    try:
        try:
            found = float(value)  # type: ignore[arg-type]
        except ValueError:
            date = datetime.fromisoformat(str(value))
            found = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        if math.isfinite(found):
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise Unusable(
        f"`{key}` is {shortened(repr(value), 60)}", "give a number or a date as 2026-11-22T18:15:46.68Z"
    )
