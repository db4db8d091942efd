"""A section of an experiment file with other values; comments and everything around it stay as they are."""

from __future__ import annotations

import difflib
import io
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from core.findings import InvalidExperiment, Misuse
from experiment import Experiment, load


class Remarked(NamedTuple):
    """A value with a comment behind it."""

    value: Any
    remark: str


@contextmanager
def beside(path: Path, text: str) -> Iterator[Path]:
    """A file with this text in the same folder, next to which prompts may be, with the same permissions."""
    draft = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f".{path.stem}.", suffix=".tmp", dir=path.parent, delete=False, encoding="utf-8"
        ) as file:
            draft = Path(file.name)
            file.write(text)
        shutil.copymode(path, draft)
    except OSError as error:
        if draft:
            draft.unlink(missing_ok=True)
        remedy = "make room or correct its permissions"
        raise Misuse(f"{path.parent}: cannot be written ({error.strerror}); {remedy}") from None
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def judged(path: Path, draft: Path) -> Experiment:
    """The experiment of a draft. Raises `Misuse` with what is wrong with it, as of the file."""
    try:
        return load(draft)
    except InvalidExperiment as error:
        raise Misuse(*InvalidExperiment(str(path), error.findings, {}).lines) from None


def difference(name: str, before: str, after: str) -> str:
    """What changes in a file, as a diff."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, fromfile=name, tofile=name, n=1))


def edited(text: str, section: str, changes: Mapping[str, Any]) -> str:
    """The file with these values in one of its sections: what is around the section stays as it is, and so do the comments in it. A
    mapping among the values is changed in the same way; None removes a key.

    Raises `Misuse` where the file is written in a way that this would spoil.
    """
    document = yaml.safe_load(text)
    wanted = _changed(document.get(section) or {}, changes)
    if document.get(section) == wanted:
        return text
    whole = text if text.endswith("\n") else f"{text}\n"
    # Up to the next line that begins with anything but white space.
    match = re.search(rf"^[\"']?{section}[\"']?[ \t]*:.*\n(?:(?:[ \t].*)?\n)*", whole, re.MULTILINE)
    start, part = (match.start(), match[0].rstrip() + "\n") if match else (len(whole), f"{section}:\n")
    editor = YAML()
    editor.width, editor.preserve_quotes = 4096, True
    editor.indent(mapping=2, sequence=4, offset=2)
    written = io.StringIO()
    try:
        if match is None and section in document:
            raise YAMLError(section)
        read = editor.load(part)
        read[section] = CommentedMap() if read[section] is None else read[section]
        _write(read[section], changes)
        editor.dump(read, written)
        gap = "" if match or not whole.strip() or whole.endswith("\n\n") else "\n"
        after = whole[:start] + gap + written.getvalue() + whole[start + len(part) :]
        meant = yaml.safe_load(after)
    except (YAMLError, yaml.YAMLError, AttributeError):
        meant = None
    if meant != {**document, section: wanted}:
        raise Misuse(
            f"{section}: is written in a way that cannot be edited safely; write it as a block of `key: value` lines, or by hand"
        )
    return after


def _changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    made = {**values, **{key: value for key, value in changes.items() if value is not None}}
    for key, value in changes.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Mapping):
            made[key] = _changed(values.get(key) or {}, value)
        elif isinstance(value, Remarked):
            made[key] = value.value
    return made


def _write(values: Any, changes: Mapping[str, Any]) -> None:
    if any(isinstance(value, Mapping | Remarked) for value in changes.values()):
        values.fa.set_block_style()  # a comment would run over the rest of a mapping on one line
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        elif isinstance(value, Mapping):
            if values.get(key) is None:
                values[key] = CommentedMap()
            _write(values[key], value)
        elif isinstance(value, Remarked):
            values[_scalar(key)] = _scalar(value.value)
            values.yaml_add_eol_comment(value.remark, key)
        else:
            values[key] = _scalar(value)


def _scalar(value: Any) -> Any:
    """With quotes where YAML 1.1 would read a text as something else, and a list on one line."""
    if isinstance(value, list):
        line = CommentedSeq(map(_scalar, value))
        line.fa.set_flow_style()
        return line
    return DoubleQuotedScalarString(value) if isinstance(value, str) and not _reads_as_it_is(value) else value


def _reads_as_it_is(text: str) -> bool:
    try:
        return bool(yaml.safe_load(text) == text)
    except yaml.YAMLError:
        return False
