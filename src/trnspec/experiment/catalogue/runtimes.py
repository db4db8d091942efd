"""The pinned images: runtimes of `runtimes.yaml`, and the node images whose driver serves them.

Releases and drivers of node images: changelog of awslabs/amazon-eks-ami, whose releases publish the standard and the Neuron variant
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trnspec.experiment.catalogue.models import table_of


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
        """Return whether the library starts with this driver."""
        found = version(driver)
        if found < version(self.oldest):
            return False
        return self.newest is None or found[: len(version(self.newest))] <= version(self.newest)

    def __str__(self) -> str:
        return f"{self.oldest} or later" if self.newest is None else f"{self.oldest} to {self.newest}"


def version(text: str) -> tuple[int, ...]:
    """Return `2.29.0.0` or `1.35.6-20260714` as numbers that can be compared."""
    return tuple(int(part) for part in text.partition("-")[0].split("."))


MODES = ("fused", "vanilla", "eagle", "eagle3", "dflash", "medusa")
"""`fused`: a draft model in one graph with its target; `vanilla`: unfused; for the others see `HEAD_MODES`."""
HEAD_MODES = frozenset(MODES[2:])
"""Modes whose draft is a head that was trained for the target, not a model of its own."""


NO_ASYNC_SCHEDULING = "asynchronous scheduling is off"
"""Text about an arm with a synchronous scheduler; the reason follows after a colon."""


@dataclass(frozen=True, kw_only=True)
class Mode:
    """The support of a runtime for one mode of speculation."""

    architectures: frozenset[str] = frozenset()
    """Model classes that the runtime supports in this mode; empty if it does not support the mode."""
    reason: str = ""
    """Why it does not work, or not for other classes."""
    min_speculative_tokens: int = 1
    bonus_token: bool = False
    """Whether a step yields all k proposals and one token of the target (upstream vLLM), so k+1 tokens instead of k."""
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
    """Supported degrees of tensor parallelism; empty if all are supported."""
    also_changes: tuple[str, ...] = ()
    """Other differences of an engine that speculates. They cannot be avoided, so they are declared with the treatment."""
    vllm_method: str | None = None
    """`method` of `--speculative-config`, where the dialect reads one."""

    def tokens_per_step(self, k: int) -> int:
        """Return the maximum tokens that one step can yield.

        NxD Inference's fused step runs the draft k times but uses only k-1 proposals and the target's own token
        (NeuronFusedSpecModel._token_gen_forward), its EAGLE step k-1 times: k tokens at most. Upstream vLLM, and the
        native plugin with its rejection sampler, yield k+1.
        """
        return max(1, k + self.bonus_token)


@dataclass(frozen=True, kw_only=True)
class Support:
    """An announcement about the support of an image."""

    status: str
    date: str
    """Date of the announcement, as year-month-day."""
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
    """Which options and variables `cdk8s_charts/vllm_command.py` writes: `nxdi-v0` (vLLM 0.9.1 fork), `nxdi-v1` (plugin with NxD
    Inference), `native` (plugin without)."""
    vllm: str
    architectures: frozenset[str]
    modes: Mapping[str, Mode]
    nearest: str
    """The remedy for a mode that it does not support."""
    metrics: tuple[str, ...]
    """Names that are worth reading from `/metrics` of this image; it may carry more."""
    neuron_sdk: str
    support: tuple[Support, ...]
    """Announcements that still hold, the oldest first."""
    drivers: Drivers
    """What the host must have for it."""
    config_keys: str
    """The table in `neuron_config/` of the keys that the image's Neuron configuration knows."""
    tool_call_parsers: frozenset[str]
    reasoning_parsers: frozenset[str]
    nxd_inference: str = ""
    """Empty where the image carries none."""
    plain_only: frozenset[str] = frozenset()
    """Further model classes that it serves, with no mode seen for them."""
    greedy_speculation_only: bool = True
    """Whether a speculating server ignores the temperature of a request."""
    schedules_ahead: bool = False
    """Whether a plain arm schedules the next step while one runs, and vLLM's `--no-async-scheduling` turns that off."""
    runtime_library: str | None = None
    """Neuron runtime inside the image."""
    tested_driver: str | None = None
    """The line of drivers that AWS names as tested with it; `None` where that was not read."""
    longest_context: int | None = None
    """The largest `max_model_len` that it takes as it is started here; `None` where no limit is known."""

    @property
    def end_of_support(self) -> str:
        """The first announcement that ends the support of the image; empty while it is supported."""
        return next((one.status for one in self.support if one.ends), "")


_SETS = ("architectures", "plain_only", "degrees", "tool_call_parsers", "reasoning_parsers")


def _frozen(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row with lists as sets where their order says nothing, else as tuples."""
    return {
        key: frozenset(value) if key in _SETS else tuple(value) if isinstance(value, list) else value
        for key, value in row.items()
    }


def _runtime(name: str, row: dict[str, Any]) -> Runtime:
    modes = row["modes"]
    known = {mode: Mode(**_frozen(modes.get(mode, modes["others"]))) for mode in MODES}
    read: dict[str, Any] = {
        "name": name,
        "modes": MappingProxyType(known),
        "drivers": Drivers(**row["drivers"]),
        "metrics": tuple(f"vllm:{metric}" for metric in row["metrics"]),
        "support": tuple(Support(**said) for said in row["support"]),
    }
    return Runtime(**{**_frozen(row), **read})


RUNTIMES = {name: _runtime(name, row) for name, row in table_of(__file__)["runtimes"].items()}

OLDEST_FOR_CLAIMS = (1, 34, 2)
"""1.34.0 and 1.34.1 have a regression in resource claims (kubernetes#133920)."""


@dataclass(frozen=True, kw_only=True)
class NodeImage:
    """One release of the EKS images for Amazon Linux 2023."""

    kubernetes: str
    release: str
    """What a managed node group takes as its release version: kubelet and date."""
    neuron_driver: str
    """aws-neuronx-dkms in the Neuron variant."""

    @property
    def date(self) -> str:
        """As the release is dated: year, month, day without separators."""
        return self.release.rpartition("-")[2]

    @property
    def source(self) -> str:
        """Where release and driver were read."""
        return f"https://github.com/awslabs/amazon-eks-ami/releases/tag/v{self.date}"

    @property
    def driver_line(self) -> str:
        """Major and minor version of the driver, which is what runtime libraries refuse by."""
        return ".".join(self.neuron_driver.split(".")[:2])


NODE_IMAGES = (
    NodeImage(kubernetes="1.35", release="1.35.6-20260714", neuron_driver="2.29.0.0"),
    NodeImage(kubernetes="1.35", release="1.35.6-20260625", neuron_driver="2.28.0.0"),
    NodeImage(kubernetes="1.36", release="1.36.2-20260714", neuron_driver="2.29.0.0"),
    NodeImage(kubernetes="1.36", release="1.36.2-20260625", neuron_driver="2.28.0.0"),
)
"""The newest first: for each driver, the last release whose contents could be read.

Do not pin 20260930 or 20261003: on Kubernetes 1.31 to 1.35 their kernel 6.12.110 can panic while it reclaims memory, which 20261012 fixes
(https://github.com/awslabs/amazon-eks-ami/releases/tag/v20261012, issue 2845; read 2026-11-23).
"""


def images_of(kubernetes: str) -> tuple[NodeImage, ...]:
    """Return the images for a Kubernetes version, the newest first; none if no image is pinned."""
    return tuple(image for image in NODE_IMAGES if image.kubernetes == kubernetes)


def serving_image(kubernetes: str, runtimes: Iterable[Runtime]) -> NodeImage | None:
    """Return the newest image with a driver that every runtime takes; `None` if no image has one."""
    bounds = [runtime.drivers for runtime in runtimes]
    able = (image for image in images_of(kubernetes) if all(own.serve(image.neuron_driver) for own in bounds))
    return next(able, None)


def versions_serving(runtimes: Iterable[Runtime]) -> list[str]:
    """Return the Kubernetes versions with an image that serves every runtime."""
    needed = list(runtimes)
    return sorted({image.kubernetes for image in NODE_IMAGES if serving_image(image.kubernetes, needed)})
