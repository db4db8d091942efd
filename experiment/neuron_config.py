"""The NxD Inference configuration of an arm, complete and explicit.

Both arms get every key that decides their graph, because the vLLM 0.9.1 fork gives a plain and a speculating server
different defaults (dynamic against greedy sampling, sequence parallelism on against off): equal YAML would not be an
equal engine. Key names are those of NxD Inference 0.6.10598, `models/config.py`; a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiment.arms import Arm

_OBJECTS = ("on_device_sampling_config", "torch_dtype")


def compile_config(arm: Arm) -> dict[str, Any]:
    """Everything that shapes the compiled graph of `arm`, as `--override-neuron-config` takes it."""
    serving = arm.serving
    window = arm.speculation.num_speculative_tokens if arm.speculation else 0
    return {
        "async_mode": False,
        "batch_size": serving.max_num_seqs,
        "ctx_batch_size": 1,
        "enable_bucketing": True,
        "enable_eagle_speculation": False,
        "enable_fused_speculation": arm.speculation is not None,
        "fused_qkv": False,
        "is_continuous_batching": True,
        "logical_nc_config": serving.logical_nc_config,
        "max_context_length": serving.max_model_len,
        "on_device_sampling_config": {
            "deterministic": False,
            "do_sample": False,
            "dynamic": False,
            "global_topk": 256,
            "temperature": 1.0,
            "top_k": 1,
            "top_p": 1.0,
        },
        "padding_side": "right",
        "quantized": False,
        "save_sharded_checkpoint": True,
        "seq_len": serving.max_model_len,
        "sequence_parallel_enabled": False,
        "speculation_length": window,
        "torch_dtype": "bfloat16",
        "tp_degree": serving.tensor_parallel,
    }


def serve_config(arm: Arm) -> dict[str, Any]:
    """What a server that loads a compiled artifact may be told.

    The fork reads the artifact's own `neuron_config.json` and then sets each override on it as it stands, without
    turning JSON into objects: a sampling configuration would become a dict where the runner reads attributes. So the
    values that are objects stay in the artifact, and only plain ones are repeated.
    """
    return {key: value for key, value in compile_config(arm).items() if key not in _OBJECTS}
