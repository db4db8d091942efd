"""The vLLM V1 plugin with NxD Inference (vLLM 0.16, SDK 2.31.1): `--additional-config` with `override_neuron_config`.

Source: https://github.com/vllm-project/vllm-neuron, `worker/neuronx_distributed_model_loader.py` and `platform.py`. The
key has underscores there; some documentation spells it with hyphens, which the code does not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.engine import nxdi_v0
from cdk8s_charts.engine.dialect import speculative_options
from experiment.compilation import compile_config, compiler_environment, serve_config

if TYPE_CHECKING:
    from cdk8s_charts.engine.dialect import Paths
    from experiment.arms import Arm


ARTIFACT_FILES = nxdi_v0.ARTIFACT_FILES


def engine_options(arm: Arm, paths: Paths, *, serving: bool) -> dict[str, Any]:
    """Arguments of the engine: one block of the KV cache for each sequence, as the plugin asks without prefix caching."""
    return {
        "tensor_parallel_size": arm.serving.tensor_parallel,
        "max_num_seqs": arm.serving.max_num_seqs,
        "max_model_len": arm.serving.max_model_len,
        "num_gpu_blocks_override": arm.serving.max_num_seqs,
        "enable_prefix_caching": False,
        "additional_config": {
            "override_neuron_config": serve_config(arm) if serving else compile_config(arm)
        },
        **speculative_options(arm, paths),
    }


def server_options() -> dict[str, Any]:
    """Arguments of the server alone."""
    return {"enable_log_requests": False}


def serve_environment(arm: Arm, artifact: str) -> dict[str, str]:
    """Environment of a server; that it never compiles is seen to by the check of the artifact's marker before it."""
    return {
        "NEURON_COMPILED_ARTIFACTS": artifact,
        **compiler_environment(arm),
        "NEURON_RT_EXEC_TIMEOUT": "600",
    }


def compile_environment(arm: Arm, artifact: str) -> dict[str, str]:
    """Environment of a compilation."""
    return {
        "NEURON_COMPILED_ARTIFACTS": artifact,
        **compiler_environment(arm),
        "BASE_COMPILE_WORK_DIR": f"{artifact}.work/",
        "NEURON_COMPILE_CACHE_URL": f"{artifact}.cache",
    }
