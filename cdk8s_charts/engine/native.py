"""The native vLLM Neuron plugin (vLLM 0.29, SDK 2.33): `--additional-config` with `neuron_config`.

Source: https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/vllm-neuron/docs/guides/reference-configuration.html.
Its artifact is vLLM's compile cache. The cache takes file locks and renames, which a mounted bucket cannot: it is copied
to local disk before the server starts, and a check refuses the experiment otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.engine.dialect import speculative_options
from experiment.compilation import compile_config, compiler_environment

if TYPE_CHECKING:
    from cdk8s_charts.engine.dialect import Paths
    from experiment.arms import Arm


ARTIFACT_FILES: tuple[str, ...] = ()
"""Its names are hashes of graphs; the marker alone tells."""
_TIMEOUT_S = "1200"


def engine_options(arm: Arm, paths: Paths, *, serving: bool) -> dict[str, Any]:
    """Arguments of the engine, the same for compiling and serving: the cache is found by them."""
    del serving
    return {
        "tensor_parallel_size": arm.serving.tensor_parallel,
        "max_num_seqs": arm.serving.max_num_seqs,
        "max_model_len": arm.serving.max_model_len,
        "max_num_batched_tokens": arm.serving.max_model_len,
        "enable_prefix_caching": False,
        "additional_config": {"neuron_config": compile_config(arm)},
        **speculative_options(arm, paths),
    }


def server_options() -> dict[str, Any]:
    """Arguments of the server alone."""
    return {"enable_log_requests": False}


def serve_environment(arm: Arm, artifact: str) -> dict[str, str]:
    """Environment of a server that fails instead of compiling."""
    return {**_both(arm, artifact), "VLLM_NEURON_DISABLE_WARMUP_COMPILE": "1"}


def compile_environment(arm: Arm, artifact: str) -> dict[str, str]:
    """Environment of a compilation."""
    return {
        **_both(arm, artifact),
        "VLLM_NEURON_COMPILATION_TIMEOUT": "7200",
        "NEURON_LIBTORCH_COMPILATION_TIMEOUT": "7200",
        "NEURON_CC_FLAGS": f"--temp-dir={artifact}.work",
    }


def _both(arm: Arm, artifact: str) -> dict[str, str]:
    environment = {
        "VLLM_CACHE_ROOT": artifact,
        **compiler_environment(arm),
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": _TIMEOUT_S,
    }
    if not arm.instance.efa_interfaces:
        environment["NEURON_SKIP_EFA_AFFINITY"] = "1"
    return environment
