"""Are two arms the same but for the treatment? The question that decides whether a comparison is one."""

from __future__ import annotations

import json
import re
from typing import Any

DECLARED = (
    r"metadata\.name",
    r"(spec\.template\.)?metadata\.labels\.app\.kubernetes\.io/name",
    r"spec\.selector\.matchLabels\.app\.kubernetes\.io/name",
    r"spec\.template\.metadata\.annotations\.speculation\.trn2/artifact-key",
    r"spec\.template\.spec\.initContainers\[check-artifact\]\.command\[[45]\]",
    r"spec\.template\.spec\.containers\[vllm\]\.env\[NEURON_COMPILED_ARTIFACTS\]\.value",
    r"spec\.template\.spec\.containers\[vllm\]\.command\.--speculative-config(\..*)?",
    r"spec\.template\.spec\.containers\[vllm\]\.command\.--override-neuron-config\."
    r"(enable_fused_speculation|speculation_length)",
)
"""Where arms may differ: their names, the speculation, the artifact that follows from it."""
_ALLOWED = re.compile("|".join(f"(?:{pattern})" for pattern in DECLARED))


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Every path at which two objects differ; JSON inside argv is read as JSON, argv as options."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted(one.keys() | other.keys()):
            inner = f"{path}.{key}" if path else str(key)
            found += differences(one.get(key, _ABSENT), other.get(key, _ABSENT), inner)
        return found
    if isinstance(one, list) and isinstance(other, list):
        return _lists(one, other, path)
    return [] if one == other else [path]


def undeclared_differences(baseline: dict[str, Any], treatment: dict[str, Any]) -> list[str]:
    """The differences that no treatment explains."""
    return [path for path in differences(baseline, treatment) if not _ALLOWED.fullmatch(path)]


_ABSENT = object()


def _lists(one: list[Any], other: list[Any], path: str) -> list[str]:
    if path.endswith("containers[vllm].command"):
        return differences(options(one), options(other), path)
    if all(isinstance(entry, dict) and "name" in entry for entry in (*one, *other)):
        named, others = ({entry["name"]: entry for entry in entries} for entries in (one, other))
        found = [] if list(named) == list(others) else [path]
        for name in named.keys() & others.keys():
            found += differences(named[name], others[name], f"{path}[{name}]")
        return sorted(found)
    if len(one) != len(other):
        return [path]
    return [
        difference
        for number, (left, right) in enumerate(zip(one, other, strict=True))
        for difference in differences(left, right, f"{path}[{number}]")
    ]


def options(argv: list[str]) -> dict[str, Any]:
    """`vllm serve MODEL --a b --c` as data, JSON values parsed."""
    read: dict[str, Any] = {"": argv[:3]}
    rest = argv[3:]
    for position, word in enumerate(rest):
        if word.startswith("--"):
            following = rest[position + 1 : position + 2]
            value = following[0] if following and not following[0].startswith("--") else True
            read[word] = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    return read
