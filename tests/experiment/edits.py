"""Edits of an experiment file's data, to be put together, and experiments that several tests start from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Edit = Callable[[dict[str, Any]], object]
Variation = Callable[[Edit], Path]
"""The fixture that writes a copy of the reference after an edit."""


def put(path: str, value: Any) -> Edit:
    """An edit that puts `value` at a dotted path; digits index lists, and the first after the last appends."""

    def edit(data: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        inner: Any = data
        for step in parents:
            inner = inner[int(step)] if step.isdigit() else inner.setdefault(step, {})
        if isinstance(inner, list) and int(last) == len(inner):
            inner.append(None)
        inner[int(last) if last.isdigit() else last] = copy.deepcopy(value)

    return edit


def remove(path: str) -> Edit:
    """An edit that takes away what stands at a dotted path."""

    def edit(data: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        inner: Any = data
        for step in parents:
            inner = inner[int(step)] if step.isdigit() else inner[step]
        del inner[int(last) if last.isdigit() else last]

    return edit


def both(*edits: Edit) -> Edit:
    """All of them, in order."""
    return lambda data: [edit(data) for edit in edits]


def combined(text: str) -> Edit:
    """Edits written as `BASE OTHER {path: value, -path}` in YAML: bases of this module, values put, paths removed."""
    names, brace, rest = text.partition("{")
    values: dict[str, Any] = yaml.safe_load(brace + rest) if brace else {}
    edits = [globals()[name] for name in names.split()]
    for path, value in values.items():
        place = path.removeprefix("-")
        place = place.replace("S.", f"{SPECULATION}.", 1) if place.startswith("S.") else place
        edits.append(remove(place) if path.startswith("-") else put(place, value))
    return both(*edits)


SPECULATION = "arms.1.speculation"
HEAD = {"model": "somebody/head"}
RESERVATION = combined(
    "{cluster.capacity: {kind: reservation, reservation_id: cr-0123456789abcdef0}, cluster.availability_zones: [us-east-2b, us-east-2a]}"
)
BLOCK = combined(
    "RESERVATION {cluster.capacity.kind: capacity-block, cluster.capacity.ends_at: '2026-12-05T11:30:00Z'}"
)
VPC = combined("""{cluster.network: {vpc: vpc-0123456789abcdef0, private_subnets: {
    us-east-2a: subnet-0a0123456789abcde, us-east-2b: subnet-0b0123456789abcde}}}""")
LLAMA = combined("""{target.model: meta-llama/Llama-3.3-70B-Instruct,
    S.draft.model: meta-llama/Llama-3.2-1B-Instruct, token_secret: hf-token}""")
EAGLE = both(LLAMA, put(f"{SPECULATION}.mode", "eagle"), put(f"{SPECULATION}.draft", HEAD))
PLUGIN_EAGLE3 = combined("EAGLE {runtime: nxdi-vllm-0.16, S.mode: eagle3}")
NATIVE = combined("""{runtime: native-vllm-0.29, S.mode: eagle3,
    S.draft: {model: thoughtworks/Qwen3-32B-Eagle3}}""")
EXPECT = combined("{expect: {figures: [{arm: qwen-vllm, concurrency: 4, row: P19}]}}")
EXPECT_DRAFTED = combined("{expect: {figures: [{arm: qwen-sd-vllm, concurrency: 4, row: S9}]}}")
SMALL = combined("""{serving.devices: 1, serving.allocation: device-plugin,
    cluster.instance: trn2.3xlarge, cluster.region: ap-southeast-4,
    cluster.availability_zones: [ap-southeast-4c, ap-southeast-4a]}""")
LLAMA_8B = combined("NATIVE LLAMA {target.model: meta-llama/Llama-3.1-8B-Instruct}")
DFLASH = combined("""LLAMA_8B {S.mode: dflash, S.num_speculative_tokens: 9, serving.devices: 1,
    S.draft: {model: somebody/head}}""")
NATIVE_8B = combined("""LLAMA_8B {S.draft: {model: RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3}}""")
QWEN_DFLASH = combined("""NATIVE {target.model: Qwen/Qwen3-4B, S.mode: dflash, S.num_speculative_tokens: 15,
    S.draft: {model: z-lab/Qwen3-4B-DFlash-b16}, serving.devices: 1}""")
KERNELS = combined("""LLAMA {serving.max_model_len: 4096, arms.1.engine: {mlp_kernel_enabled: true,
    context_encoding_buckets: [2048, 4096], token_generation_buckets: [2048, 4096]}}""")
