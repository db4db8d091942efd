"""Refusals: their sentences from `refusals.yaml`, names that the catalogue lacks, and every problem of a file's form."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trnspec.core.findings import Finding
from trnspec.experiment.catalogue.engine_keys import WINDOW_SCHEDULE
from trnspec.experiment.catalogue.models import table_of
from trnspec.experiment.model import FORMS, UNION_TAGS, ExperimentFile, FileSection

_EXPERTS = r"(?i:-a\d+(\.\d+)?[bm]\b|\d+x\d+|mixtral|moe|gpt-oss|deepseek-(v[23]|r1$)|llama-4|maverick|scout)"
"""Names of mixtures of experts."""
_QUANTIZED = (
    r"(?i:[-_.](fp8|fp4|nvfp4|mxfp4|awq|gptq|gguf|int[48]|w\d+a\d+|bnb|[48]-?bit|quantized)(?![a-z]))"
)
"""Names of quantized checkpoints."""
_RANGE = r"(?<=[0-9]):(?=[0-9])"
Location = tuple[int | str, ...]


@cache
def _sentences() -> dict[str, dict[str, str]]:
    return dict(table_of(__file__))


def refused(name: str, value: Any, /, *, at: str | None = None, **words: Any) -> Finding:
    """Return the refusal of that name; `at` is the key of the file if the name does not begin with it."""
    text = _sentences()[name]
    where = name.partition(" ")[0] if at is None else at
    return Finding(where, value, text["why"].format(**words), text["remedy"].format(**words))


def is_quantized(name: str) -> bool:
    """Return whether a name is that of a quantized checkpoint."""
    return re.search(_QUANTIZED, name) is not None


def unknown_name(
    path: str, name: str, catalogue: Collection[str], what: str, own: str = "", *, never: str = ""
) -> Finding:
    """Return the refusal of a name that the catalogue lacks. `own` describes alternatives; {} becomes the closest name, or NAME.

    `never` is not suggested: the target of a draft.
    """
    if what == "model" and re.search(_EXPERTS, name):
        return refused("catalogue experts", name, at=path)
    names = [one for one in catalogue if one != never]
    close = difflib.get_close_matches(name, names, n=1)
    if what == "model" and is_quantized(name):
        return refused("catalogue quantized", name, at=path, hint=f", as {close[0]}" if close else "")
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}{'.' if own else ''}"
    hint += own.format(close[0] if close else "NAME")
    return refused("catalogue unknown", name, at=path, what=what, hint=hint)


def form_problems(document: Any) -> list[Finding]:
    """Return every problem of the form. A wrong version hides the others: another release may have other keys."""
    problems = list[Finding]()
    document = _with_text_keys(document, "", problems)
    try:
        ExperimentFile.model_validate(document)
    except ValidationError as error:
        details = {
            _location(detail["loc"], document): detail for detail in reversed(error.errors(include_url=False))
        }
        if ("version",) in details:
            return [_problem(details["version",], ("version",))]
        problems += (_problem(detail, location) for location, detail in reversed(details.items()))
    return problems


def _with_text_keys(value: Any, path: str, problems: list[Finding]) -> Any:
    """Return the value without keys that are not text; each of them is a problem."""
    if isinstance(value, list):
        return [_with_text_keys(one, f"{path}[{number}]", problems) for number, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kept = dict[str, Any]()
    for key, inner in value.items():
        at = f"{path}.{key}".removeprefix(".")
        if isinstance(key, str):
            kept[key] = _with_text_keys(inner, at, problems)
        else:
            unwritten = key is None or isinstance(key, bool)  # `~` and `yes` are other words for them
            problems.append(refused("form no-text", None, at=path if unwritten else at, key=key))
    return kept


def _location(loc: Location, data: Any) -> Location:
    """Return the part of pydantic's location that is or can be in the file (pydantic appends type names inside unions)."""
    location: list[int | str] = []
    for step in loc:
        if step in UNION_TAGS:
            continue
        inside = step in data if isinstance(data, dict) else isinstance(data, list) and isinstance(step, int)
        if not inside and not (isinstance(data, dict) and step in _fields(location)):
            break
        location.append(step)
        data = data[step] if inside else None  # pyrefly: ignore[unsupported-operation]  # None has nothing inside
    return tuple(location)


def _fields(location: Iterable[int | str]) -> dict[str, Any]:
    """Return the keys that the section at a location accepts; empty if any key is allowed."""
    section: Any = ExperimentFile
    for step in location:
        if section is not None and isinstance(step, str):
            field = section.model_fields.get(step)
            section = _section_in(field.annotation) if field else None
    return dict(section.model_fields) if section else {}


def _section_in(annotation: Any) -> Any:
    """Return the section class inside an annotation such as `list[ArmSection]` or `SpeculationSection | None`."""
    if isinstance(annotation, type) and issubclass(annotation, FileSection):
        return annotation
    inner = map(_section_in, getattr(annotation, "__args__", ()))
    return next((section for section in inner if section is not None), None)


def _problem(detail: ErrorDetails, location: Location) -> Finding:
    """Return a finding for an error of pydantic."""
    kind, value, path = detail["type"], detail["input"], _dotted(location)
    if path == "":
        return refused("form no-mapping-at-all", None, at="")
    if path == "version":
        return refused("version missing", None) if kind == "missing" else refused("version other", value)
    match kind:
        case "extra_forbidden" if location[-1] == WINDOW_SCHEDULE:
            return refused("window schedule", None, at=path)
        case "extra_forbidden":
            keys = sorted(_fields(location[:-1]))
            close = difflib.get_close_matches(str(location[-1]), keys, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(keys)}"
            return refused("form unknown-key", None, at=path, hint=hint)
        case "missing":
            return refused("form missing", None, at=path)
        case "string_type" if value is not None and not isinstance(value, (list, dict)):
            return refused("form no-string", value, at=path)
        case "model_type" | "dict_type":
            keys = sorted(_fields(location))
            return refused(
                "form no-mapping", value, at=path, keys=f"its keys: {', '.join(keys)}" if keys else "keys"
            )
        case "list_type":
            empty = value is None or isinstance(value, dict)
            items = "[] for none" if empty else f"[{re.sub(_RANGE, ', ', str(value)):.40}]"
            return refused("form no-list", value, at=path, items=items)
        case "string_pattern_mismatch":
            return refused("form pattern", value, at=path, form=FORMS[detail["ctx"]["pattern"]])  # pyrefly: ignore[not-required-key-access]  # of this kind it has one
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = message.replace(" after validation", "").replace("a valid integer", "an integer")
    message = message[0].lower() + message[1:].replace("a valid ", "a ")
    bound = kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
    return refused("form bound" if bound else "form other", value, at=path, message=message)


def _dotted(location: Iterable[int | str]) -> str:
    """Return `("arms", 1, "name")` as `arms[1].name`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(
        "."
    )
