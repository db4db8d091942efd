"""The prompts of an experiment: inline classes, or a file of JSON lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiment.arms import Prompt
from experiment.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from experiment.schema import PromptsSection

MIN_PROMPTS_PER_CLASS = 8
"""Below about six distinct prompts an interval over prompts says nothing; eight leaves room for two failures."""
NAME = re.compile(r"[!-9;-~][ -~]{0,99}")
"""A class or an id: printable ASCII, because both become dimensions of CloudWatch metrics."""
MOST_LINES = 20
LINE_KEYS = {"id", "class", "prompt", "messages", "max_tokens"}


@dataclass(frozen=True)
class PromptReading:
    """What could be read, and what could not."""

    prompts: tuple[Prompt, ...]
    problems: tuple[Problem, ...]


def read_prompts(section: PromptsSection, *, endpoint: str, folder: Path) -> PromptReading:
    """Prompts of the section; a file's path is relative to the experiment file's folder."""
    if (section.classes is None) == (section.file is None):
        problem = Problem(
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
        Problem(
            f"prompts.classes.{name}[{number}]", text, "the prompt is empty", "write a prompt or remove it"
        )
        for name, texts in classes.items()
        for number, text in enumerate(texts)
        if not text.strip()
    ]
    problems += [
        Problem(
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
        lines = (folder / name).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        problem = Problem(
            "prompts.file",
            name,
            f"cannot be read: {reason}",
            "give a file of JSON lines, relative to the experiment file",
        )
        return PromptReading((), (problem,))
    prompts: list[Prompt] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        result = _line(line, f"line {number} of {name}", endpoint)
        if isinstance(result, Prompt):
            prompts.append(result)
        else:
            problems.append(result)
    problems += [
        Problem("prompts.file", name, f"id {id_!r} stands {count} times", "make ids distinct")
        for id_, count in Counter(prompt.id for prompt in prompts).items()
        if count > 1
    ]
    distinct = {(prompt.class_name, prompt.text, prompt.messages) for prompt in prompts}
    counts = Counter(class_name for class_name, *_ in distinct)
    return PromptReading(
        tuple(prompts), (*_first(problems, name), *_too_few(dict(sorted(counts.items())), "prompts.file"))
    )


def _first(problems: list[Problem], name: str) -> list[Problem]:
    """As many as a person reads; a file of another format is wrong in every line."""
    if len(problems) <= MOST_LINES:
        return problems
    more = f"{len(problems) - MOST_LINES} more lines are wrong"
    return [*problems[:MOST_LINES], Problem("prompts.file", name, more, "mend these first")]


def _line(line: str, where: str, endpoint: str) -> Prompt | Problem:
    """One line of a prompts file: `{"id", "class", "prompt" | "messages", "max_tokens"?}`."""

    def wrong(why: str, remedy: str) -> Problem:
        return Problem("prompts.file", where, why, remedy)

    try:
        entry: Any = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return wrong("holds half a character (a lone surrogate)", "write whole characters")
    except (ValueError, RecursionError) as error:
        return wrong(f"is no JSON ({error})", "write one JSON object a line")
    if not isinstance(entry, dict) or not entry.keys() <= LINE_KEYS:
        return wrong("is no object of known keys", f"known: {', '.join(sorted(LINE_KEYS))}")
    if not all(isinstance(entry.get(key), str) and NAME.fullmatch(entry[key]) for key in ("id", "class")):
        return wrong("`id` and `class` must be printable ASCII, 100 characters at most", "give both")
    if ("prompt" in entry) == ("messages" in entry):
        return wrong("needs either `prompt` or `messages`", "keep one of them")
    limit = entry.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        return wrong(f"`max_tokens` is {limit!r}", "give a whole number above 0")
    return _prompt(entry, endpoint) or wrong(
        f"has an empty or malformed prompt for endpoint {endpoint}",
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


def _too_few(counts: dict[str, int], path: str) -> Iterable[Problem]:
    if not counts:
        yield Problem(path.removesuffix(".{}"), None, "there is no prompt", "add a class with prompts")
    for name, count in counts.items():
        if count < MIN_PROMPTS_PER_CLASS:
            yield Problem(
                path.format(name),
                None,
                f"class {name!r} has {count} distinct prompts, and an interval over "
                f"fewer than {MIN_PROMPTS_PER_CLASS} says nothing",
                f"add {MIN_PROMPTS_PER_CLASS - count} more",
            )
