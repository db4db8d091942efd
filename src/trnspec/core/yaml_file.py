"""Read a foreign YAML file: its document and the line of every value, with limits of size, depth and aliases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trnspec.core.files import UnreadableFile, text_of
from trnspec.core.findings import Finding, Misuse
from trnspec.core.words import listed

_MAX_BYTES = 2**20
_MAX_DEPTH = 20
_MAX_ALIASES = 20
_MAX_VALUES = 20_000
"""Keys and values; the plan that a pod can mount holds fewer prompts than this."""
_MAX_NUMBER_LENGTH = 1000
_TAG = "tag:yaml.org,2002:"
_NUMBERS = {f"{_TAG}int", f"{_TAG}float", f"{_TAG}timestamp"}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(
    path: Path, *, max_value_length: int | None = None
) -> tuple[Any, dict[str, int], list[Finding]]:
    """Return the document, the line of every path, and a finding for each key that appears twice (YAML keeps the last silently).
    `max_value_length` is in characters.

    Raises `Misuse` if the file cannot be read.
    """
    try:
        text = text_of(path, max_bytes=_MAX_BYTES)
    except UnreadableFile as error:
        remedy = "give the path of an experiment file in UTF-8"
        if "larger" in str(error):
            remedy = "long lists of prompts go into `prompts: file:`"
        raise _unreadable(str(error), remedy) from None
    lines: dict[str, int] = {}
    keys: dict[str, list[int]] = {}
    try:
        _refuse_excess(text, max_value_length)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise _unreadable("the file is empty", "start from experiments/qwen3-32b.yaml")
        _walk(root, "", lines, keys)
        doubled = [_doubled(path, at) for path, at in keys.items() if len(at) > 1]
        return loader.construct_document(root), lines, doubled
    except (ValueError, KeyError, RecursionError, OverflowError) as error:
        raise _unreadable(
            f"holds a value that YAML cannot read ({error})", "put it in quotes, or fix it"
        ) from None
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or "cannot be parsed"
        raise _unreadable(
            f"is not valid YAML{_place(getattr(error, 'problem_mark', None))}: {reason}", "fix that line"
        ) from None


def _doubled(path: str, at: list[int]) -> Finding:
    why = f"the key appears twice, on lines {listed([str(line) for line in at], max_names=5)}"
    return Finding(
        path, None, why.replace("twice", f"{len(at)} times") if len(at) > 2 else why, "keep one of them"
    )


def _unreadable(why: str, remedy: str) -> Misuse:
    return Misuse(Finding("", None, why, remedy))


def _refuse_excess(text: str, max_value_length: int | None) -> None:
    """Refuse what an experiment never needs. It reads the flat stream of events, so that nothing recurses before the check."""
    depth = aliases = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > _MAX_DEPTH:
            raise _unreadable(f"nests more than {_MAX_DEPTH} levels", "an experiment needs five")
        if aliases > _MAX_ALIASES:
            raise _unreadable(f"has more than {_MAX_ALIASES} aliases", "write the values out")
        if values > _MAX_VALUES:
            raise _unreadable(
                f"has more than {_MAX_VALUES} keys and values",
                "long lists of prompts go into `prompts: file:`",
            )
        if max_value_length and isinstance(event, yaml.ScalarEvent) and len(event.value) > max_value_length:
            raise _unreadable(
                f"has a value of more than {max_value_length} characters{_place(event.start_mark)}",
                "shorten it",
            )
        tag: str | None = getattr(event, "tag", None)
        if tag is not None:
            raise _unreadable(
                f"has the tag {tag.replace(_TAG, '!!')!r}{_place(event.start_mark)}",
                "remove it; put text in quotes",
            )


def _place(mark: Any) -> str:
    return f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _walk(
    node: yaml.Node, path: str, lines: dict[str, int], keys: dict[str, list[int]], depth: int = 0
) -> None:
    """Record the line of every value, and all lines of each key."""
    if depth > _MAX_DEPTH:
        raise _unreadable("nests without end", "remove the alias that contains itself")
    if len(lines) > _MAX_VALUES:
        raise _unreadable(f"expands to more than {_MAX_VALUES} keys and values", "write fewer aliases")
    if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER_LENGTH:
        raise _unreadable(
            f"has a number of {len(node.value)} characters{_place(node.start_mark)}", "put text in quotes"
        )
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[f"{path}[{number}]"] = item.start_mark.line + 1
            _walk(item, f"{path}[{number}]", lines, keys, depth + 1)
    elif isinstance(node, yaml.MappingNode):
        own: dict[str, list[int]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _unreadable(f"has a list or a mapping as a key{_place(key.start_mark)}", "write a word")
            _walk(key, path, lines, keys, depth + 1)
            inner = f"{path}.{key.value}" if path else str(key.value)
            lines[inner] = key.start_mark.line + 1
            own.setdefault(inner, []).append(lines[inner])
            _walk(value, inner, lines, keys, depth + 1)
        keys |= own
