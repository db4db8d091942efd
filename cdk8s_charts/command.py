"""What a server is started with: argv and environment of an arm, in the dialect of its runtime.

The options are those that the parser of `vllm serve` 0.9.1 accepts; a test compares them with a table read off that
parser.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from experiment.artifact import artifact_key
from experiment.naming import SERVICE_PORT
from experiment.neuron_config import serve_config

if TYPE_CHECKING:
    from experiment.arms import Arm, Weights

CHECKPOINTS_MOUNT = "/checkpoints"
ARTIFACTS_MOUNT = "/artifacts"


def serve_argv(arm: Arm) -> list[str]:
    """The command of a server that loads a compiled artifact."""
    serving = arm.serving
    argv = [
        "vllm",
        "serve",
        weights_path(arm.target),
        "--served-model-name",
        arm.target.model.name,
        "--host",
        "0.0.0.0",
        "--port",
        str(SERVICE_PORT),
        "--device",
        "neuron",
        "--tensor-parallel-size",
        str(serving.tensor_parallel),
        "--max-num-seqs",
        str(serving.max_num_seqs),
        "--max-model-len",
        str(serving.max_model_len),
        "--disable-log-requests",
        "--override-neuron-config",
        _json(serve_config(arm)),
    ]
    if arm.speculation is not None:
        argv += ["--speculative-config", _json(_speculative_config(arm))]
    return argv


def serve_environment(arm: Arm) -> dict[str, str]:
    """Environment of the same server."""
    return {
        "VLLM_USE_V1": "0",
        "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference",
        "NEURON_COMPILED_ARTIFACTS": artifact_path(arm),
        "NEURON_LOGICAL_NC_CONFIG": str(arm.serving.logical_nc_config),
        "NEURON_RT_EXEC_TIMEOUT": "600",
        "VLLM_RPC_TIMEOUT": "100000",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def weights_path(weights: Weights) -> str:
    """Where a model's files are mounted."""
    return f"{CHECKPOINTS_MOUNT}/{weights.model.name}"


def artifact_path(arm: Arm) -> str:
    """Where an arm's compiled graphs and sharded weights are mounted."""
    return f"{ARTIFACTS_MOUNT}/{artifact_key(arm)}"


def _speculative_config(arm: Arm) -> dict[str, Any]:
    """What vLLM is told of the draft. `method` is left out: this fork ignores it, and later lines would misread it."""
    assert arm.speculation is not None
    return {
        "model": weights_path(arm.speculation.draft),
        "num_speculative_tokens": arm.speculation.num_speculative_tokens,
        "max_model_len": arm.speculation.draft_max_model_len,
    }


def _json(value: dict[str, Any]) -> str:
    """JSON on several lines, so that a reviewer sees which key changed."""
    return json.dumps(value, sort_keys=True, indent=1)
