"""The artifact of an arm: its Neuron configuration, complete and explicit, and its key.

Both arms get every key that decides their graph. The vLLM 0.9.1 fork gives a plain and a speculating server different
defaults (dynamic or greedy sampling, sequence parallelism on or off), so equal YAML would not be an equal engine. Key names are those of NxD Inference's `models/config.py` at the version that the image carries (a test
compares them), or of the native plugin's configuration reference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from trnspec.experiment.arms import Arm, Experiment, Weights
from trnspec.experiment.catalogue.engine_keys import CONTEXT_BUCKETS, TILE, longest_prompt
from trnspec.experiment.catalogue.models import MODELS

LIKE = 0.9
"""A model with at least this share of a published model's parameters is assumed to compile as long."""
DRAFTED_COLD_STARTS = 2
"""A drafting arm is assumed to compile this many times as long as its plain arm: it has the head's graphs too."""
COLD_STARTS_S = {"Qwen/Qwen3-8B": (135.0, 491.4), "Qwen/Qwen3-32B": (214.3, 214.3)}
"""Seconds that a plain server of vLLM Neuron needed to start with an empty compile cache: with the smallest and the largest prefill
bucket that was tried (2,048 and 8,192 tokens). They include loading: with everything compiled, the 8B started in 106.9 s. Version 0.24, SDK 2.32, one Trainium2 chip, one sequence, 2026-10-07; by the makers of another engine:
https://github.com/foxl-ai/kiln/blob/f5a7faf/bench/results/2026-10-07-trn2.3xlarge-qwen3-ttft.md
"""
KEY_LENGTH = 16
"""Hexadecimal digits: 64 bits, enough for the handful of artifacts of one bucket."""
TREATED_KEYS = (
    "enable_fused_speculation",
    "enable_eagle_speculation",
    "is_eagle3",
    "speculation_length",
    "fused_spec_config",
    "kv_cache_tiling",
)
"""Keys of a saved configuration that differ because the arm speculates; `fused_spec_config` holds the draft's, and the key-value
cache is tiled for fused and EAGLE speculation only (`models/config.py` of NxD Inference, line 331 at v0.6.10598)."""

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
    """Return the keys of a saved configuration that may differ: because one arm speculates, or because the file sets them."""
    return tuple(dict.fromkeys((*TREATED_KEYS, *with_derived_key((*baseline.engine, *arm.engine)))))


def with_derived_key(engine: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that the file sets for an arm, and the key that follows from a list of buckets."""
    keys = tuple(engine)
    return (*keys, "max_context_length") if CONTEXT_BUCKETS in keys else keys


def compile_config(arm: Arm) -> dict[str, Any]:
    """Return everything that shapes the compiled graph of `arm`, in the form of its runtime's vLLM."""
    own, mode = dict(arm.engine), arm.speculation.mode if arm.speculation else None
    if longest := longest_prompt(arm.engine):
        own["max_context_length"] = longest
    match arm.runtime.dialect:
        case "nxdi-v0":
            return _nxdi(arm, mode) | own
        case "nxdi-v1":
            # The plugin would otherwise derive these from vLLM's cache options.
            derived = {"is_block_kv_layout": False, "is_prefix_caching": False}
            return _nxdi(arm, mode) | derived | {"is_eagle3": mode == "eagle3"} | own
        case _:
            return _native(arm) | own


def serve_config(arm: Arm) -> dict[str, Any]:
    """Return the configuration for a server that loads a compiled artifact.

    The 0.9.1 fork reads the artifact's own `neuron_config.json` and then sets each override on it unchanged, without
    turning JSON into objects: a sampling configuration would become a dict where the runner reads attributes. So the
    values that are objects stay in the artifact, and only plain ones are repeated. The plugins build the configuration
    again and ignore it, or find the compiled graph by it, so they are told all of it again.
    """
    if arm.runtime.dialect != "nxdi-v0":
        return compile_config(arm)
    return {key: value for key, value in compile_config(arm).items() if key not in _OBJECTS}


def synchronous(arm: Arm) -> bool:
    """Return whether a server of the native plugin must finish one step before it schedules the next."""
    if arm.runtime.dialect != "native":
        return False
    on_host = not compile_config(arm)["on_device_sampling_config"]
    drafted = arm.mode is not None and arm.mode.synchronous
    return on_host or drafted or arm.scheduler == "synchronous"


def compiler_environment(arm: Arm) -> dict[str, str]:
    """Return the environment that shapes the artifact; compiling and serving must share it."""
    cores = {"NEURON_LOGICAL_NC_CONFIG": str(arm.serving.logical_nc_config)}
    return cores | ({"VLLM_NEURON_BACKEND": "neuron_native"} if arm.runtime.dialect == "native" else {})


def _nxdi(arm: Arm, mode: str | None) -> dict[str, Any]:
    serving = arm.serving
    return {
        "async_mode": False,
        "batch_size": serving.max_num_seqs,
        "ctx_batch_size": 1,
        "enable_bucketing": True,
        "enable_eagle_speculation": mode in ("eagle", "eagle3"),
        "enable_fused_speculation": mode in ("fused", "eagle", "eagle3"),
        "fused_qkv": False,
        "is_continuous_batching": True,
        "logical_nc_config": serving.logical_nc_config,
        "max_context_length": serving.max_model_len,
        "on_device_sampling_config": dict(_GREEDY),
        "padding_side": "right",
        "quantized": False,
        "save_sharded_checkpoint": True,
        "seq_len": serving.max_model_len,
        "sequence_parallel_enabled": False,
        "speculation_length": arm.num_speculative_tokens,
        "torch_dtype": "bfloat16",
        "tp_degree": serving.tensor_parallel,
    }


def _native(arm: Arm) -> dict[str, Any]:
    """Buckets for the lengths of the load, powers of two from 128 as the plugin makes them, and the largest of each kind:
    what does not fit takes that one, and nothing is left to compile later.

    A prompt is padded to the first bucket that holds it. A decode step reads the cache up to the first bucket that holds the longest
    sequence of its batch, otherwise all of `max_model_len`. That length is always compiled: the plugin refuses it in
    `decode_context_length_buckets` (`validate_decode_context_length_buckets` of its bucket_utils; design of decode
    context-length bucketing, 2026-06-23). One smaller bucket is enough for one load; each one more is compiled three times
    where an arm drafts.
    """
    serving, longest = arm.serving, arm.serving.max_model_len
    prompts = [*_powers(serving.prompt_tokens)] if serving.prompt_tokens else []
    context = [*_powers(serving.sequence_tokens)][-1:] if serving.sequence_tokens else []
    smaller = [bucket for bucket in context if bucket < longest]
    return {
        "num_batched_tokens_buckets": [*(bucket for bucket in prompts if bucket < longest), longest],
        "num_seqs_buckets": [serving.max_num_seqs],
        "on_device_sampling_config": {"all_greedy": True},
        **({"decode_context_length_buckets": smaller} if smaller else {}),
    }


def _powers(tokens: int) -> Iterator[int]:
    """Yield powers of two from 128, the smallest bucket of the native plugin, to the first that holds `tokens`."""
    bucket = TILE
    while bucket < tokens:
        yield bucket
        bucket *= 2
    yield bucket


_BLOCK_TOKENS, _SPARE_BLOCKS = 32, 176
"""The size of a block of the key-value cache, and the blocks that the plugin's examples of DFlash add to what the batch can use, in both
arms (https://github.com/vllm-project/vllm-neuron, examples/vllm_neuron/models/qwen3/dflash/run_tp4.sh). No
source says why 176; the features guide (2026-08-13) has the formula without them. vLLM keeps one block for itself and needs room
for drafts, so some are needed.

The number is part of the shape of the cache, so of the compiled graphs, and what a DFlash head costs grows with it: every arm
has the same, and vLLM does not derive it from the memory that it finds."""


def cache_blocks(arm: Arm) -> int:
    """Return the number of blocks of the native plugin's key-value cache."""
    serving = arm.serving
    return -(-serving.max_model_len * serving.max_num_seqs // _BLOCK_TOKENS) + _SPARE_BLOCKS


def artifact_key(arm: Arm) -> str:
    """Return the hash of everything that shapes the artifact: image, models with revisions, whole configuration, instance."""
    canonical = json.dumps(artifact_inputs(arm), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


def artifact_inputs(arm: Arm) -> dict[str, Any]:
    """Return the readable inputs of the key, which are stored with the artifact. Graphs are found by the engine's options, of which a
    scheduler that the file sets is one."""
    speculation, serving = arm.speculation, arm.serving
    return {
        "scheduler": arm.scheduler,
        "image": arm.runtime.image,
        "neuron_sdk": arm.runtime.neuron_sdk,
        "instance": arm.instance.name,
        "target": _weights(arm.target),
        "draft": _weights(speculation.draft) if speculation else None,
        "mode": speculation.mode if speculation else None,
        "num_speculative_tokens": speculation.num_speculative_tokens if speculation else None,
        "draft_max_model_len": serving.max_model_len if speculation else None,
        "tensor_parallel": serving.tensor_parallel,
        "logical_nc_config": serving.logical_nc_config,
        "max_num_seqs": serving.max_num_seqs,
        "max_model_len": serving.max_model_len,
        "neuron_config": compile_config(arm),
        "compiler_environment": compiler_environment(arm),
        **({"cache_blocks": cache_blocks(arm)} if arm.runtime.dialect == "native" else {}),
    }


def _weights(weights: Weights) -> dict[str, Any]:
    return {"model": weights.model.name, "revision": weights.revision, "address": weights.address}


def native_arms(experiment: Experiment) -> list[Arm]:
    """Return the arms of the native plugin. If there are several, a run compiles and starts the first and sends it a request before it
    compiles another: nobody has shown that such a server finds its compiled graphs."""
    return [arm for arm in experiment.arms if arm.runtime.dialect == "native"]


def cold_start_s(arm: Arm) -> tuple[float, float] | None:
    """Return the shortest and the longest published start of such an arm, with compilation; `None` if none is published."""
    if arm.runtime.dialect != "native" or arm.speculation is not None:
        return None
    return COLD_STARTS_S.get(arm.target.model.name)


def cold_start_like(arm: Arm) -> tuple[float, str] | None:
    """Return the assumed seconds of compilation and the model with that published time: the arm's own, or a slightly larger one."""
    size = arm.target.model.parameters
    if arm.runtime.dialect != "native":
        return None
    for name, (_, longest) in COLD_STARTS_S.items():
        if LIKE * MODELS[name].parameters <= size <= MODELS[name].parameters:
            return longest * (DRAFTED_COLD_STARTS if arm.speculation else 1), name.rpartition("/")[2]
    return None
