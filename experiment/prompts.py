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


@dataclass(frozen=True)
class PromptReading:
    """What could be read, and what could not."""

    prompts: tuple[Prompt, ...]
    problems: tuple[Finding, ...]


def read_prompts(section: PromptsSection, *, endpoint: str, folder: Path) -> PromptReading:
    """Prompts of the section; a file's path is relative to the experiment file's folder."""
    if (section.classes is None) == (section.file is None):
        problem = Finding(
            "prompts", None, "needs either `classes` or `file`, and only one", "keep one of them"
        )
        return PromptReading((), (problem,))
    if section.file is not None:
        return _from_file(section.file, endpoint, folder)
    return _inline(section.classes or {}, endpoint)


def _inline(classes: dict[str, list[str]], endpoint: str) -> PromptReading:
    prompts = [
        Prompt(id=f"{name}-{number}", class_name=name, text=text)
        if endpoint == "completions"
        else Prompt(id=f"{name}-{number}", class_name=name, messages=(("user", text),))
        for name, texts in classes.items()
        for number, text in enumerate(texts, start=1)
    ]
    problems = [
        Finding(
            f"prompts.classes.{name}[{number}]", text, "the prompt is empty", "write a prompt or remove it"
        )
        for name, texts in classes.items()
        for number, text in enumerate(texts)
        if not text.strip()
    ]
    problems += [
        Finding(
            f"prompts.classes.{name}",
            name,
            "is no name of a class",
            "use printable ASCII, 100 characters at most",
        )
        for name in classes
        if not NAME.fullmatch(name)
    ]
    counts = {name: len(set(texts)) for name, texts in classes.items()}
    return PromptReading(tuple(prompts), (*problems, *_too_few(counts, "prompts.classes.{}")))


def _from_file(name: str, endpoint: str, folder: Path) -> PromptReading:
    try:
        lines = whole_text(folder / name, most_bytes=LARGEST_BYTES).split("\n")
    except UnreadableFile as error:
        remedy = "give a file of JSON lines in UTF-8, relative to the experiment file"
        return PromptReading((), (Finding("prompts.file", name, str(error), remedy),))
    prompts: list[Prompt] = []
    problems: list[Finding] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        result = _line(line, f"line {number} of {name}", endpoint)
        if isinstance(result, Prompt):
            prompts.append(result)
        else:
            problems.append(result)
    every_line_read = not problems
    problems += [
        Finding("prompts.file", name, f"id {id_!r} stands {count} times", "make ids distinct")
        for id_, count in Counter(prompt.id for prompt in prompts).items()
        if count > 1
    ]
    distinct = {(prompt.class_name, prompt.text, prompt.messages) for prompt in prompts}
    counts = Counter(class_name for class_name, *_ in distinct)
    few = _too_few(dict(sorted(counts.items())), "prompts.file") if every_line_read else ()
    return PromptReading(tuple(prompts), (*_first(problems, name), *few))


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
    """A prompt as the experiment's endpoint takes it: for chat, a plain text is what the user says."""
    common: dict[str, Any] = {
        "id": entry["id"],
        "class_name": entry["class"],
        "max_tokens": entry.get("max_tokens"),
    }
    if "messages" in entry:
        messages = _messages(entry["messages"])
        return Prompt(**common, messages=messages) if messages and endpoint == "chat" else None
    text = entry["prompt"]
    if not isinstance(text, str) or not text.strip():
        return None
    if endpoint == "chat":
        return Prompt(**common, messages=(("user", text),))
    return Prompt(**common, text=text)


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
        if count < MIN_PROMPTS_PER_CLASS:
            yield Finding(
                path.format(name),
                None,
                f"class {name!r} has {count} distinct prompts, and an interval over "
                f"fewer than {MIN_PROMPTS_PER_CLASS} says nothing",
                f"add {MIN_PROMPTS_PER_CLASS - count} more",
            )
