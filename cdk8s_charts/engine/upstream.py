"""Upstream vLLM on a CPU, for the lab: nothing is compiled, so there is no artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.engine.dialect import speculative_options

if TYPE_CHECKING:
    from cdk8s_charts.engine.dialect import Paths
    from experiment.arms import Arm


ARTIFACT_FILES: tuple[str, ...] = ()


def engine_options(arm: Arm, paths: Paths, *, serving: bool) -> dict[str, Any]:
    """Arguments of the engine, as they were run with tiny models on two cores."""
    del serving
    return {
        "dtype": "float32",
        "max_num_seqs": arm.serving.max_num_seqs,
        "max_model_len": arm.serving.max_model_len,
        "enforce_eager": True,
        "kv_cache_memory_bytes": "64M",
        "enable_prefix_caching": False,
        **speculative_options(arm, paths),
    }


def server_options() -> dict[str, Any]:
    """Arguments of the server alone."""
    return {"enable_log_requests": False}


def serve_environment(arm: Arm, artifact: str) -> dict[str, str]:
    """Environment of a server: one thread, so that two arms on one machine disturb each other evenly."""
    del arm, artifact
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def compile_environment(arm: Arm, artifact: str) -> dict[str, str]:
    """Never used: the lab's runtime compiles nothing."""
    return serve_environment(arm, artifact)
