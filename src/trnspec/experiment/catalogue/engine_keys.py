"""Keys of a runtime's Neuron configuration: which exist, and which of them another setting of the file decides.

The tables in `neuron_config/` were read off the sources: of NxD Inference the syntax tree of `models/config.py` at the tag of the
0.9.1 image (0.6.10598) and at commit 4bcdc54, July 2026, for the 0.16 image (not its exact tag); of the native plugin its
configuration reference (https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/vllm-neuron/docs/guides/reference-configuration.html).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from trnspec.experiment.catalogue.models import table_of

DECIDED: dict[str, str] = {key: by for by, keys in table_of(__file__).items() for key in keys}
"""Keys that an arm cannot set, and what decides them."""
CONTEXT_BUCKETS, DECODE_BUCKETS = "context_encoding_buckets", "token_generation_buckets"
"""Keys of NxD Inference: lengths that prompts and steps are compiled for. The first that fits is taken."""
WINDOW_SCHEDULE = "num_speculative_tokens_per_batch_size"
"""Key of vLLM's speculative configuration, from 0.24 on. The native plugin compiles its drafts for one window and does not read it
(vllm_neuron/vllm/spec_decode/eagle.py at 09006a44); the other runtimes are of earlier versions."""
FUSED_QKV = ("fused_qkv", "qkv_kernel_enabled")
"""Keys of NxD Inference that read query, key and value weights as one matrix."""
NUMERICAL_ERROR_MAX_TOKENS = 1024
"""Tokens of a bucket up to which NxD Inference's kernels "may lead to Numerical Error", status 1003
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/libraries/nxd-inference/tutorials/trn2-llama3.3-70b-tutorial.html)."""


def min_bucket_tokens(engine: Mapping[str, Any], tokens: int) -> int:
    """Return the tokens of the smallest graph that NxD Inference compiles for contexts of `tokens`: powers of two from 128 if an engine lists none
    (`generate_buckets` of modules/autobucketing.py at v0.6.10598)."""
    if engine.get("enable_bucketing") is False:
        return tokens
    listed: list[list[int]] = [engine.get(key) or [] for key in (CONTEXT_BUCKETS, DECODE_BUCKETS)]
    return min(min(one, default=min(TILE, tokens)) for one in listed)


def longest_prompt(engine: Mapping[str, Any]) -> int | None:
    """Return the tokens of the last context bucket that an engine lists; `None` if it lists none. Longer prompts end the server."""
    listed: list[int] = engine.get(CONTEXT_BUCKETS) or []
    return max(listed, default=None)


def nxdi_value(key: str, value: Any, *, tokens: int) -> str | None:
    """Return what NxD Inference accepts for a key if it refuses this value; `None` if it accepts the value."""
    if key not in (CONTEXT_BUCKETS, DECODE_BUCKETS) or value is None:
        return None
    fits = (
        isinstance(value, list)
        and bool(value)
        and all(type(one) is int and 0 < one <= tokens for one in value)
    )
    return None if fits else f"null, or whole numbers up to {tokens}"


TILE = 128
"""Tokens by which the attention kernel reads the context."""
SEGMENTS = (512, 1024, 2048, 4096, 8192)


def native_value(table: str, key: str, value: Any, *, sequences: int, tokens: int) -> str | None:
    """Return what the native plugin accepts for a key of this table if it refuses this value; `None` if it accepts the value.

    Configuration reference (2026-08-13) and decode-context-length-bucketing (2026-06-23) of the plugin's documentation; the prompt's
    largest bucket is the whole context here.
    """
    ends = {"num_seqs_buckets": sequences, "num_batched_tokens_buckets": tokens}
    ascending = isinstance(value, list) and bool(value) and all(type(one) is int and one > 0 for one in value)
    ascending = ascending and all(one < other for one, other in pairwise(value))
    if key in ends and not (ascending and value[-1] == ends[key]):
        return f"ascending whole numbers, the last of them {ends[key]}"
    if value is None:
        return None
    if key == "decode_context_length_buckets" and not (
        ascending and value[-1] < tokens and not any(one % TILE for one in value)
    ):
        return f"null, or ascending multiples of {TILE} below {tokens}"
    if key == "kv_segment_size_buckets" and not (ascending and set(value) <= {*SEGMENTS}):
        return f"null, or ascending numbers of {', '.join(map(str, SEGMENTS))}"
    if key == "on_device_sampling_config":
        known = known_keys(table, key)
        if not (isinstance(value, dict) and value and value.keys() <= known):
            return f"null, or a mapping of {', '.join(sorted(known))}"
    return None


@cache
def known_keys(table: str, mapping: str = "neuron_config") -> frozenset[str]:
    """Return every key of a runtime's Neuron configuration, or of a mapping inside it."""
    path = Path(__file__).parent / "neuron_config" / f"{table}.json"
    return frozenset(json.loads(path.read_text(encoding="utf-8"))[mapping])
