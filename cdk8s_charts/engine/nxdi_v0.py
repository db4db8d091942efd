"""The vLLM 0.9.1 fork (SDK 2.26.1): `--override-neuron-config`, engine V0.

Sources: AWS's Qwen3 tutorial of speculative decoding (`VLLM_USE_V1=0`), the fork's loader
(https://github.com/aws-neuron/upstreaming-to-vllm), the Llama 3.3 tutorial for the timeouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.engine.dialect import speculative_options
from experiment.compilation import compile_config, compiler_environment, serve_config

if TYPE_CHECKING:
    from cdk8s_charts.engine.dialect import Paths
    from experiment.arms import Arm


ARTIFACT_FILES: tuple[str, ...] = ("neuron_config.json", "model.pt")
"""What NxD Inference leaves beside the sharded weights; without them it would compile in silence."""


def engine_options(arm: Arm, paths: Paths, *, serving: bool) -> dict[str, Any]:
    """Arguments of the engine."""
    return {
        "device": "neuron",
        "tensor_parallel_size": arm.serving.tensor_parallel,
        "max_num_seqs": arm.serving.max_num_seqs,
        "max_model_len": arm.serving.max_model_len,
        "override_neuron_config": serve_config(arm) if serving else compile_config(arm),
        **speculative_options(arm, paths),
    }


def server_options() -> dict[str, Any]:
    """Arguments of the server alone."""
    return {"disable_log_requests": True}


def serve_environment(arm: Arm, artifact: str) -> dict[str, str]:
    """Environment of a server; that it never compiles is seen to by the check of the artifact's marker before it."""
    return {
        "VLLM_USE_V1": "0",
        "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference",
        "NEURON_COMPILED_ARTIFACTS": artifact,
        **compiler_environment(arm),
        "NEURON_RT_EXEC_TIMEOUT": "600",
        "VLLM_RPC_TIMEOUT": "100000",
    }


def compile_environment(arm: Arm, artifact: str) -> dict[str, str]:
    """Environment of a compilation: `BASE_COMPILE_WORK_DIR` keeps tens of GB of scratch off the container's layer."""
    return {
        "VLLM_USE_V1": "0",
        "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference",
        "NEURON_COMPILED_ARTIFACTS": artifact,
        **compiler_environment(arm),
        "BASE_COMPILE_WORK_DIR": f"{artifact}.work/",
        "NEURON_COMPILE_CACHE_URL": f"{artifact}.cache",
    }
