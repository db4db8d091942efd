"""Keys of a runtime's Neuron configuration: which exist, and which of them another setting of the file decides.

The tables in `neuron_config/` were read off the sources: of NxD Inference the syntax tree of `models/config.py` at the tag of the
0.9.1 image (0.6.10598) and at commit 4bcdc54, July 2026, for the 0.16 image (not its exact tag); of the native plugin its
configuration reference (https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/vllm-neuron/docs/guides/reference-configuration.html).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

TABLES = {
    "nxdi-v0": ("nxdi-0.6.10598", "NeuronConfig"),
    "nxdi-v1": ("nxdi-4bcdc54-2026-07", "NeuronConfig"),
    "native": ("native-2.33", "neuron_config"),
}
"""By dialect: the file, and the table in it."""
DECIDED = {
    "batch_size": "serving.max_num_seqs",
    "ctx_batch_size": "the server, one prompt at a time",
    "max_batch_size": "serving.max_num_seqs",
    "tkg_batch_size": "serving.max_num_seqs",
    "kv_cache_batch_size": "serving.max_num_seqs",
    "seq_len": "serving.max_model_len",
    "max_length": "serving.max_model_len",
    "max_context_length": "serving.max_model_len",
    "max_new_tokens": "benchmark.max_tokens",
    "tp_degree": "serving.tensor_parallel",
    "logical_nc_config": "serving.logical_nc_config",
    "logical_neuron_cores": "serving.logical_nc_config",
    "enable_eagle_speculation": "arms[].speculation",
    "enable_fused_speculation": "arms[].speculation",
    "is_eagle3": "arms[].speculation",
    "is_eagle_draft": "arms[].speculation",
    "speculation_length": "arms[].speculation",
    "spec_batch_size": "arms[].speculation",
    "token_tree_config": "arms[].speculation",
    "is_medusa": "arms[].speculation",
    "medusa_speculation_length": "arms[].speculation",
    "medusa_tree": "arms[].speculation",
    "num_medusa_heads": "arms[].speculation",
    "save_sharded_checkpoint": "how artifacts are kept",
    "is_continuous_batching": "whether the arm is served",
    "torch_dtype": "the weights, in bfloat16",
    "quantized": "the weights, in bfloat16",
    "quantization": "the weights, in bfloat16",
    "quantized_checkpoints_path": "the weights, in bfloat16",
    "on_cpu": "cluster.instance",
}
"""Keys that an arm cannot set, and what decides them."""


@cache
def known_keys(dialect: str) -> frozenset[str]:
    """Every key of the dialect's configuration; none where it has no Neuron configuration."""
    if dialect not in TABLES:
        return frozenset()
    file, table = TABLES[dialect]
    path = Path(__file__).parent / "neuron_config" / f"{file}.json"
    return frozenset(json.loads(path.read_text(encoding="utf-8"))[table])
