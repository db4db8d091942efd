"""`prompts`: a file of prompts, or a gateway's access log with the times at which its requests came, as JSON lines.

Of a log times, lengths and classes are kept, texts only on request: without that, each prompt gets a made-up text of the recorded
length and says so, because how many drafts are accepted depends on the text. The sources of the formats are in docs/replay.md.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import AfterValidator, AliasChoices, BaseModel, Field, ValidationError

from benchmark import prompt_files
from benchmark.prompt_files import Unusable
from core.files import UnreadableFile, whole_text
from core.findings import Finding, Misuse
from core.safe_output import shortened
from core.words import count, is_label
from experiment.__main__ import print_lines, print_prompts
from operations.options import FILE

_MOST_BYTES = 64 * 2**20
"""The most that is read of a log, from its beginning; what a run takes of it is a quarter of that."""
_FORMATS = {
    "LiteLLM log": ("startTime", "prompt_tokens"),
    "Envoy AI Gateway access log": ("start_time", "genai_tokens_input"),
    "nginx access log": ("msec", "request_body"),
}
"""Two keys by which an entry of each is known."""
_WORDS = "the of and to in is it you that he was for on are as with at be this from or had by but not what all we can out"
"""Common words, nearly always a token each."""
_EACH_WORD = _WORDS.split()
_NUMBERED_BYTES = 60
"""What number and arrival add to a line, at most."""
_Time = Annotated[datetime, AfterValidator(lambda at: at if at.tzinfo else at.replace(tzinfo=UTC))]
_Tokens = Annotated[int, Field(ge=0, le=1 << 20)] | None
_REMEDY = "give times as seconds or as 2026-11-22T18:15:46.68Z, and lengths as whole numbers up to 1,048,576"


class _LoggedRequest(BaseModel):
    """One request; nginx logs it at its end, and its body instead of tokens."""

    at: _Time = Field(validation_alias=AliasChoices("startTime", "start_time", "msec"))
    request_time: float = Field(0.0, ge=0, allow_inf_nan=False)
    given: _Tokens = Field(None, validation_alias=AliasChoices("prompt_tokens", "genai_tokens_input"))
    taken: _Tokens = Field(None, validation_alias=AliasChoices("completion_tokens", "genai_tokens_output"))
    max_tokens: _Tokens = Field(None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens"))
    messages: Any = None
    prompt: Any = None
    request_body: Any = None

    def line(self, made_up: random.Random | None) -> dict[str, Any] | None:
        """What it asked, the text made up where there is a source of chance; nothing where it was not answered."""
        messages = self.messages if isinstance(self.messages, list) else []
        if not messages and isinstance(self.prompt, str):
            messages = [{"role": "user", "content": self.prompt}]
        words, limit, characters = self.given, self.taken, None
        if (
            self.request_body is not None
        ):  # no tokens were counted, so a text as long as the one that was sent
            texts = (str(one.get("content")) for one in messages if isinstance(one, dict))
            words = characters = len("\n".join(texts))
            limit = self.max_tokens
        if not words or (characters is None and not limit):
            return None
        limits = {"max_tokens": limit} if limit else {}
        if made_up is not None:
            content = " ".join(made_up.choices(_EACH_WORD, k=words))[:characters]
            return limits | {"messages": [{"role": "user", "content": content}], "made_up": True}
        if not messages:
            raise Unusable("has no text of its request", "leave --texts out, and texts are made up")
        return limits | {"messages": messages}


@click.command()
@click.argument("path", type=FILE, metavar="FILE")
@click.option(
    "--tokenizer",
    type=FILE,
    metavar="FILE",
    help="The target's tokenizer.json: write `tokens`, the length of each prompt, into its line.",
)
@click.option("--log", is_flag=True, help=f"FILE is an access log: {', '.join(_FORMATS)}.")
@click.option("--texts", is_flag=True, help="With --log: keep the texts, which are made up otherwise.")
@click.option("--class", "class_key", metavar="KEY", default="", help="With --log: the key of the class.")
@click.option("--seed", type=int, metavar="N", default=1, help="Of made-up texts; by default 1.")
def command(path: Path, tokenizer: Path | None, log: bool, texts: bool, class_key: str, seed: int) -> int:
    """Print a file of prompts as JSON lines, which a run takes; of an access log with the times of its requests.

    What the file is, and what was left out, goes to stderr.
    """
    if log and tokenizer:
        remedy = "write the log's prompts to a file first, and count these"
        raise Misuse(f"--tokenizer does not go with --log; {remedy}")
    if (texts or class_key) and not log:
        raise Misuse("--texts and --class go with --log; add it, or leave them out")
    if log:
        lines, remarks = converted(path, texts=texts, class_key=class_key, seed=seed)
        print("\n".join(remarks), file=sys.stderr)
        print_lines(lines)
    else:
        print_prompts(path, tokenizer)
    return 0


def converted(path: Path, *, texts: bool, class_key: str, seed: int) -> tuple[list[str], list[str]]:
    """The requests of a log by arrival, as lines of JSON, and what there is to say of them.

    A log that is being written may begin and end in half a line, so entries that cannot be used are left out, and the first of them
    is named. `class_key`: where the class is, with dots into objects. Raises `Misuse` where nothing is left.
    """
    format_, arrivals, left_out, size = "", list[tuple[float, str]](), Counter[str](), 0
    problem: Finding | None = None
    unnamed = path.stem if is_label(path.stem) else "all"
    try:
        text = whole_text(path, max_bytes=_MOST_BYTES, beginning=True)
        cut = path.stat().st_size > _MOST_BYTES
        for number, (place, entry_text) in enumerate(prompt_files.entries_of(text, path.name), start=1):
            try:
                entry = prompt_files.entry_of(entry_text)
                format_ = format_ or _format_of(entry, path)
                body: dict[str, Any] = {}
                with suppress(Unusable):  # of a body that is not JSON nothing is known
                    body = prompt_files.entry_of(str(entry.get("request_body")))
                request = _LoggedRequest.model_validate({**body, **entry})
                asked = request.line(None if texts else random.Random(f"{seed}/{number}"))
                if asked is None:
                    left_out["without an answer"] += 1
                    continue
                line = prompt_files.as_line({"class": _class(entry, class_key, unnamed)} | asked)
            except (Unusable, ValidationError) as error:
                left_out["that cannot be used"] += 1
                problem = problem or Finding(place, None, *_reason(error))
                continue
            size += len(line.encode()) + _NUMBERED_BYTES
            full = size > prompt_files.MAX_BYTES or len(arrivals) + 1 == prompt_files.MAX_ENTRIES
            if arrivals and full:
                cut = True
                break
            arrivals.append((request.at.timestamp() - request.request_time, line))
    except (UnreadableFile, Unusable) as error:
        if not (arrivals and cut):  # what was read up to where a long list was cut is kept
            raise Misuse(Finding(path.name, None, error.args[0], "give JSON lines or a JSON list")) from None
    if not arrivals:
        why = f"none of its {count(left_out['without an answer'], 'entry')} has a length of prompt and answer"
        raise Misuse(problem or Finding(path.name, None, why, "give a log of requests that were answered"))
    arrivals.sort(key=lambda one: one[0])
    first_s = arrivals[0][0]
    lines = [
        f'{{"id": "request-{number}", "at_s": {round(at_s - first_s, 6)}, {line[1:]}'
        for number, (at_s, line) in enumerate(arrivals, start=1)
    ]
    remarks = [f"{path.name}: {count(len(lines), 'prompt')} in {arrivals[-1][0] - first_s:g} s, {format_}"]
    if left_out:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(left_out.items()))
        remarks.append(f"left out: {kinds}")
    if cut:
        most = f"{prompt_files.MAX_BYTES >> 20} MiB and fewer than {prompt_files.MAX_ENTRIES:,} prompts"
        remarks.append(f"only the beginning of the log was read: a run takes {most}")
    if not texts:
        remarks.append("texts are made up, so a replay cannot tell how much drafting helps your traffic")
    return lines, ["; ".join(remarks), *([problem.line()] if problem else [])]


def _format_of(entry: dict[str, Any], path: Path) -> str:
    for name, keys in _FORMATS.items():
        if all(key in entry for key in keys):
            return name
    known = "; ".join(", ".join(keys) for keys in _FORMATS.values())
    why = f"is not a known log: its first entry has {shortened(', '.join(sorted(entry)), 200) or 'no key'}"
    remedy = f"known by two keys each: {known}; of another log write lines with `at_s` (docs/replay.md)"
    raise Misuse(Finding(path.name, None, why, remedy))


def _class(entry: dict[str, Any], key: str, unnamed: str) -> str:
    """What `key` names, or else what files of prompts name so."""
    if not key:
        return prompt_files.name_in(entry, prompt_files.CLASSES, unnamed)
    value: Any = entry
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        raise Unusable(f"has no `{shortened(key, 60)}`", "name a key that entries have with --class")
    return prompt_files.name_in({key: value}, (key,), "")


def _reason(error: Unusable | ValidationError) -> tuple[str, str]:
    """Why an entry cannot be used, and what to do."""
    if isinstance(error, Unusable):
        return error.args[0], error.args[1]
    first = error.errors(include_url=False)[0]
    value = "missing" if first["type"] == "missing" else shortened(repr(first["input"]), 60)
    return f"`{first['loc'][0]}` is {value}", _REMEDY
