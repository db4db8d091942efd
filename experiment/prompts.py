"""The prompts of an experiment: inline classes, or a file of JSON lines."""

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
    from collections.abc import Iterable
    from pathlib import Path

    from experiment.model import PromptsSection

MIN_PROMPTS_PER_CLASS = 8
"""Below about six distinct prompts an interval over prompts says nothing; eight leaves room for two failures."""
NAME = re.compile(r"[!-9;-~][ -~]{0,99}")
"""A class or an id: printable ASCII, because both become dimensions of CloudWatch metrics."""
MOST_LINES = 20
LARGEST_BYTES = 16 * 2**20
OPTIONAL_KEY = "max_tokens"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of one class; `messages` for chat, `text` for completions, never both."""

    id: str
    class_name: str
    text: str | None = None
    messages: tuple[tuple[str, str], ...] = ()
    """Role and content, in order."""
    max_tokens: int | None = None

    @property
    def utf8_bytes(self) -> int:
        """Upper bound of its tokens: a byte-level vocabulary never needs more than one token a byte."""
        contents = [self.text] if self.text is not None else [content for _, content in self.messages]
        return sum(len(content.encode()) for content in contents)


Read = tuple[tuple[Prompt, ...], tuple[Finding, ...]]
"""What could be read, and what could not."""


def read_prompts(section: PromptsSection, *, endpoint: str, folder: Path) -> Read:
    """Prompts of the section; a file's path is relative to the experiment file's folder."""
    if (section.classes is None) == (section.file is None):
        why = "needs either `classes` or `file`, and only one"
        return (), (Finding("prompts", None, why, "keep one of them"),)
    if section.file is not None:
        return _from_file(section.file, endpoint, folder)
    return _inline(section.classes or {}, endpoint)


def _inline(classes: dict[str, list[str]], endpoint: str) -> Read:
    problems = [
        Finding(
            f"prompts.classes.{name}[{number}]", text, "the prompt is empty", "write a prompt or remove it"
        )
        for name, texts in classes.items()
        for number, text in enumerate(texts)
        if not text.strip()
    ]
    remedy = "use printable ASCII, 100 characters at most"
    problems += [
        Finding(f"prompts.classes.{name}", name, "is no name of a class", remedy)
        for name in classes
        if not NAME.fullmatch(name)
    ]
    prompts = tuple(
        Prompt(id=f"{name}-{number}", class_name=name, **_asked(text, endpoint))
        for name, texts in classes.items()
        for number, text in enumerate(texts, start=1)
    )
    counts = {name: len(set(texts)) for name, texts in classes.items()}
    return prompts, (*problems, *_too_few(counts, "prompts.classes.{}"))


def _asked(text: str, endpoint: str) -> dict[str, Any]:
    """A text as the endpoint takes it: for chat, it is what the user says."""
    return {"messages": (("user", text),)} if endpoint == "chat" else {"text": text}


def _from_file(name: str, endpoint: str, folder: Path) -> Read:
    try:
        lines = whole_text(folder / name, most_bytes=LARGEST_BYTES).split("\n")
    except UnreadableFile as error:
        remedy = "give a file of JSON lines in UTF-8, relative to the experiment file"
        return (), (Finding("prompts.file", name, str(error), remedy),)
    results = [
        _line(line, f"line {number} of {name}", endpoint)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    prompts = tuple(one for one in results if isinstance(one, Prompt))
    problems = [one for one in results if isinstance(one, Finding)]
    distinct = {(prompt.class_name, prompt.text, prompt.messages) for prompt in prompts}
    counts = Counter(class_name for class_name, *_ in distinct)
    few = () if problems else _too_few(dict(sorted(counts.items())), "prompts.file")
    problems += [
        Finding("prompts.file", name, f"id {id_!r} stands {count} times", "make ids distinct")
        for id_, count in Counter(prompt.id for prompt in prompts).items()
        if count > 1
    ]
    return prompts, (*_first(problems, name), *few)


def _first(problems: list[Finding], name: str) -> list[Finding]:
    """As many as a person reads; a file of another format is wrong in every line."""
    if len(problems) <= MOST_LINES:
        return problems
    more = f"{len(problems) - MOST_LINES} more lines are wrong"
    return [*problems[:MOST_LINES], Finding("prompts.file", name, more, "fix these first")]


def _line(line: str, where: str, endpoint: str) -> Prompt | Finding:
    """One line of a prompts file: `{"id", "class", "prompt" | "messages", "max_tokens"?}`; other keys are not read."""

    def wrong(why: str, remedy: str) -> Finding:
        return Finding("prompts.file", where, why, remedy)

    try:
        entry: Any = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return wrong("holds half a character (a lone surrogate)", "write whole characters")
    except (ValueError, RecursionError) as error:
        return wrong(f"is not JSON ({error})", "write one JSON object a line")
    if not isinstance(entry, dict):
        return wrong("is not a JSON object", 'write {"id": ..., "class": ..., "prompt": ...}')
    for key in ("id", "class"):
        if not isinstance(entry.get(key), str) or not NAME.fullmatch(entry[key]):
            said = f"is {shortened(repr(entry[key]), 60)}" if key in entry else "is missing"
            return wrong(f"`{key}` {said}", "give printable ASCII, 100 characters at most")
    if ("prompt" in entry) == ("messages" in entry):
        keys = f"only {', '.join(f'`{key}`' for key in sorted(entry))}"
        found = "both" if "prompt" in entry else shortened(keys, 200)
        return wrong(f"needs either `prompt` or `messages` and has {found}", "give one of them")
    for key in entry.keys() - {OPTIONAL_KEY}:
        if difflib.get_close_matches(key, [OPTIONAL_KEY], cutoff=0.8):
            return wrong(f"has the key {shortened(repr(key), 60)}", f"did you mean `{OPTIONAL_KEY}`?")
    limit = entry.get(OPTIONAL_KEY)
    if limit is not None and (type(limit) is not int or limit < 1):
        return wrong(f"`max_tokens` is {shortened(repr(limit), 60)}", "give a whole number above 0")
    key = "prompt" if "prompt" in entry else "messages"
    return _prompt(entry, endpoint) or wrong(
        f"`{key}` is empty or malformed for endpoint {endpoint}: {shortened(repr(entry[key]), 60)}",
        '`messages` are [{"role": "user", "content": "..."}] and for chat only; `prompt` goes with both',
    )


def _prompt(entry: dict[str, Any], endpoint: str) -> Prompt | None:
    """A prompt as the experiment's endpoint takes it; nothing where it is empty or malformed."""
    common = {"id": entry["id"], "class_name": entry["class"], "max_tokens": entry.get("max_tokens")}
    if "messages" in entry:
        messages = _messages(entry["messages"])
        return Prompt(**common, messages=messages) if messages and endpoint == "chat" else None
    text = entry["prompt"]
    return Prompt(**common, **_asked(text, endpoint)) if isinstance(text, str) and text.strip() else None


def _messages(raw: Any) -> tuple[tuple[str, str], ...] | None:
    """Role and content of each message, or nothing when they are not texts."""
    if not isinstance(raw, list):
        return None
    pairs: list[tuple[str, str]] = []
    for entry in raw:
        match entry:
            case {"role": str(role), "content": str(content)} if content:
                pairs.append((role, content))
            case _:
                return None
    return tuple(pairs) if any(role == "user" for role, _ in pairs) else None


def _too_few(counts: dict[str, int], path: str) -> Iterable[Finding]:
    if not counts:
        yield Finding(path.removesuffix(".{}"), None, "there is no prompt", "add a class with prompts")
    for name, count in counts.items():
        if (missing := MIN_PROMPTS_PER_CLASS - count) > 0:
            fewer = f"an interval over fewer than {MIN_PROMPTS_PER_CLASS} says nothing"
            why = f"class {name!r} has {count} distinct prompts, and {fewer}"
            yield Finding(path.format(name), None, why, f"add {missing} more")
