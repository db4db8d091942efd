"""Read files of prompts in common formats (`trnspec.benchmark.prompt_entries`) as entries of one form, and these as prompts of a plan.

An experiment and a run of the benchmark use the same functions, so both take and refuse the same lines.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trnspec.benchmark.plan import REQUEST_FIELDS, PlannedPrompt
from trnspec.benchmark.plan_limits import in_words, one_line
from trnspec.benchmark.prompt_entries import (
    DECODING_FIELDS,
    LENGTHS,
    MORE,
    BeginsWithAnswer,
    Entry,
    Unusable,
    asked,
    format_of,
    sendable,
    short,
)
from trnspec.core.files import UnreadableFile, text_of
from trnspec.core.findings import Finding
from trnspec.core.words import count, is_label, listed

ALL_FORMATS = (
    "JSON lines, CSV, MT-Bench, Spec-Bench, SPEED-Bench, ShareGPT, OpenAI batch or OpenAI fine-tuning, or .gz"
)
_READ = f"give {ALL_FORMATS} in UTF-8; JSON has `prompt`, `messages` or `text` in each entry, CSV a column `prompt`"
MAX_BYTES = 16 * 2**20
MAX_ENTRIES, MAX_WRONG = 100_000, 1000
"""The maximum number of entries of a file, and of wrong entries after which reading stops."""
MAX_PROBLEMS = 20
"""The maximum number of problems that are reported. In a file of another format every line is wrong."""
_MAX_REPEATED_LINES = 3
_MAX_NOTES = 8
_MIN_ALIKE = 8
"""A text that at least so many prompts have, and more than half of them, is a placeholder and not traffic."""
_IN_JSON = {*LENGTHS, *REQUEST_FIELDS, *DECODING_FIELDS, "tokens", "extra"}
"""Columns of CSV whose fields are JSON, where they can be read as such."""
_BLANK = "\ufeff \t\r\n"
_SPACE = re.compile(r"[ \t\r\n]*")
Line = tuple[str, Entry]
"""Where an entry is (`line 9 of mine.jsonl`); its `id`, `class`, `prompt` or `messages`, and what else it has of its own:
`max_tokens`, `tokens`, fields of the request."""


@dataclass(frozen=True)
class PromptFile:
    """The entries of a file, and its problems."""

    format: str
    """Its name, with what is cut, left out or not used, and how often."""
    lines: tuple[Line, ...]
    problems: tuple[Finding, ...]
    name: str


def read_file(path: Path, *, name: str, ignored: Collection[str] = ()) -> PromptFile:
    """The file at `path`, which messages call `name`, without the keys that are `ignored`."""
    formats: list[str] = []
    lines: list[Line] = []
    problems: list[Finding] = []
    notes = Counter[str]()
    stem = Path(path.name.removesuffix(".gz")).stem
    unnamed = stem if is_label(stem) else "all"
    try:
        kind, entries = _entries(text_of(path, max_bytes=MAX_BYTES), name)
        for number, (place, content) in enumerate(entries, start=1):
            try:
                entry = _without(_entry_of(content), ignored, notes)
                formats.append(format_of(entry))
                if formats[-1] != formats[0]:
                    why = f"is {formats[-1]}, and the file began as {formats[0]}"
                    raise Unusable(why, "keep one format per file")
                lines.append((place, asked(entry, formats[-1], notes, unnamed=unnamed, number=number)))
            except BeginsWithAnswer:
                notes["conversation that begins with an answer left out"] += 1
            except Unusable as error:
                problems.append(Finding("prompts.file", place, *error.args))
            if len(problems) == MAX_WRONG:
                why = f"is read no further, because {MAX_WRONG:,} entries are wrong"
                end = Finding("prompts.file", place, why, _READ)
                return PromptFile("", (), (*_each_once(problems), end), name)
            if number == MAX_ENTRIES:
                raise Unusable(f"has {MAX_ENTRIES:,} entries or more")
    except (UnreadableFile, Unusable) as error:
        return PromptFile("", (), (Finding("prompts.file", name, str(error), _READ),), name)
    problems = _each_once(problems)
    for id_, times in Counter(content["id"] for _, content in lines).most_common(MAX_PROBLEMS):
        if times > 1:
            why = f"id {id_!r} appears {times} times"
            problems.append(Finding("prompts.file", name, why, "make ids distinct"))
    if not (lines or problems):
        problems.append(
            Finding("prompts.file", name, "has no conversation that begins with a question", _READ)
        )
    said = ", ".join([kind or formats[0], *_in_words(notes)]) if formats else ""
    return PromptFile(said, tuple(lines), tuple(problems), name)


def _without(entry: Entry, ignored: Collection[str], notes: Counter[str]) -> Entry:
    """The entry without null values and ignored keys, also in the body of a request."""
    kept = {key: value for key, value in entry.items() if value is not None and key not in ignored}
    notes.update(f"`{key}` ignored" for key in ignored if key in entry)
    if isinstance(body := kept.get("body"), dict):
        kept["body"] = _without(body, ignored, notes)
    return kept


def _in_words(notes: Counter[str]) -> Iterator[str]:
    """The notes with their counts; keys that are not used in one list."""
    unused = [f"{note.split(' ')[0]} ({times})" for note, times in notes.items() if note.endswith("not used")]
    yield from (f"{note} ({times})" for note, times in notes.items() if times and "not used" not in note)
    if unused:
        yield f"not used: {listed(unused, max_names=_MAX_NOTES)}"


def planned(
    file: PromptFile, *, endpoint: str, run: Mapping[str, Any]
) -> tuple[list[PlannedPrompt], list[Finding]]:
    """The prompts of a file in the form of a plan, for this endpoint, and all problems. `run` has the fields of every request of the
    run (`temperature` and what `extra_body` adds)."""
    prompts, problems = list[PlannedPrompt](), list[Finding]()
    for place, entry in file.lines:
        try:
            content = sendable(entry, endpoint=endpoint, run=run)
        except Unusable as error:
            problems.append(Finding("prompts.file", place, *error.args))
            continue
        try:
            prompts.append(PlannedPrompt.model_validate(content))
        except ValidationError as error:
            why = one_line(in_words(PlannedPrompt, content, error))
            problems.append(Finding("prompts.file", place, why, "correct the line"))
    alike = Counter((prompt.contents, repr(prompt.request)) for prompt in prompts).most_common(1)
    for (contents, _), times in alike:
        if times >= _MIN_ALIKE and 2 * times > len(prompts):
            why = f"is mostly one text: {times} of {count(len(prompts), 'prompt')} are {short(contents[-1])}"
            problems.append(Finding("prompts.file", file.name, why, "give the prompts themselves, each once"))
    return prompts, [*file.problems, *_each_once(problems)]


def _entries(text: str, name: str) -> tuple[str, Iterator[tuple[str, Any]]]:
    """The format, if it is not determined by the entries, and the entries with their places."""
    heading = text[: max(text.find("\n"), 0) or None].strip(_BLANK)
    if heading[:1] not in ("{", "[", ""):
        for delimiter in ",;\t":
            if "prompt" in (column.strip(' "') for column in heading.lower().split(delimiter)):
                rest = text.lstrip(_BLANK)[len(heading) :]
                return "CSV", _in_rows(heading.lower() + rest, name, delimiter)
        if name.lower().removesuffix(".gz").endswith((".csv", ".tsv")):
            raise Unusable(f"is CSV without a column `prompt`; its heading is {short(heading)}")
    return "", _entries_of(text, name)


def _entries_of(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Each entry as JSON, and where it is: in a list, or on a line of its own. Raises `Unusable` for a file without entries, and
    where a list ends to be JSON: what follows a wrong entry need not be read."""
    decoder, number, at = json.JSONDecoder(), 0, len(text) - len(text.lstrip(_BLANK[1:]))
    if text[at : at + 1] != "[":
        for line_number, line in enumerate(StringIO(text, newline="\n"), start=1):
            if entry := line.strip(_BLANK):
                number += 1
                yield f"line {line_number} of {name}", entry
    elif text[at + 1 :].strip() != "]":
        more = True
        try:
            while more:
                begin, number = _after_blanks(text, at + 1), number + 1
                end = decoder.raw_decode(text, begin)[1]
                yield f"entry {number} of {name}", text[begin:end]
                at = _after_blanks(text, end)
                more = text[at : at + 1] == ","
            if text[at:].strip() != "]":
                raise ValueError(f"no comma after entry {number}")
        except (ValueError, RecursionError) as error:
            raise Unusable(f"begins as a JSON list and is not JSON ({error})") from None
    if not number:
        raise Unusable("holds no prompt")


def _after_blanks(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # pyrefly: ignore[missing-attribute]  # it matches nothing, too


def _in_rows(text: str, name: str, delimiter: str) -> Iterator[tuple[str, Entry]]:
    """The rows of CSV by the names of its heading; what is beyond the heading has the key `MORE`. Raises `Unusable`."""
    csv.field_size_limit(MAX_BYTES)  # as long as a file; the module's own limit is 128 KiB
    rows = csv.DictReader(StringIO(text, newline="\n"), delimiter=delimiter, restkey=MORE)
    try:
        for row in rows:
            fields: Entry = {key.strip(): value for key, value in row.items() if value}
            for key in fields.keys() & _IN_JSON:
                with suppress(ValueError):
                    fields[key] = json.loads(fields[key])
            yield f"line {rows.line_num} of {name}", fields
    except csv.Error as error:
        raise Unusable(f"is not CSV at line {rows.line_num} ({error})") from None
    if not rows.line_num > 1:
        raise Unusable("has one line, and CSV has a heading and entries")


def _each_once(problems: list[Finding]) -> list[Finding]:
    """The problems, with those of many lines only once with their number."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for problem in problems:
        alike.setdefault((problem.why, problem.remedy), []).append(problem)
    kept: list[Finding] = []
    for first, *more in alike.values():
        many = f"{first.why}; the same in {count(len(more), 'more entry')}"
        kept += [first, *more] if len(more) < _MAX_REPEATED_LINES else [replace(first, why=many)]
    return kept[:MAX_PROBLEMS]


def _entry_of(content: Any) -> Entry:
    """An entry as an object that can be sent; text is parsed."""
    try:
        entry: Any = json.loads(content) if isinstance(content, str) else content
        json.dumps(entry, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise Unusable("holds half a character (a lone surrogate)", "write whole characters") from None
    except (ValueError, RecursionError) as error:
        raise Unusable(f"is not JSON ({error})", _READ) from None
    if not isinstance(entry, dict):
        raise Unusable(f"is not a JSON object: {short(entry)}", 'write {"class": ..., "prompt": ...}')
    return entry
