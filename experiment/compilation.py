"""What is compiled for an arm: its Neuron configuration, complete and explicit, and the artifact's key.

Both arms get every key that decides their graph, because the vLLM 0.9.1 fork gives a plain and a speculating server
different defaults (dynamic against greedy sampling, sequence parallelism on against off): equal YAML would not be an
equal engine. Key names are those of NxD Inference's `models/config.py` at the version that the image carries (a test
compares them), or of the native plugin's configuration reference.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiment.arms import Arm, Weights

SPECULATION_LENGTH = 64
"""Candidates verified in a step, the root among them; NxD Inference's feature guide uses the same."""
_CHOICES = 10
"""Choices of a head that are worth a look."""
KEY_LENGTH = 16
"""Hexadecimal digits: 64 bits, enough for the handful of artifacts of one bucket."""
TREATED_KEYS = (
    "enable_fused_speculation",
    "enable_eagle_speculation",
    "is_eagle3",
    "speculation_length",
    "fused_spec_config",
)
"""Keys of a saved configuration that differ because the arm speculates; `fused_spec_config` holds the draft's."""

_OBJECTS = ("on_device_sampling_config", "torch_dtype")
_GREEDY = {
    "deterministic": False,
    "do_sample": False,
    "dynamic": False,
    "global_topk": 256,
    "temperature": 1.0,
    "top_k": 1,
    "top_p": 1.0,
}


def declared_keys(baseline: Arm, arm: Arm) -> tuple[str, ...]:
    """Keys of a saved configuration in which the two may differ: because one speculates, or because the file sets them."""
    return tuple(dict.fromkeys((*TREATED_KEYS, *baseline.engine, *arm.engine)))


def compile_config(arm: Arm) -> dict[str, Any]:
    """Everything that shapes the compiled graph of `arm`, as its runtime's vLLM takes it; empty without Neuron."""
    return _common(arm) | dict(arm.engine)


def _common(arm: Arm) -> dict[str, Any]:
    """The same without what the file sets for this arm alone."""
    match arm.runtime.dialect:
        case "nxdi-v0":
            return _nxdi(arm) | (_medusa(arm) if _mode(arm) == "medusa" else {})
        case "nxdi-v1":
            # The plugin would otherwise derive these from vLLM's cache options.
            derived = {"is_block_kv_layout": False, "is_prefix_caching": False}
            return _nxdi(arm) | derived | {"is_eagle3": _mode(arm) == "eagle3"}
        case "native":
            return _native(arm)
        case _:
            return {}


def serve_config(arm: Arm) -> dict[str, Any]:
    """What a server that loads a compiled artifact may be told.

    The 0.9.1 fork reads the artifact's own `neuron_config.json` and then sets each override on it as it stands, without
    turning JSON into objects: a sampling configuration would become a dict where the runner reads attributes. So the
    values that are objects stay in the artifact, and only plain ones are repeated. The plugins build the configuration
    anew and ignore it, or find the compiled graph by it, so they are told all of it again.
    """
    if arm.runtime.dialect != "nxdi-v0":
        return compile_config(arm)
    return {key: value for key, value in compile_config(arm).items() if key not in _OBJECTS}


def synchronous(arm: Arm) -> bool:
    """Whether a server of the native plugin is told to end one step before it schedules the next."""
    if arm.runtime.dialect != "native":
        return False
    on_host = not compile_config(arm)["on_device_sampling_config"]
    return on_host or arm.scheduler == "synchronous"


def compiler_environment(arm: Arm) -> dict[str, str]:
    """Environment that shapes what is compiled, and that compiling and serving must therefore share."""
    if arm.runtime.dialect not in ("nxdi-v0", "nxdi-v1", "native"):
        return {}
    cores = {"NEURON_LOGICAL_NC_CONFIG": str(arm.serving.logical_nc_config)}
    return cores | ({"VLLM_NEURON_BACKEND": "neuron_native"} if arm.runtime.dialect == "native" else {})


def _mode(arm: Arm) -> str | None:
    return arm.speculation.mode if arm.speculation else None


def _nxdi(arm: Arm) -> dict[str, Any]:
    serving, mode = arm.serving, _mode(arm)
    return {
        "async_mode": False,
        "batch_size": serving.max_num_seqs,
        "ctx_batch_size": 1,
        "enable_bucketing": True,
        "enable_eagle_speculation": mode in ("eagle", "eagle3"),
        "enable_fused_speculation": mode in ("fused", "eagle", "eagle3"),
        "fused_qkv": False,
        "is_continuous_batching": not arm.batch_only,
        "logical_nc_config": serving.logical_nc_config,
        "max_context_length": serving.max_model_len,
        "on_device_sampling_config": dict(_GREEDY),
        "padding_side": "right",
        "quantized": False,
        "save_sharded_checkpoint": True,
        "seq_len": serving.max_model_len,
        "sequence_parallel_enabled": False,
        "speculation_length": 0 if mode == "medusa" else arm.num_speculative_tokens,
        "torch_dtype": "bfloat16",
        "tp_degree": serving.tensor_parallel,
    }


def _medusa(arm: Arm) -> dict[str, Any]:
    return {
        "is_medusa": True,
        "medusa_speculation_length": SPECULATION_LENGTH,
        "medusa_tree": tree(arm.num_speculative_tokens),
        "num_medusa_heads": arm.num_speculative_tokens,
    }


def tree(heads: int) -> list[list[int]]:
    """The candidates that Medusa's heads are asked for: the likeliest paths, parents before children, one fewer than the
    speculation length.

    NxD Inference takes paths: `[0, 2]` is the third choice of the second head after the first choice of the first one. The
    published trees were searched on one model's accuracy; without such a measurement a head's r-th choice is taken to be
    right with probability (3/5) / r^2, less with every further head.
    """
    found: list[list[int]] = []
    waiting = [(-_probability(1, rank), [rank]) for rank in range(_CHOICES)]
    heapq.heapify(waiting)
    while waiting and len(found) < SPECULATION_LENGTH - 1:
        probability, path = heapq.heappop(waiting)
        found.append(path)
        if len(path) < heads:
            for rank in range(_CHOICES):
                heapq.heappush(waiting, (probability * _probability(len(path) + 1, rank), [*path, rank]))
    return sorted(found, key=lambda path: (len(path), path))


def _probability(head: int, rank: int) -> float:
    return 0.6 / head / (rank + 1) ** 2


def _native(arm: Arm) -> dict[str, Any]:
    """One bucket of each kind, the largest: padding costs both arms the same, and nothing is left to compile later.

    The length of a decode step's context has that bucket by itself: `max_model_len` is always compiled, and
    `decode_context_length_buckets` takes smaller ones only; the plugin refuses that very length
    (`validate_decode_context_length_buckets` of its bucket_utils; configuration reference of SDK 2.33).
    """
    return {
        "num_batched_tokens_buckets": [arm.serving.max_model_len],
        "num_seqs_buckets": [arm.serving.max_num_seqs],
        "on_device_sampling_config": {"all_greedy": True},
    }


def artifact_key(arm: Arm) -> str:
    """Hash of everything that shapes the artifact: image, models with revisions, whole configuration, instance."""
    canonical = json.dumps(artifact_inputs(arm), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


def artifact_inputs(arm: Arm) -> dict[str, Any]:
    """What the key is made of, readable, to be stored beside the artifact. Graphs are found by the engine's options, of which a
    scheduler that the file sets is one."""
    speculation, serving = arm.speculation, arm.serving
    return {
        **({"scheduler": arm.scheduler} if arm.scheduler else {}),
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
    found = {"model": weights.model.name, "revision": weights.revision}
    return found | ({"address": weights.address} if weights.address else {})
