"""How each family of runtimes is told the same things: options of the engine, and environment.

- `nxdi-v0`, the vLLM 0.9.1 fork (SDK 2.26.1), engine V0: AWS's Qwen3 tutorial of speculative decoding (`VLLM_USE_V1=0`),
  the fork's loader (https://github.com/aws-neuron/upstreaming-to-vllm), the Llama 3.3 tutorial for the timeouts.
- `nxdi-v1`, the vLLM V1 plugin with NxD Inference (vLLM 0.16, SDK 2.31.1): https://github.com/vllm-project/vllm-neuron,
  `worker/neuronx_distributed_model_loader.py` and `platform.py`. The key `override_neuron_config` has underscores there;
  some documentation spells it with hyphens, which the code does not read.
- `native`, the native vLLM plugin (vLLM 0.29, SDK 2.33):
  https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/vllm-neuron/docs/guides/reference-configuration.html.
  Its artifact is vLLM's compile cache, which is found by the engine's options. The cache takes file locks and renames,
  which a mounted bucket cannot: it is copied to local disk first, and a check refuses the experiment otherwise.
- `vllm`, upstream vLLM on a CPU, for the lab: nothing is compiled, so there is no artifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiment.compilation import compile_config, compiler_environment, serve_config
from experiment.naming import weights_path as weights_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiment.arms import Arm, Weights

CHECKPOINTS_MOUNT = "/checkpoints"
ARTIFACTS_MOUNT = "/artifacts"
SCRATCH_MOUNT = "/scratch"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What a family of runtimes is told."""

    engine_options: Callable[[Arm, bool], dict[str, Any]]
    """Arguments of vLLM's engine by their Python names, for a server or for a compilation."""
    server_options: dict[str, Any]
    """Arguments that only the server takes."""
    environment: Callable[[Arm, str, bool], dict[str, str]]
    """Of a server that loads the artifact in a folder, or of a compilation that leaves it there."""
    artifact_files: tuple[str, ...] = ()
    """Files without which an artifact is none, whatever its marker says."""


def dialect_of(arm: Arm) -> Dialect:
    """The dialect of an arm's runtime."""
    return _DIALECTS[arm.runtime.dialect]


def weights_path(weights: Weights) -> str:
    """Where a model's files are mounted."""
    return f"{CHECKPOINTS_MOUNT}/{weights_folder(weights)}"


def _nxdi_v0_options(arm: Arm, serving: bool) -> dict[str, Any]:
    return {
        "device": "neuron",
        **_shape(arm),
        "override_neuron_config": serve_config(arm) if serving else compile_config(arm),
        **_speculation(arm),
    }


def _nxdi_v0_environment(arm: Arm, artifact: str, serving: bool) -> dict[str, str]:
    return {
        "VLLM_USE_V1": "0",
        "VLLM_NEURON_FRAMEWORK": "neuronx-distributed-inference",
        **_nxdi_environment(arm, artifact, serving),
        **({"VLLM_RPC_TIMEOUT": "100000"} if serving else {}),
    }


def _nxdi_v1_options(arm: Arm, serving: bool) -> dict[str, Any]:
    """One block of the KV cache for each sequence, as the plugin asks without prefix caching."""
    return {
        **_shape(arm),
        "num_gpu_blocks_override": arm.serving.max_num_seqs,
        "enable_prefix_caching": False,
        "additional_config": {
            "override_neuron_config": serve_config(arm) if serving else compile_config(arm)
        },
        **_speculation(arm),
    }


def _nxdi_environment(arm: Arm, artifact: str, serving: bool) -> dict[str, str]:
    """That a server never compiles is seen to by the check of the artifact's marker before it; a compilation's scratch,
    tens of GB, stays off the container's layer."""
    shared = {"NEURON_COMPILED_ARTIFACTS": artifact, **compiler_environment(arm)}
    if serving:
        return shared | {"NEURON_RT_EXEC_TIMEOUT": "600"}
    return shared | nxdi_work_folders(artifact)


def nxdi_work_folders(artifact: str) -> dict[str, str]:
    """Where NxD Inference keeps what only a compilation needs."""
    return {
        "BASE_COMPILE_WORK_DIR": f"{artifact}.work/",
        "NEURON_COMPILE_CACHE_URL": f"{artifact}.cache",
    }


def _native_options(arm: Arm, _serving: bool) -> dict[str, Any]:
    return {
        **_shape(arm),
        "max_num_batched_tokens": arm.serving.max_model_len,
        "enable_prefix_caching": False,
        "additional_config": {"neuron_config": compile_config(arm)},
        **_speculation(arm),
    }


def _native_environment(arm: Arm, artifact: str, serving: bool) -> dict[str, str]:
    """A server fails instead of compiling."""
    environment = {
        "VLLM_CACHE_ROOT": artifact,
        **compiler_environment(arm),
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1200",
    }
    if not arm.instance.efa_interfaces:
        environment["NEURON_SKIP_EFA_AFFINITY"] = "1"
    if serving:
        return environment | {"VLLM_NEURON_DISABLE_WARMUP_COMPILE": "1"}
    return environment | {
        "VLLM_NEURON_COMPILATION_TIMEOUT": "7200",
        "NEURON_LIBTORCH_COMPILATION_TIMEOUT": "7200",
        "NEURON_CC_FLAGS": f"--temp-dir={artifact}.work",
    }


def _upstream_options(arm: Arm, _serving: bool) -> dict[str, Any]:
    """As they were run with tiny models on two cores."""
    return {
        "dtype": "float32",
        "max_num_seqs": arm.serving.max_num_seqs,
        "max_model_len": arm.serving.max_model_len,
        "enforce_eager": True,
        "kv_cache_memory_bytes": "64M",
        "enable_prefix_caching": False,
        **_speculation(arm),
    }


def _upstream_environment(_arm: Arm, _artifact: str, _serving: bool) -> dict[str, str]:
    """One thread, so that two arms on one machine disturb each other evenly."""
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def _shape(arm: Arm) -> dict[str, Any]:
    return {
        "tensor_parallel_size": arm.serving.tensor_parallel,
        "max_num_seqs": arm.serving.max_num_seqs,
        "max_model_len": arm.serving.max_model_len,
    }


def _speculation(arm: Arm) -> dict[str, Any]:
    """The one option that all dialects share; nothing for an arm that does not speculate.

    `method` is given where the runtime reads one. The 0.9.1 fork ignores it, later lines would misread it: a plain draft
    called "eagle" starts on the one and breaks on the others.
    """
    if arm.speculation is None:
        return {}
    config: dict[str, Any] = {
        "model": weights_path(arm.speculation.draft),
        "num_speculative_tokens": arm.speculation.num_speculative_tokens,
        "max_model_len": arm.speculation.draft_max_model_len,
    }
    method = arm.runtime.modes[arm.speculation.mode].vllm_method
    return {"speculative_config": config | ({"method": method} if method else {})}


_NXDI_FILES = ("neuron_config.json", "model.pt")
"""What NxD Inference leaves beside the sharded weights; without them it would compile in silence. The names in the native
plugin's cache are hashes of graphs, so there the marker alone tells."""
_QUIET = {"enable_log_requests": False}
_DIALECTS = {
    "nxdi-v0": Dialect(
        engine_options=_nxdi_v0_options,
        server_options={"disable_log_requests": True},
        environment=_nxdi_v0_environment,
        artifact_files=_NXDI_FILES,
    ),
    "nxdi-v1": Dialect(
        engine_options=_nxdi_v1_options,
        server_options=_QUIET,
        environment=_nxdi_environment,
        artifact_files=_NXDI_FILES,
    ),
    "native": Dialect(engine_options=_native_options, server_options=_QUIET, environment=_native_environment),
    "vllm": Dialect(
        engine_options=_upstream_options, server_options=_QUIET, environment=_upstream_environment
    ),
}
