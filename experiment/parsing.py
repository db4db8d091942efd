"""The text of a file that a person names: a regular file of a bounded size, or one reason.

The structural half of the judgement: keys, types, ranges.

One broken value must not hide the next, so what is broken is reported, cut out, and the rest is read again; what
rests on a cut-out path is later left unjudged instead of being judged on a default that nobody wrote.
"""

from __future__ import annotations

import copy
import difflib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from experiment.finding import MOST_FINDINGS, Finding
from experiment.model import FORMS, REMOVED_KEYS, UNION_TAGS, ExperimentFile, known_keys, leaf_type

if TYPE_CHECKING:
    from pathlib import Path

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class UnreadableFile(Exception):
    """Why a file cannot be read, as the second half of a sentence."""


def whole_text(path: Path, *, most_bytes: int) -> str:
    """The text, without a byte order mark. Devices and pipes are refused: they may never end, or never begin.

    Raises `UnreadableFile`.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnreadableFile("is not a regular file")
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UnreadableFile(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise UnreadableFile("is not the path of a file") from None
    if len(content) > most_bytes:
        raise UnreadableFile(f"is larger than {most_bytes // 2**20} MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile("is not UTF-8") from None


Location = tuple[int | str, ...]


@dataclass(frozen=True)
class Reading:
    """What could be read of a file."""

    file: ExperimentFile | None
    """The file without its broken parts; `None` when too little is left."""
    problems: list[Finding]
    broken: frozenset[str]
    """Paths of the values that were cut out."""

    def judges(self, problem: Finding) -> bool:
        """Whether nothing that `problem` rests on was cut out."""
        return not any(
            _overlap(path, broken)
            for path in (problem.where, *problem.rests_on)
            if path
            for broken in self.broken
        )


def read(data: Any) -> Reading:
    """Read parsed YAML as an experiment file, collecting every structural problem."""
    problems: dict[str, Finding] = {}
    broken: set[str] = set()
    rest = copy.deepcopy(data)
    for _ in range(8):  # each round cuts at least one value out; nesting is shallower than this
        try:
            return Reading(ExperimentFile.model_validate(rest), list(problems.values()), frozenset(broken))
        except ValidationError as error:
            details = [(detail, _location(detail["loc"], rest)) for detail in error.errors(include_url=False)]
        if len(details) > MOST_FINDINGS:
            some = details[: MOST_FINDINGS + 1]
            return Reading(
                None, [_problem(detail, where, dotted(where)) for detail, where in some], frozenset()
            )
        if other_version := [detail for detail, location in details if location == ("version",)]:
            return Reading(None, [_problem(other_version[0], ("version",), "version")], frozenset())
        for detail, location in details:
            path = dotted(location)
            if not any(_overlap(path, known) for known in broken):
                problems[path] = _problem(detail, location, path)
        for detail, location in details:
            if detail["type"] != "extra_forbidden":
                broken.add(dotted(location))
            if not (_stand_in(rest, location) if detail["type"] == "missing" else _cut(rest, location)):
                return Reading(None, list(problems.values()), frozenset(broken))
    return Reading(None, list(problems.values()), frozenset(broken))


def dotted(location: Location) -> str:
    """`("arms", 1, "name")` as `arms[1].name`."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else step)
    return text


def _overlap(path: str, broken: str) -> bool:
    """Whether one path is the other, or lies inside it."""
    short, long = sorted((path, broken), key=len)
    return long.startswith(short) and (len(long) == len(short) or long[len(short)] in ".[")


def _location(loc: Location, data: Any) -> Location:
    """The part of pydantic's location that exists in the file (it appends type names inside unions)."""
    location: list[int | str] = []
    for step in loc:
        if step in UNION_TAGS:
            continue
        inside_list = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if (isinstance(data, dict) and step in data) or inside_list:
            data = data[step]
        elif not (isinstance(data, dict) and isinstance(step, str) and step in known_keys(tuple(location))):
            break
        else:
            return (*location, step)
        location.append(step)
    return tuple(location)


def _cut(data: Any, location: Location) -> bool:
    """Remove the value at `location`, or its nearest parent that can go; false when only the root is left."""
    while location:
        parent = data
        for step in location[:-1]:
            parent = parent[step]
        last = location[-1]
        if isinstance(parent, dict) and last in parent:
            del parent[last]
            return True
        if isinstance(parent, list):
            return False  # taking an item out would renumber the others
        location = location[:-1]
    return False


def _stand_in(data: Any, location: Location) -> bool:
    """Put something of the right type where a required value is missing, so that the rest can be judged.

    Nothing is judged on it: its path is broken already. False for a section, which nothing can stand in for.
    """
    kind = leaf_type(location)
    if kind is None:
        return False
    for step in location[:-1]:
        data = data[step]
    data[location[-1]] = kind()
    return True


def _listed(value: object) -> str:
    """How the author would write the list."""
    return "[] for none" if value is None or isinstance(value, dict) else f"[{value!s:.40}]"


def _problem(detail: ErrorDetails, location: Location, path: str) -> Finding:
    kind = detail["type"]
    if path in REMOVED_KEYS:
        return Finding(path, detail["input"], *REMOVED_KEYS[path])
    if kind == "extra_forbidden":
        keys = known_keys(location[:-1])
        close = difflib.get_close_matches(str(location[-1]), keys, n=1)
        remedy = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(keys)}"
        return Finding(path, None, "unknown key", remedy)
    if kind == "missing" and path == "version":
        return Finding(
            path, None, "is missing, so nobody can tell which release wrote the file", "add `version: 1`"
        )
    if kind == "missing":
        return Finding(path, None, "is required and missing", "add it")
    if path == "version":
        return Finding(
            path,
            detail["input"],
            "this release reads version 1",
            "write `version: 1`, or use the release that wrote the file",
        )
    if path == "" or kind == "invalid_key":
        what = "is a key that is no text" if kind == "invalid_key" else "the file is no mapping"
        value = detail["loc"][-1] if kind == "invalid_key" else None
        return Finding(
            "",
            None,
            f"{value!r} {what}" if value is not None else what,
            "start from experiments/qwen3-32b.yaml",
        )
    if kind == "string_type" and not isinstance(detail["input"], list | dict | None):
        return Finding(
            path, detail["input"], "YAML reads this as a number, a date or a truth value", "put it in quotes"
        )
    if kind in ("model_type", "dict_type"):
        keys = known_keys(location)
        return Finding(
            path,
            detail["input"],
            "must be a mapping",
            f"write its keys: {', '.join(keys)}" if keys else "write keys",
        )
    if kind == "list_type":
        return Finding(path, detail["input"], "must be a list", f"write {_listed(detail['input'])}")
    if kind == "string_pattern_mismatch":
        return Finding(path, detail["input"], "has another form", f"write {FORMS[detail['ctx']['pattern']]}")
    message = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    message = message.replace(" after validation", "")
    return Finding(path, detail["input"], message[0].lower() + message[1:], "write such a value")
