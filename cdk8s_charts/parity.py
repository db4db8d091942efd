"""Check that two arms are equal except for the treatment. Only then is a comparison valid.

Deployments are compared as they are rendered, argv with them: that is what reaches the servers, and a review compares
states of which each made it with code of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from cdk8s_charts.vllm_command import NATIVE_CACHES
from trnspec.core.differences import differences
from trnspec.experiment.compilation import TREATED_KEYS, with_derived_key
from trnspec.experiment.naming import ARTIFACT_KEY, BATCH, NAME

_POD = r"spec\.template\.spec\."
_SERVER = _POD + r"containers\[vllm\]\."
_CONFIG = _SERVER + r"command\.--(override-neuron-config|additional-config)\.(.*\.)?"
DECLARED = (
    r"metadata\.name",
    rf"(spec\.template\.)?metadata\.labels\.{re.escape(NAME)}",
    rf"spec\.selector\.matchLabels\.{re.escape(NAME)}",
    rf"metadata\.labels\.{re.escape(BATCH)}",
    r"spec\.replicas",
    rf"spec\.template\.metadata\.annotations\.{re.escape(ARTIFACT_KEY)}",
    _POD + r"initContainers\[check-artifact\]\.command\[([45]|8|9|\d\d+)\]",
    _POD + r"initContainers\[copy-artifact\]\.args\[[135]\]",
    _SERVER + rf"env\[(NEURON_COMPILED_ARTIFACTS|{'|'.join(NATIVE_CACHES)})\]\.value",
    _SERVER + r"volumeMounts\[\d+\]\.subPath",
    _SERVER + r"command\.--speculative-config(\..*)?",
    _SERVER + r"command\.--no-async-scheduling",
    _SERVER + r"command\.--per-request-spec-decode-metrics",
    rf"{_CONFIG}({'|'.join(TREATED_KEYS)})",
)
"""Where arms may differ: their names, when they run, the speculation, the artifact that follows from it; on the native plugin
also what follows from synchronous scheduling and from a DFlash head."""
_SHARED_OPTIONS = "served-model-name|host|port|tensor-parallel-size|max-num-seqs|max-model-len|api-key|seed|dtype|quantization"
_SHARED_OPTIONS += "|chat-template|tool-call-parser|enable-auto-tool-choice|reasoning-parser"
OF_A_RUNTIME = (
    _SERVER + r"image",
    _SERVER + r"env(\[.*|)",
    _SERVER + r"volumeMounts\[\d+\]",
    _SERVER + rf"command\.(?!--({_SHARED_OPTIONS})(\.|$))--.*",
    _SERVER + r"command\.\[[01]\]",
    _POD + r"initContainers\[check-artifact\]\.(image|command\[6\])",
)
"""Further paths that may differ if the runtime is part of the treatment: its image and its dialect."""
_ALLOWED = re.compile("|".join(f"(?:{pattern})" for pattern in DECLARED))
_ALLOWED_OF_A_RUNTIME = re.compile("|".join(f"(?:{pattern})" for pattern in (*DECLARED, *OF_A_RUNTIME)))


def undeclared_differences(
    baseline: dict[str, Any],
    treatment: dict[str, Any],
    *,
    other_runtime: bool = False,
    engine: Collection[str] = (),
) -> list[str]:
    """Return the differences that the treatment does not explain.

    `other_runtime`: the arms declare different runtimes. `engine`: keys of the Neuron configuration that one of them sets.
    """
    allowed = _ALLOWED_OF_A_RUNTIME if other_runtime else _ALLOWED
    keys = "|".join(map(re.escape, with_derived_key(engine)))
    of_the_engine = re.compile(rf"{_CONFIG}({keys})(\..*)?") if engine else None
    return [
        one.path
        for one in differences(baseline, treatment, read=as_read)
        if not (allowed.fullmatch(one.path) or (of_the_engine and of_the_engine.fullmatch(one.path)))
    ]


def as_read(path: str, value: Any) -> Any:
    """Return a server's argv as options."""
    return options(value) if isinstance(value, list) and path.endswith("containers[vllm].command") else value


def options(argv: list[str]) -> dict[str, Any]:
    """Parse `vllm serve MODEL --a b --c`, with JSON values."""
    read: dict[str, Any] = {"": argv[:3]}
    rest = argv[3:]
    for position, word in enumerate(rest):
        if word.startswith("--"):
            following = rest[position + 1 : position + 2]
            value = following[0] if following and not following[0].startswith("--") else True
            read[word] = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    return read
