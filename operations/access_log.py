"""`prompts`: an access log of OpenAI-style requests as prompts that arrive when its requests did.

What is kept are times, lengths and classes. Texts are kept on request only: without that, each prompt gets a made-up text of the
recorded length, and says so, because how many drafts are accepted depends on the text. The sources of the formats are in
docs/replay.md.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from core.edge import shortened
from core.findings import Finding, Misuse
from core.labels import is_label
from core.reading import UnreadableFile, whole_text
from core.words import count
from experiment.__main__ import main as prompts_of
from experiment.__main__ import print_lines
from experiment.prompt_files import (
    CLASSES,
    LARGEST_BYTES,
    MOST_ENTRIES,
    MOST_WRONG,
    Unusable,
    as_line,
    entries_of,
    entry_of,
    name_in,
    rows_of,
    told_once,
)
from operations.options import FILE

_MOST_BYTES = 64 * 2**20
"""Of a log, from its beginning; what a run takes of it is a quarter of that."""
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
_NUMBERED_BYTES = 60
"""What number and arrival add to a line, at most."""
_MOST_TOKENS = 1 << 20
"""A longer prompt or answer is a mistake of the log."""


@click.command()
@click.argument("path", type=FILE, metavar="FILE")
@click.option(
    "--tokenizer",
    type=FILE,
    metavar="FILE",
    help="The target's tokenizer.json: write `tokens`, the length of each prompt, into its line.",
)
@click.option("--log", is_flag=True, help=f"FILE is an access log or a trace: {', '.join(_FORMATS)}.")
@click.option("--texts", is_flag=True, help="With --log: keep the texts, which are made up otherwise.")
@click.option("--class", "class_key", metavar="KEY", default="", help="With --log: the key of the class.")
@click.option("--seed", type=int, metavar="N", default=1, help="Of made-up texts; by default 1.")
def command(path: Path, tokenizer: Path | None, log: bool, texts: bool, class_key: str, seed: int) -> int:
    """Print a file of prompts as JSON lines, which a run takes; of an access log with the times of its requests.

    What the file is, and what was left out, goes to stderr.
    """
    if not log:
        if texts or class_key:
            raise Misuse("--texts and --class go with --log; add it, or leave them out")
        counted = ["--tokenizer", str(tokenizer)] if tokenizer else []
        return prompts_of(["prompts", str(path), *counted], prog="trnspec")
    if tokenizer:
        raise Misuse(
            "--tokenizer does not go with --log; write the log's prompts to a file first, and count these"
        )
    found = read_log(path, texts=texts, class_key=class_key, seed=seed)
    remarks = [f"{count(len(found.lines), 'prompt')} in {found.seconds:g} s, {found.format}"]
    left_out = {"without an answer": found.unanswered, "that cannot be used": found.unusable}
    if any(left_out.values()):
        remarks += [f"left out: {', '.join(f'{number} {why}' for why, number in left_out.items() if number)}"]
    if not found.whole:
        remarks += [
            f"only the beginning of the log was read: a run takes {LARGEST_BYTES >> 20} MiB and fewer than "
            f"{MOST_ENTRIES:,} prompts"
        ]
    remarks += [] if texts else [_MADE_UP]
    told = [f"{path.name}: {'; '.join(remarks)}", *(one.line() for one in told_once(found.problems))]
    print("\n".join(told), file=sys.stderr)
    return print_lines(found.lines)


@dataclass(kw_only=True)
class Log:
    """What was read of a log."""

    format: str = ""
    lines: list[str]
    """JSON, in the order of arrival."""
    seconds: float = 0.0
    """From the first arrival to the last."""
    unanswered: int = 0
    unusable: int = 0
    problems: list[Finding]
    """Of the first `MOST_WRONG` entries that cannot be used."""
    whole: bool = True
    """Whether all of it was read."""


def read_log(path: Path, *, texts: bool, class_key: str, seed: int) -> Log:
    """The log at `path`: a log may end in half a line, so entries that cannot be used are left out. As much of it is read as a run
    takes. `texts`: keep what was asked; `class_key`: where the class is, with dots into objects; `seed`: of made-up texts. Raises
    `Misuse` where nothing is left.
    """
    log = Log(lines=[], problems=[])
    found: list[tuple[float, str]] = []
    size, unnamed = 0, path.stem if is_label(path.stem) else "all"
    keys = (class_key,) if class_key else CLASSES
    try:
        text = whole_text(path, most_bytes=_MOST_BYTES, beginning=True)
        log.whole = path.stat().st_size <= _MOST_BYTES
        for number, (place, entry_text) in enumerate(_entries(text, path.name), start=1):
            try:
                entry = entry_of(entry_text)
                log.format = log.format or _format_of(entry)
                asked = _asked(entry, log.format, None if texts else random.Random(f"{seed}/{number}"))
                if asked:
                    class_ = name_in(_classed(entry, class_key), keys, unnamed)
                    line = as_line({"class": class_} | asked)
                    size += len(line.encode()) + _NUMBERED_BYTES
                    if found and (size > LARGEST_BYTES or len(found) + 1 == MOST_ENTRIES):
                        log.whole = False
                        break
                    found.append((_arrived_s(entry, log.format), line))
                log.unanswered += not asked
            except Unusable as error:
                if isinstance(error, UnknownLog):
                    raise
                log.unusable += 1
                log.problems += [Finding(place, None, *error.args)] if log.unusable <= MOST_WRONG else []
    except (OSError, UnreadableFile, Unusable) as error:
        if log.whole or not found:
            remedy = (
                error.args[1]
                if len(error.args) > 1
                else "give JSON lines, a JSON list, or CSV with a heading"
            )
            raise Misuse(Finding(path.name, None, str(error.args[0]), remedy)) from None
    if not log.format:
        raise Misuse(Finding(path.name, None, log.problems[0].why, log.problems[0].remedy))
    if not found and log.problems:
        raise Misuse(*told_once(log.problems))
    if not found:
        why = f"none of its {count(log.unanswered, 'entry')} has a length of prompt and answer"
        raise Misuse(Finding(path.name, None, why, "give a log of requests that were answered"))
    found.sort(key=lambda one: one[0])
    first_s = found[0][0]
    log.seconds = round(found[-1][0] - first_s, 6)
    for number, (at_s, line) in enumerate(found, start=1):
        log.lines.append(f'{{"id": "request-{number}", "at_s": {round(at_s - first_s, 6)}, {line[1:]}')
    return log


def _entries(text: str, name: str) -> Iterator[tuple[str, str]]:
    if not text.strip() or any(line.lstrip()[:1] in ("{", "[") for line in text.lstrip().split("\n", 2)[:2]):
        return entries_of(text, name)
    return ((place, json.dumps(row)) for place, row in rows_of(text, name))


class UnknownLog(Unusable):
    """The first entry that is whole is not one of a known log."""


def _format_of(entry: dict[str, Any]) -> str:
    for name, (at, _, given, _) in _FORMATS.items():
        if at in entry and given in entry:
            return name
    known = "; ".join(f"{at}, {given}" for at, _, given, _ in _FORMATS.values())
    keys = shortened(", ".join(sorted(entry)), 200)
    raise UnknownLog(
        f"is not a known log: its first entry has {keys or 'no key'}", f"known by two keys each: {known}"
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
