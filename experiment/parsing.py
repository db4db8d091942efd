"""From the document of a file to the sections of an experiment.

One broken value must not hide the next, so what is broken is reported, cut out, and the rest is read again; what
rests on a cut-out path is later left unjudged instead of being judged on a default that nobody wrote.
"""

from __future__ import annotations

import copy
import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from core.findings import MOST_FINDINGS, Finding
from experiment.forms import FORMS, UNION_TAGS
from experiment.model import ExperimentFile, Section

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Location = tuple[int | str, ...]
REMOVED_KEYS = {
    "benchmark.harness": (
        "chose llmperf as the client, which this release no longer builds or runs",
        "remove the key: llmperf's files and its own figure come with every run (docs/reproduce.md)",
    ),
    "benchmark.llmperf": (
        "set what llmperf asks, which this release no longer builds or runs",
        "remove the key",
    ),
}
"""Keys that an earlier release read: what they did, and what to do now."""
STAND_INS = {"name": "", "model": "", "mode": "", "arm": "", "num_speculative_tokens": 0, "concurrency": 1}
"""What may stand where one of these required values is missing, so that the rest of the file can be judged."""
_RANGE = re.compile(r"(?<=[0-9]):(?=[0-9])")


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
                None, [_problem(detail, where, _dotted(where)) for detail, where in some], frozenset()
            )
        if other_version := [detail for detail, location in details if location == ("version",)]:
            return Reading(None, [_problem(other_version[0], ("version",), "version")], frozenset())
        for detail, location in details:
            path = _dotted(location)
            if not any(_overlap(path, known) for known in broken):
                problems[path] = _problem(detail, location, path)
        for detail, location in details:
            if detail["type"] != "extra_forbidden":
                broken.add(_dotted(location))
            if not (_stand_in(rest, location) if detail["type"] == "missing" else _cut(rest, location)):
                return Reading(None, list(problems.values()), frozenset(broken))
    return Reading(None, list(problems.values()), frozenset(broken))


def _dotted(location: Location) -> str:
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
    *parents, last = location
    if last not in STAND_INS:
        return False
    for step in parents:
        data = data[step]
    data[last] = STAND_INS[str(last)]
    return True


def _problem(detail: ErrorDetails, location: Location, path: str) -> Finding:
    kind, value = detail["type"], detail["input"]
    if path in REMOVED_KEYS:
        return Finding(path, value, *REMOVED_KEYS[path])
    if kind == "extra_forbidden":
        keys = known_keys(location[:-1])
        close = difflib.get_close_matches(str(location[-1]), keys, n=1)
        remedy = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(keys)}"
        return Finding(path, None, "unknown key", remedy)
    if kind == "missing" and path == "version":
        why = "is missing, so it is not known which release wrote the file"
        return Finding(path, None, why, "add `version: 1`")
    if kind == "missing":
        return Finding(path, None, "is required and missing", "add it")
    if path == "version":
        remedy = "write `version: 1`, or use the release that wrote the file"
        return Finding(path, value, "this release reads version 1", remedy)
    if kind == "invalid_key":
        why = f"{detail['loc'][-1]!r} is a key that is not text"
        return Finding("", None, why, "start from experiments/qwen3-32b.yaml")
    if path == "":
        return Finding(
            "", None, "the file is not a mapping of keys to values", "start from experiments/qwen3-32b.yaml"
        )
    if kind == "string_type" and not isinstance(value, list | dict | None):
        return Finding(
            path, value, "YAML reads this as a number, a date or a truth value", "put it in quotes"
        )
    if kind in ("model_type", "dict_type"):
        keys = known_keys(location)
        remedy = f"write its keys: {', '.join(keys)}" if keys else "write keys"
        return Finding(path, value, "must be a mapping", remedy)
    if kind == "list_type":
        listed = (
            "[] for none"
            if value is None or isinstance(value, dict)
            else f"[{_RANGE.sub(', ', str(value)):.40}]"
        )
        return Finding(path, value, "must be a list", f"write {listed}")
    if kind == "string_pattern_mismatch":
        return Finding(path, value, "has an invalid format", f"write {FORMS[detail['ctx']['pattern']]}")
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = (
        message.replace(" after validation", "")
        .replace("a valid integer", "an integer")
        .replace("a valid ", "a ")
    )
    bound = kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
    return Finding(
        path, value, message[0].lower() + message[1:], "use a value in that range" if bound else "change it"
    )


def known_keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys that the section at `path` accepts; empty where any key may stand."""
    section = _annotation(path)
    return sorted(section.model_fields) if _is_section(section) else []


def _annotation(path: tuple[int | str, ...]) -> Any:
    """The section or the type that belongs at `path`; nothing where the schema ends."""
    found: Any = ExperimentFile
    for step in path:
        if isinstance(step, str):
            field = found.model_fields.get(step) if _is_section(found) else None
            if field is None:
                return None
            found = _section_in(field.annotation)
    return found


def _is_section(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Section)


def _section_in(annotation: Any) -> Any:
    """The section class inside an annotation such as `list[ArmSection]` or `SpeculationSection | None`."""
    if _is_section(annotation):
        return annotation
    found = (_section_in(argument) for argument in getattr(annotation, "__args__", ()))
    return next((section for section in found if section is not None), None)
