"""What a runtime is: an image, its dialect, and what it says to each way of speculating."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiment.catalogue.drivers import Drivers

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
