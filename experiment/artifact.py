"""The artifact key: a name for compiled graphs and sharded weights that changes whenever their content could."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from experiment.neuron_config import compile_config, compiler_environment

if TYPE_CHECKING:
    from experiment.arms import Arm, Weights

KEY_LENGTH = 16
"""Hexadecimal digits: 64 bits, enough for the handful of artifacts of one bucket."""


def artifact_key(arm: Arm) -> str:
    """Hash of everything that shapes the artifact: image, models with revisions, whole configuration, instance."""
    canonical = json.dumps(artifact_inputs(arm), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


def artifact_inputs(arm: Arm) -> dict[str, Any]:
    """What the key is made of, readable, to be stored beside the artifact."""
    speculation, serving = arm.speculation, arm.serving
    return {
        "image": arm.runtime.image,
        "neuron_sdk": arm.runtime.neuron_sdk,
        "instance": arm.instance.name,
        "target": _weights(arm.target),
        "draft": _weights(speculation.draft) if speculation else None,
        "mode": speculation.mode if speculation else None,
        "num_speculative_tokens": speculation.num_speculative_tokens if speculation else None,
        "draft_max_model_len": speculation.draft_max_model_len if speculation else None,
        "tensor_parallel": serving.tensor_parallel,
        "logical_nc_config": serving.logical_nc_config,
        "max_num_seqs": serving.max_num_seqs,
        "max_model_len": serving.max_model_len,
        "neuron_config": compile_config(arm),
        "compiler_environment": compiler_environment(arm),
    }


def _weights(weights: Weights) -> dict[str, Any]:
    return {"model": weights.model.name, "revision": weights.revision}
