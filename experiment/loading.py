"""From a path to a frozen experiment, or to every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from experiment import checks
from experiment.arms import Experiment, resolve
from experiment.finding import Finding, InvalidExperiment
from experiment.parsing import UnreadableFile, read, whole_text
from experiment.prompts import read_prompts
from experiment.sweeps import expand

_LARGEST_BYTES = 2**20
_DEEPEST = 20
_MOST_ALIASES = 20
_MOST_VALUES = 20_000
"""Keys and values; the plan that a pod can mount holds fewer prompts than this."""
_LONGEST_NUMBER = 1000
_TAG = "tag:yaml.org,2002:"
_NUMBERS = {f"{_TAG}int", f"{_TAG}float", f"{_TAG}timestamp"}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(path: Path) -> Experiment:
    """Read, judge and resolve an experiment file.

    Raises `InvalidExperiment` with every problem found.
    """
    lines: dict[str, int] = {}
    try:
        document, lines, doubled = _parse(path)
    except _Unreadable as error:
        raise InvalidExperiment(str(path), [error.problem], lines) from None
    reading = read(document)
    problems = [*doubled, *reading.problems]
    if reading.file is not None:
        prompts = read_prompts(
            reading.file.prompts, endpoint=reading.file.benchmark.endpoint, folder=path.parent
        )
        sweep = expand(reading.file)
        judged = [*sweep.problems, *checks.problems(sweep.file, prompts.prompts), *prompts.problems]
        written = {
            (problem.where, problem.why, repr(problem.value)): problem
            for problem in map(sweep.as_written, judged)
        }
        problems += [problem for problem in written.values() if reading.judges(problem)]
        if not problems:
            return resolve(sweep.file, prompts.prompts)
    raise InvalidExperiment(str(path), problems, lines)


class _Unreadable(Exception):
    def __init__(self, why: str, remedy: str) -> None:
        self.problem = Finding("", None, why, remedy)


def _parse(path: Path) -> tuple[Any, dict[str, int], list[Finding]]:
    """The document, the line of every path in it, and keys that stand twice (YAML would keep the last silently)."""
    try:
        text = whole_text(path, most_bytes=_LARGEST_BYTES)
    except UnreadableFile as error:
        remedy = (
            "give the path of an experiment file, in UTF-8; long lists of prompts go into `prompts: file:`"
        )
        raise _Unreadable(str(error), remedy) from None
    lines: dict[str, int] = {}
    doubled: list[Finding] = []
    try:
        _refuse_monsters(text)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise _Unreadable("the file is empty", "start from experiments/qwen3-32b.yaml")
        _walk(root, "", lines, doubled)
        return loader.construct_document(root), lines, doubled
    except (ValueError, KeyError, RecursionError, OverflowError) as error:
        raise _Unreadable(
            f"holds a value that YAML cannot read ({error})", "put it in quotes, or fix it"
        ) from None
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or "cannot be parsed"
        raise _Unreadable(
            f"is not valid YAML{_place(getattr(error, 'problem_mark', None))}: {reason}", "fix that line"
        ) from None


def _refuse_monsters(text: str) -> None:
    """What an experiment never needs, found on the flat stream of events, before anything recurses over it."""
    depth = aliases = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > _DEEPEST:
            raise _Unreadable(f"nests more than {_DEEPEST} levels", "an experiment needs five")
        if aliases > _MOST_ALIASES:
            raise _Unreadable(f"has more than {_MOST_ALIASES} aliases", "write the values out")
        if values > _MOST_VALUES:
            raise _Unreadable(
                f"has more than {_MOST_VALUES} keys and values",
                "long lists of prompts go into `prompts: file:`",
            )
        tag: str | None = getattr(event, "tag", None)
        if tag is not None:
            raise _Unreadable(
                f"has the tag {tag.replace(_TAG, '!!')!r}{_place(event.start_mark)}",
                "remove it; put text in quotes",
            )


def _place(mark: Any) -> str:
    return f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _walk(node: yaml.Node, path: str, lines: dict[str, int], doubled: list[Finding], depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise _Unreadable("nests without end", "remove the alias that contains itself")
    if len(lines) > _MOST_VALUES:
        raise _Unreadable(f"means more than {_MOST_VALUES} keys and values", "write fewer aliases")
    if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
        raise _Unreadable(
            f"has a number of {len(node.value)} characters{_place(node.start_mark)}", "put text in quotes"
        )
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[f"{path}[{number}]"] = item.start_mark.line + 1
            _walk(item, f"{path}[{number}]", lines, doubled, depth + 1)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Unreadable(f"has a list or a mapping as a key{_place(key.start_mark)}", "write a word")
            _walk(key, path, lines, doubled, depth + 1)
            inner = f"{path}.{key.value}" if path else str(key.value)
            if inner in seen:
                doubled.append(Finding(inner, None, "the key stands twice", "keep one of them"))
            seen.add(inner)
            lines[inner] = key.start_mark.line + 1
            _walk(value, inner, lines, doubled, depth + 1)
