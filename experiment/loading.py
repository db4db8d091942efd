"""From a path to a frozen experiment, or to every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from experiment import checks
from experiment.arms import Experiment
from experiment.errors import InvalidExperiment, Problem
from experiment.prompts import read_prompts
from experiment.resolving import resolve
from experiment.structure import read
from experiment.sweeps import expand

_LARGEST_BYTES = 2**20
_DEEPEST = 20
_MOST_ALIASES = 20
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
        written = {(problem.path, problem.why): problem for problem in map(sweep.as_written, judged)}
        problems += [problem for problem in written.values() if reading.judges(problem)]
        if not problems:
            return resolve(sweep.file, prompts.prompts)
    raise InvalidExperiment(str(path), problems, lines)


class _Unreadable(Exception):
    def __init__(self, why: str, remedy: str) -> None:
        self.problem = Problem("", None, why, remedy)


def _parse(path: Path) -> tuple[Any, dict[str, int], list[Problem]]:
    """The document, the line of every path in it, and keys that stand twice (YAML would keep the last silently)."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _Unreadable(
            f"cannot be read: {error.strerror}", "give the path of an experiment file"
        ) from None
    except UnicodeDecodeError:
        raise _Unreadable("is not UTF-8", "save it as UTF-8") from None
    lines: dict[str, int] = {}
    doubled: list[Problem] = []
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
            f"holds a value that YAML cannot read ({error})", "put it in quotes, or mend it"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "cannot be parsed"
        raise _Unreadable(f"is no YAML{where}: {reason}", "mend that line") from None


def _refuse_monsters(text: str) -> None:
    """Nesting and aliases are counted on the flat stream of events, before anything recurses over them."""
    if len(text) > _LARGEST_BYTES:
        raise _Unreadable(
            f"has {len(text)} characters",
            "keep it below 1 MiB; long lists of prompts go into `prompts: file:`",
        )
    depth = aliases = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        if depth > _DEEPEST:
            raise _Unreadable(f"nests more than {_DEEPEST} levels", "an experiment needs five")
        if aliases > _MOST_ALIASES:
            raise _Unreadable(f"has more than {_MOST_ALIASES} aliases", "write the values out")


def _walk(node: yaml.Node, path: str, lines: dict[str, int], doubled: list[Problem]) -> None:
    if path.count(".") + path.count("[") > _DEEPEST:
        raise _Unreadable("nests without end", "remove the alias that contains itself")
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[f"{path}[{number}]"] = item.start_mark.line + 1
            _walk(item, f"{path}[{number}]", lines, doubled)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            inner = f"{path}.{key.value}" if path else str(key.value)
            if inner in seen:
                doubled.append(Problem(inner, None, "the key stands twice", "keep one of them"))
            seen.add(inner)
            lines[inner] = key.start_mark.line + 1
            _walk(value, inner, lines, doubled)
