"""The prompts of an experiment: inline classes, or a file of JSON lines."""

from __future__ import annotations

import json
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
        return _from_file(section.file, folder)
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
    counts = {name: len(set(texts)) for name, texts in classes.items()}
    return PromptReading(tuple(prompts), (*problems, *_too_few(counts, "prompts.classes.{}")))


def _from_file(name: str, folder: Path) -> PromptReading:
    try:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
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
        result = _line(line, f"line {number} of {name}")
        if isinstance(result, Prompt):
            prompts.append(result)
        else:
            problems.append(result)
    ids = [prompt.id for prompt in prompts]
    problems += [
        Problem("prompts.file", name, f"id {id_!r} stands {ids.count(id_)} times", "make ids distinct")
        for id_ in dict.fromkeys(ids)
        if ids.count(id_) > 1
    ]
    counts: dict[str, int] = {}
    for class_name, _ in {(prompt.class_name, prompt.text or prompt.messages) for prompt in prompts}:
        counts[class_name] = counts.get(class_name, 0) + 1
    return PromptReading(tuple(prompts), (*problems, *_too_few(dict(sorted(counts.items())), "prompts.file")))


def _line(line: str, where: str) -> Prompt | Problem:
    """One line of a prompts file: `{"id", "class", "prompt" | "messages", "max_tokens"?}`."""

    def wrong(why: str, remedy: str) -> Problem:
        return Problem("prompts.file", where, why, remedy)

    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        return wrong(f"is no JSON ({error})", "write one JSON object a line")
    if not isinstance(entry, dict) or not entry.keys() <= LINE_KEYS:
        return wrong("is no object of known keys", f"known: {', '.join(sorted(LINE_KEYS))}")
    if not all(isinstance(entry.get(key), str) and entry[key] for key in ("id", "class")):
        return wrong("`id` and `class` must be texts", "give both")
    if ("prompt" in entry) == ("messages" in entry):
        return wrong("needs either `prompt` or `messages`", "keep one of them")
    limit = entry.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        return wrong(f"`max_tokens` is {limit!r}", "give a whole number above 0")
    messages = _messages(entry.get("messages", []))
    if messages is None or (
        "prompt" in entry and not (isinstance(entry["prompt"], str) and entry["prompt"].strip())
    ):
        return wrong("has an empty or malformed prompt", 'messages are [{"role": "user", "content": "..."}]')
    return Prompt(
        id=entry["id"],
        class_name=entry["class"],
        text=entry.get("prompt"),
        messages=messages,
        max_tokens=limit,
    )


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
    return tuple(pairs)


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
