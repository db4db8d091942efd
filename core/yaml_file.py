"""A YAML file that somebody wrote: its document, with the line of every value, and with limits of size, depth and aliases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from core.files import UnreadableFile, whole_text
from core.findings import Finding, Misuse
from core.words import listed

_LARGEST_BYTES = 2**20
_DEEPEST = 20
_MOST_ALIASES = 20
_MOST_VALUES = 20_000
"""Keys and values; the plan that a pod can mount holds fewer prompts than this."""
_LONGEST_NUMBER = 1000
_TAG = "tag:yaml.org,2002:"
_NUMBERS = {f"{_TAG}int", f"{_TAG}float", f"{_TAG}timestamp"}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, *, longest: int | None = None) -> tuple[Any, dict[str, int], list[Finding]]:
    """The document, the line of every path in it, and keys that appear twice (YAML would keep the last silently). `longest`:
    characters of a value.

    Raises `Misuse` with the one finding that keeps the file from being read.
    """
    try:
        text = whole_text(path, most_bytes=_LARGEST_BYTES)
    except UnreadableFile as error:
        remedy = "give the path of an experiment file in UTF-8"
        if "larger" in str(error):
            remedy = "long lists of prompts go into `prompts: file:`"
        raise _unreadable(str(error), remedy) from None
    lines: dict[str, int] = {}
    keys: dict[str, list[int]] = {}
    try:
        _refuse_monsters(text, longest)
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
    why = f"the key appears twice, on lines {listed([str(line) for line in at], most=5)}"
    return Finding(
        path, None, why.replace("twice", f"{len(at)} times") if len(at) > 2 else why, "keep one of them"
    )


def _unreadable(why: str, remedy: str) -> Misuse:
    return Misuse(Finding("", None, why, remedy))


def _refuse_monsters(text: str, longest: int | None) -> None:
    """What an experiment never needs, found on the flat stream of events, before anything recurses over it."""
    depth = aliases = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > _DEEPEST:
            raise _unreadable(f"nests more than {_DEEPEST} levels", "an experiment needs five")
        if aliases > _MOST_ALIASES:
            raise _unreadable(f"has more than {_MOST_ALIASES} aliases", "write the values out")
        if values > _MOST_VALUES:
            raise _unreadable(
                f"has more than {_MOST_VALUES} keys and values",
                "long lists of prompts go into `prompts: file:`",
            )
        if longest and isinstance(event, yaml.ScalarEvent) and len(event.value) > longest:
            raise _unreadable(
                f"has a value of more than {longest} characters{_place(event.start_mark)}", "shorten it"
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
    """Note the line of every value, and every line of each key."""
    if depth > _DEEPEST:
        raise _unreadable("nests without end", "remove the alias that contains itself")
    if len(lines) > _MOST_VALUES:
        raise _unreadable(f"expands to more than {_MOST_VALUES} keys and values", "write fewer aliases")
    if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
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
