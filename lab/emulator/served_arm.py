"""Which arm a container's argv describes: `vllm serve MODEL --option value ...` becomes a `ServedArm`.

Only options that change what a client sees are interpreted. Every other option is accepted: vLLM has hundreds of them,
and checking them is not the emulator's task. `--host` and `--port` belong to the pod, not to this
process, and are ignored.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.findings import Misuse


@dataclass(frozen=True, kw_only=True)
class ServedArm:
    """One vLLM service as far as a client can tell."""

    model: str
    """Path or id after `vllm serve`; /v1/models shows it as `root`."""
    served_names: tuple[str, ...]
    """Names that requests may use; the first one is the answer's."""
    max_num_seqs: int
    """Slots of the continuous batch."""
    max_model_len: int
    """Prompt plus completion, in tokens."""
    speculative_tokens: int
    """k of fused speculation; 0 is plain decoding."""
    draft: str
    """Path or id of the draft model; empty for plain decoding."""


def parse_argv(argv: Sequence[str], *, heads: bool = False) -> ServedArm:
    """Read the argv of an arm's container, which is rendered and so well formed.

    `Misuse` for a way to speculate of which nothing is published; a head is known where steps of its own are given.
    """
    parser = ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--served-model-name", nargs="+", default=[argv[2]])
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--speculative-config", type=json.loads, default={})
    parser.add_argument("--override-neuron-config", type=json.loads, default={})
    options, _ = parser.parse_known_args(argv[3:])
    speculation = options.speculative_config
    method = _method(speculation, options.override_neuron_config)
    if method != "draft_model" and not heads:
        raise Misuse(
            f"argv: --speculative-config: method {method!r} has no published timings for this configuration; "
            "fused speculation with a draft model is emulated, and what has published steps"
        )
    return ServedArm(
        model=argv[2],
        served_names=tuple(options.served_model_name),
        max_num_seqs=options.max_num_seqs,
        max_model_len=options.max_model_len,
        speculative_tokens=speculation.get("num_speculative_tokens", 0),
        draft=speculation.get("model", ""),
    )


def _method(speculation: Mapping[str, Any], override: Mapping[str, Any]) -> str:
    if speculation and override.get("enable_eagle_speculation"):
        return "eagle"
    if speculation and override.get("enable_fused_speculation") is False:
        return "vanilla"
    if speculation and override.get("enable_fused_speculation"):
        return "draft_model"  # whatever the method is called: NxD Inference goes by its own configuration
    return str(speculation.get("method") or "draft_model")
