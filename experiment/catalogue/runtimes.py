"""Pinned Neuron vLLM images: which flags they take, which speculation they can do, which metrics they expose.

Sources: the image list of aws-neuron/deep-learning-containers; the vLLM user guides and release notes of the AWS
Neuron SDK (v1 guide: a draft model is "only supported on the legacy Neuron fork of vLLM v0"); NxD Inference's source
at the tag that the image carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Mode:
    """What a runtime says to one way of speculating."""

    works: bool
    architectures: frozenset[str] = frozenset()
    """Model classes for which the runtime has the code."""
    min_speculative_tokens: int = 1
    reason: str = ""
    """Why it does not work, where it does not."""
    nearest: str = ""
    """What to ask for instead."""
    bonus_token: bool = False
    """Whether a step yields the target's own token beside all k proposals (upstream vLLM), not instead of one."""
    head: bool = False
    """Whether the draft must be a head trained for the target, not a model of its own."""
    batch_only: bool = False
    """Whether it works in one batch Job around NxD Inference's own script only, behind no server."""
    vllm_method: str | None = None
    """`method` of `--speculative-config`, where the dialect reads one."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One image with its dialect and its limits."""

    name: str
    image: str
    dialect: str
    """Which flags and environment the `command` module writes: `nxdi-v0` is the vLLM 0.9.1 fork."""
    vllm: str
    neuron_sdk: str
    nxd_inference: str
    instances: frozenset[str]
    architectures: frozenset[str]
    modes: Mapping[str, Mode]
    greedy_speculation_only: bool
    """Whether a speculating server ignores the temperature of a request."""
    metrics: tuple[str, ...]
    """Prometheus names that are worth reading from `/metrics` of this image; it may carry more."""
    device: str = "neuron"
    """`neuron` or `cpu`."""
    lab_only: bool = False
    """Whether it runs on one machine by the lab and never in a cluster."""
    runtime_library: str | None = None
    """Neuron runtime inside the image."""
    driver: str | None = None
    """Neuron driver of the same SDK release."""
    oldest_driver: str | None = None
    """The oldest driver of the host that the image's runtime works with, where one is documented."""

    def tokens_per_step(self, mode: str, *, num_speculative_tokens: int) -> int:
        """The most tokens that one step can yield.

        NxD Inference's fused step runs the draft k times but uses only k-1 proposals beside the target's own token
        (NeuronFusedSpecModel._token_gen_forward): k tokens at most, where upstream vLLM yields k+1.
        """
        return max(1, num_speculative_tokens + self.modes[mode].bonus_token)


_NEAREST_FUSED = "use mode `fused` with a plain draft model of the same family"

NXDI_VLLM_0_9_1 = Runtime(
    name="nxdi-vllm-0.9.1",
    image="public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.9.1-neuronx-py311-sdk2.26.1-ubuntu22.04",
    dialect="nxdi-v0",
    vllm="0.9.1",
    neuron_sdk="2.26.1",
    nxd_inference="0.6.10598",
    instances=frozenset({"trn2.48xlarge"}),
    architectures=frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM"}),
    modes=MappingProxyType(
        {
            "fused": Mode(
                works=True,
                architectures=frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM"}),
                min_speculative_tokens=2,
            ),
            "vanilla": Mode(
                works=False,
                reason="the vLLM fork of this image always fuses target and draft into one graph",
                nearest=_NEAREST_FUSED,
            ),
            "eagle": Mode(
                works=False,
                reason="EAGLE needs a draft trained as an EAGLE head that carries the target's LM head, and NxD Inference "
                "has EAGLE code for Llama but none for Qwen3",
                nearest=_NEAREST_FUSED,
            ),
            "eagle3": Mode(
                works=False,
                reason="EAGLE3 came with the vLLM V1 plugin, after this image",
                nearest=_NEAREST_FUSED,
            ),
            "dflash": Mode(
                works=False,
                reason="DFlash exists on the native vLLM Neuron plugin only, after this image",
                nearest=_NEAREST_FUSED,
            ),
            "medusa": Mode(
                works=False,
                reason="vLLM on Neuron has no path to Medusa heads",
                nearest=_NEAREST_FUSED,
            ),
        }
    ),
    greedy_speculation_only=True,
    metrics=(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:gpu_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_success_total",
    ),
)
"""The only line on which a plain draft model works through vLLM on Neuron, hence the reference."""

RUNTIMES = {runtime.name: runtime for runtime in (NXDI_VLLM_0_9_1,)}
MODES = ("fused", "vanilla", "eagle", "eagle3", "dflash", "medusa")
