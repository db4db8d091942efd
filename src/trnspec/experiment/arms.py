"""The resolved experiment: arms with models, runtime and instance type from the catalogue, as frozen dataclasses.

Sections that do not need the catalogue are used as they were validated (`model`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trnspec.core.screen import pasted
from trnspec.experiment.catalogue.instances import INSTANCES, ZONES, Instance
from trnspec.experiment.catalogue.models import Model
from trnspec.experiment.catalogue.runtimes import NO_ASYNC_SCHEDULING, Mode, NodeImage, Runtime, serving_image
from trnspec.experiment.model import AdvancedServing, Benchmark, Cluster, CommonServing, Expect, Serve
from trnspec.experiment.prompts import Prompt


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model at a revision."""

    model: Model
    revision: str | None
    """Commit on Hugging Face; `None` until the weights are fetched, when it is resolved and recorded."""
    shape_of: str | None = None
    """What the file takes the shape from: `like` or `config`; `None` if the catalogue lists the model itself."""
    address: str | None = None
    """Folder in S3 with the weights; `None` for Hugging Face."""

    @property
    def declared(self) -> tuple[str, ...]:
        """What the file says about the model. It is verified when the model is fetched."""
        shape = f"{self.model.name}: declared to have the shape of {self.shape_of}; a fetch compares it with its config.json"
        weights = f"{self.model.name}: weights of {self.address}"
        return (*([shape] if self.shape_of else []), *([weights] if self.address else []))


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """The treatment of an arm: who drafts, how many tokens, in which mode."""

    mode: str
    draft: Weights
    num_speculative_tokens: int


def logical_cores(serving: CommonServing, instance: Instance, devices: int | None = None) -> int:
    """Return the NeuronCores of an arm, or of so many devices, as the framework sees them: physical cores grouped by `logical_nc_config`."""
    return (devices or serving.devices) * instance.cores_per_device // serving.logical_nc_config


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Paths of an arm and its values in the file, such as `arms[1]` and `arms[1].runtime`."""

    at: str = ""
    runtime: str = ""
    """`runtime` if the arm has none of its own."""
    draft: str = ""
    """`arms[1].speculation.draft`, in a sweep with the draft's number."""
    window: str = ""


class ArmServing(CommonServing, AdvancedServing):
    """Serving settings of one arm: with its degree of tensor parallelism, one batch size, and the lengths of the load."""

    tensor_parallel: int
    """All logical cores of its devices."""
    copies_artifact: bool = False
    """Whether servers get a copy of their artifact on local disk. They all do if one is native: its compile cache locks and renames
    files, which Mountpoint for S3 cannot."""
    max_num_seqs: int
    """Sequences in this arm's batch."""
    prompt_tokens: int = 0
    """Expected tokens of the longest prompt of the load; 0 if nothing is compiled for it."""
    chat_template: str | None = None
    """The text of the file."""
    sequence_tokens: int = 0
    """The same with its answer and a step; 0 if decoding is compiled only for the whole context."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One vLLM service."""

    name: str
    target: Weights
    runtime: Runtime
    instance: Instance
    """Instance type of its node."""
    serving: ArmServing
    speculation: Speculation | None
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the Neuron configuration that this arm overrides."""
    scheduler: str | None = None
    """`synchronous` if asynchronous scheduling is turned off for this arm."""
    paths: Paths = field(default=Paths(), compare=False, repr=False)

    @property
    def served_name(self) -> str:
        """The name of the model in requests."""
        return self.serving.served_model_name or self.target.model.name

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens that are drafted in one decoding step; 0 for plain decoding."""
        return self.speculation.num_speculative_tokens if self.speculation else 0

    @property
    def mode(self) -> Mode | None:
        """Its mode of speculation, as its runtime supports it."""
        return self.runtime.modes[self.speculation.mode] if self.speculation else None

    @property
    def tokens_per_step(self) -> int:
        """Maximum tokens that one decoding step of this arm can yield."""
        return self.mode.tokens_per_step(self.num_speculative_tokens) if self.mode else 1

    @property
    def step_room(self) -> int:
        """Tokens of the context that must remain free when an answer ends; see `Mode.within_context`."""
        return self.num_speculative_tokens if self.mode and self.mode.within_context else 0

    @property
    def also_changes(self) -> tuple[str, ...]:
        """Other differences of this arm's engine: caused by speculation (`Mode.also_changes`) or set in the file."""
        return (
            *(self.mode.also_changes if self.mode else ()),
            *(f"{key} is {json.dumps(value)}" for key, value in self.engine.items()),
            *([NO_ASYNC_SCHEDULING] if self.scheduler else ()),
        )

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Target, then draft if there is one."""
        return (self.target, self.speculation.draft) if self.speculation else (self.target,)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment. The first arm of each batch size is the baseline."""

    name: str
    arms: tuple[Arm, ...]
    prompts: tuple[Prompt, ...]
    benchmark: Benchmark
    cluster: Cluster
    token_secret: str | None = None
    """Secret whose key `token` opens gated models."""
    serve: Serve | None = None
    expect: Expect | None = None
    """Published figures that a run should meet."""
    prompt_format: str = ""
    """Format of the prompt file; empty if the prompts are in the experiment file."""
    path: Path | None = field(default=None, compare=False)
    """The file that it was read from. It is not part of what the file says, so digests ignore it."""

    @property
    def file(self) -> str:
        """The file as a word of a command that can be pasted, e.g. `./trnspec status {experiment.file}`."""
        return "FILE" if self.path is None else pasted(self.path)

    @property
    def instance(self) -> Instance:
        """The instance type of the arms' nodes."""
        return INSTANCES[self.cluster.instance]

    @property
    def longest_answer(self) -> int:
        """Tokens of the longest answer that the benchmark asks for."""
        return max(self.benchmark.max_tokens, *(prompt.max_tokens or 0 for prompt in self.prompts), 0)

    @property
    def answer_limit(self) -> int | None:
        """Maximum tokens of every answer, enforced by the servers.

        Callers of a promoted arm can ask for any length. A server whose steps must fit the context would fail at its end.
        """
        return self.longest_answer if self.promoted and self.promoted.step_room else None

    @property
    def promoted(self) -> Arm | None:
        """The arm that serves after the comparison; none before."""
        return next((arm for arm in self.arms if self.serve and arm.name == self.serve.arm), None)

    @property
    def runtimes(self) -> tuple[Runtime, ...]:
        """The runtimes of the arms, without duplicates."""
        return tuple({arm.runtime.name: arm.runtime for arm in self.arms}.values())

    @property
    def node_image(self) -> NodeImage | None:
        """The image of the Trn2 nodes; its driver supports the runtimes of all arms."""
        return serving_image(self.cluster.kubernetes, self.runtimes)

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones of the region; of one that is not in the catalogue, those that the file names."""
        cluster = self.cluster
        return ZONES.get(cluster.region) or cluster.availability_zones

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Every model and revision that an arm needs, without duplicates."""
        return tuple(dict.fromkeys(weights for arm in self.arms for weights in arm.weights))

    @property
    def baseline(self) -> Arm:
        """The first arm. Other arms of its batch are compared with it, and it has the settings that all arms share."""
        return self.arms[0]

    @property
    def by_batch(self) -> tuple[tuple[Arm, ...], ...]:
        """The arms of each batch size, the baseline first."""
        sizes = dict.fromkeys(arm.serving.max_num_seqs for arm in self.arms)
        return tuple(tuple(arm for arm in self.arms if arm.serving.max_num_seqs == size) for size in sizes)

    @cached_property
    def rounds(self) -> tuple[tuple[Arm, ...], ...]:
        """The groups of arms that run at the same time, in order. Each group includes its baseline, so that every comparison is made
        within the same hour.

        Arms of all batch sizes run together if they fit. Otherwise each size has its own rounds, with its baseline in each. If only
        one arm fits at a time, each group has one arm, and the comparison is between hours.
        """
        at_once = self.arms_per_node * self.cluster.max_nodes
        groups: list[tuple[Arm, ...]] = []
        for arms in self.by_batch:
            if groups and len(groups[-1]) + len(arms) <= at_once:
                groups[-1] += arms
                continue
            baseline, others = (arms[:1], arms[1:]) if at_once > 1 else ((), arms)
            size = at_once - len(baseline)
            cut = [others[start : start + size] for start in range(0, len(others), size)]
            groups += ((*baseline, *group) for group in cut or [()])
        return tuple(groups)

    @property
    def arms_per_node(self) -> int:
        """How many arms fit on one node."""
        return self.instance.devices // self.baseline.serving.devices

    @property
    def nodes(self) -> int:
        """The number of Trn2 nodes that the largest round needs."""
        return max(-(-len(arms) // self.arms_per_node) for arms in self.rounds)

    def baseline_of(self, arm: Arm) -> Arm:
        """Return the baseline that `arm` is compared with: the one of its batch size."""
        return next(one for one in self.arms if one.serving.max_num_seqs == arm.serving.max_num_seqs)

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the prompts, in the order of the file."""
        return tuple(dict.fromkeys(prompt.class_name for prompt in self.prompts))


def digest(experiment: Experiment) -> str:
    """Return the SHA-256, in hexadecimal, of everything that the experiment resolves to, with facts of the catalogue. Files with
    the same meaning have the same digest."""
    plain = _plain(experiment)
    del plain["prompt_format"], plain["expect"]  # neither changes what is deployed and asked
    plain["cluster"]["instance"] = _plain(experiment.instance)
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        value = dict(value)
    elif is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
