"""Runtimes on NxD Inference: the vLLM 0.9.1 fork and the plugin for vLLM 0.16.

Sources: image list of https://github.com/aws-neuron/deep-learning-containers; release notes of the Neuron SDK; the vLLM
user guides for NxD Inference (v1: a draft model is "only supported on the legacy Neuron fork of vLLM v0"; EAGLE v1 and
v3 on the plugin); https://github.com/aws-neuron/neuronx-distributed-inference at the tags that the images carry: EAGLE
and Medusa code exists for Llama, none for Qwen3.
"""

from __future__ import annotations

from experiment.catalogue.abilities import Mode, Runtime, Support, modes
from experiment.catalogue.drivers import LIBRARIES_BEFORE_2_32, LIBRARIES_FROM_2_33

_REGISTRY = "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx"
_DENSE = frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM"})
_LLAMA = frozenset({"LlamaForCausalLM"})
_TRN2 = frozenset({"trn2.48xlarge", "trn2.3xlarge"})
_NEAREST_FUSED = "use mode `fused` with a plain draft model of the same family"
_NEAREST_EAGLE = (
    "use mode `eagle` or `eagle3` with a head for a Llama target, or `fused` on runtime nxdi-vllm-0.9.1"
)
_ANNOUNCEMENTS = (
    "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/announcements/neuron2.x"
)
_ENDS = Support(
    status="NxD Inference ends on Trn2 with SDK 2.34",
    date="2026-10-16",
    source=f"{_ANNOUNCEMENTS}/announce-eos-nxdi-nxd-core-inference.html",
)
_NO_HEADS = "NxD Inference has EAGLE and Medusa code for Llama but none for Qwen3"
_V1_METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_success_total",
)

NXDI_VLLM_0_9_1 = Runtime(
    name="nxdi-vllm-0.9.1",
    image=f"{_REGISTRY}:0.9.1-neuronx-py311-sdk2.26.1-ubuntu22.04",
    dialect="nxdi-v0",
    vllm="0.9.1",
    neuron_sdk="2.26.1",
    nxd_inference="0.6.10598",
    runtime_library="2.28.23.0",
    support=(
        Support(
            status="vLLM V0 is not supported from SDK 2.28 on",
            date="2026-02-26",
            source=f"{_ANNOUNCEMENTS}/announce-no-support-vllm-v0.html",
        ),
        _ENDS,
    ),
    drivers=LIBRARIES_BEFORE_2_32,
    instances=_TRN2,
    architectures=_DENSE,
    modes=modes(
        Mode(works=False, reason="it came after this image", nearest=_NEAREST_FUSED),
        fused=Mode(works=True, architectures=_DENSE, min_speculative_tokens=2, within_context=True),
        draft=Mode(
            works=False,
            reason="the vLLM fork of this image always fuses target and draft into one graph",
            nearest=_NEAREST_FUSED,
        ),
        vanilla=Mode(
            works=True,
            architectures=_LLAMA,
            min_speculative_tokens=2,
            within_context=True,
            batch_only=True,
            reason="the vLLM fork always fuses, and NxD Inference's batch script is documented unfused for Llama",
            nearest=_NEAREST_FUSED,
        ),
        eagle=Mode(
            works=True,
            architectures=_LLAMA,
            min_speculative_tokens=2,
            within_context=True,
            head=True,
            reason=_NO_HEADS,
            nearest=_NEAREST_FUSED,
        ),
        eagle3=Mode(
            works=False,
            reason="EAGLE3 came with the vLLM V1 plugin, after this image",
            nearest=_NEAREST_FUSED,
        ),
        dflash=Mode(
            works=False,
            reason="DFlash exists on the native vLLM Neuron plugin only, after this image",
            nearest=_NEAREST_FUSED,
        ),
        medusa=Mode(
            works=True,
            architectures=_LLAMA,
            bonus_token=True,
            head=True,
            batch_only=True,
            reason=f"vLLM on Neuron has no path to Medusa heads, and {_NO_HEADS}",
            nearest=_NEAREST_FUSED,
        ),
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

NXDI_VLLM_0_16 = Runtime(
    name="nxdi-vllm-0.16",
    image=f"{_REGISTRY}:0.16.0-neuronx-py312-sdk2.31.1-ubuntu24.04",
    dialect="nxdi-v1",
    vllm="0.16.0",
    neuron_sdk="2.31.1",
    nxd_inference="0.10",
    runtime_library="2.33.10.0",
    support=(_ENDS,),
    drivers=LIBRARIES_FROM_2_33,
    instances=_TRN2,
    architectures=_DENSE,
    modes=modes(
        Mode(
            works=False,
            reason='a draft model is "only supported on the legacy Neuron fork of vLLM v0"',
            nearest=_NEAREST_EAGLE,
        ),
        eagle=Mode(
            works=True,
            architectures=_LLAMA,
            min_speculative_tokens=2,
            within_context=True,
            head=True,
            vllm_method="eagle",
            reason=_NO_HEADS,
            nearest=_NEAREST_EAGLE,
        ),
        eagle3=Mode(
            works=True,
            architectures=_LLAMA,
            min_speculative_tokens=2,
            within_context=True,
            head=True,
            vllm_method="eagle3",
            reason=_NO_HEADS,
            nearest=_NEAREST_EAGLE,
        ),
        dflash=Mode(
            works=False,
            reason="DFlash exists on the native vLLM Neuron plugin only",
            nearest=_NEAREST_EAGLE,
        ),
        medusa=Mode(works=False, reason="vLLM on Neuron has no path to Medusa heads", nearest=_NEAREST_EAGLE),
    ),
    greedy_speculation_only=True,
    metrics=_V1_METRICS,
)
"""The last image with NxD Inference. Acceptance happens inside the compiled graph, so no metric tells it."""
