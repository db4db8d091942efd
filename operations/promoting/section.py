"""The `serve` section of an experiment file, edited as text: whatever else stands in the file stays as it is. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from experiment.finding import Misuse

_KEY = re.compile(r"(?P<indent>\s+)(?P<key>\w+):(?P<value>.*?)(?P<comment>\s+#.*)?")


def serve_of(text: str) -> dict[str, Any]:
    """The section as it is written; empty without one."""
    found = yaml.safe_load(text).get("serve") or {}
    return dict(found) if isinstance(found, dict) else {}


def with_serve(text: str, section: Mapping[str, Any]) -> str:
    """The file with that section, comments kept.

    Raises `Misuse` where the file is written in a way that a textual edit would spoil.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if re.match(r"serve\s*:", line)), None)
    if start is None:
        edited = [*lines, *([""] if lines and lines[-1].strip() else []), "serve:", *_written(section, {})]
    else:
        end = start + 1
        while end < len(lines) and (not lines[end].strip() or lines[end][0].isspace()):
            end += 1
        while not lines[end - 1].strip():
            end -= 1
        edited = [*lines[:start], *_edited(lines[start:end], section), *lines[end:]]
    result = "\n".join(edited) + "\n"
    if not _means(result, {**yaml.safe_load(text), "serve": dict(section)}):
        raise Misuse(
            "serve: is written in a way that cannot be edited safely; write it as a block of `key: value` lines, or by hand"
        )
    return result


def _edited(lines: list[str], section: Mapping[str, Any]) -> list[str]:
    """The section's lines with new values; comments of kept keys and between keys stay."""
    head = re.match(r"serve\s*:(?P<value>.*?)(?P<comment>\s+#.*)?$", lines[0])
    comment = (head["comment"] or "") if head else ""
    keys = {
        match["key"]: match["comment"] or ""
        for line in lines[1:]
        if (match := _KEY.fullmatch(line)) is not None
    }
    between = [line for line in lines[1:] if line.lstrip().startswith("#")]
    return [f"serve:{comment}", *between, *_written(section, keys)]


def _written(section: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    return [f"  {key}: {_scalar(value)}{comments.get(key, '')}" for key, value in section.items()]


def _scalar(value: Any) -> str:
    """Plain where YAML reads it back as what it was, in quotes where not."""
    if isinstance(value, list | tuple):
        return json.dumps(list(value))
    if isinstance(value, str) and (yaml.safe_load(value) != value or re.search(r"[#:]\s|\s#", value)):
        return json.dumps(value)
    return str(value)


def _means(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        found: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return bool(found == wanted)
