"""Are two arms the same but for the treatment? The question that decides whether a comparison is one."""

from __future__ import annotations

import json
import re
from typing import Any

_POD = r"spec\.template\.spec\."
_SERVER = _POD + r"containers\[vllm\]\."
DECLARED = (
    r"metadata\.name",
    r"(spec\.template\.)?metadata\.labels\.app\.kubernetes\.io/name",
    r"spec\.selector\.matchLabels\.app\.kubernetes\.io/name",
    r"metadata\.labels\.speculation\.trn2/batch",
    r"spec\.replicas",
    r"spec\.template\.metadata\.annotations\.speculation\.trn2/artifact-key",
    _POD + r"initContainers\[check-artifact\]\.command\[([45]|8|9|\d\d+)\]",
    _POD + r"initContainers\[copy-artifact\]\.args\[[135]\]",
    _SERVER + r"env\[(NEURON_COMPILED_ARTIFACTS|VLLM_CACHE_ROOT)\]\.value",
    _SERVER + r"command\.--speculative-config(\..*)?",
    _SERVER + r"command\.--(override-neuron-config|additional-config)\.(.*\.)?"
    r"(enable_fused_speculation|enable_eagle_speculation|is_eagle3|speculation_length)",
)
"""Where arms may differ: their names, when they stand, the speculation, the artifact that follows from it."""
_SHARED_OPTIONS = "served-model-name|host|port|tensor-parallel-size|max-num-seqs|max-model-len|api-key|seed|dtype|quantization"
OF_A_RUNTIME = (
    _SERVER + r"image",
    _SERVER + r"env(\[.*|)",
    _SERVER + rf"command\.(?!--({_SHARED_OPTIONS})(\.|$))--.*",
    _SERVER + r"command\.\[[01]\]",
    _POD + r"initContainers\[check-artifact\]\.(image|command\[6\])",
)
"""Where they may differ beside that when the runtime is part of the treatment: its image and its dialect."""
_ALLOWED = re.compile("|".join(f"(?:{pattern})" for pattern in DECLARED))
_ALLOWED_OF_A_RUNTIME = re.compile("|".join(f"(?:{pattern})" for pattern in (*DECLARED, *OF_A_RUNTIME)))


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


def undeclared_differences(
    baseline: dict[str, Any], treatment: dict[str, Any], *, other_runtime: bool = False
) -> list[str]:
    """The differences that no treatment explains. `other_runtime`: the arms declare different runtimes."""
    allowed = _ALLOWED_OF_A_RUNTIME if other_runtime else _ALLOWED
    return [path for path in differences(baseline, treatment) if not allowed.fullmatch(path)]


_ABSENT = object()


def _lists(one: list[Any], other: list[Any], path: str) -> list[str]:
    if path.endswith("containers[vllm].command"):
        return differences(options(one), options(other), path)
    if all(isinstance(entry, dict) and "name" in entry for entry in (*one, *other)):
        return sorted(_named(one, other, path))
    found = []
    for number in range(max(len(one), len(other))):
        left, right = (side[number] if number < len(side) else _ABSENT for side in (one, other))
        found += differences(left, right, f"{path}[{number}]")
    return found


def _named(one: list[Any], other: list[Any], path: str) -> list[str]:
    """Lists whose entries have names, as containers, variables and volumes have."""
    named, others = ({entry["name"]: entry for entry in entries} for entries in (one, other))
    if len(named) != len(one) or len(others) != len(other):
        # One volume mounted twice, say: then the name is no key.
        return [] if one == other else [path]
    common = [name for name in named if name in others]
    found = [f"{path}[{name}]" for name in named.keys() ^ others.keys()]
    if common != [name for name in others if name in named]:
        found.append(path)
    for name in common:
        found += differences(named[name], others[name], f"{path}[{name}]")
    return found


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
