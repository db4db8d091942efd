"""What an experiment means with the catalogue at hand: arms with models, runtime and instance type. Frozen.

What needs no catalogue is read as the file was validated (`model`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from experiment.catalogue.instances import INSTANCES, Instance
from experiment.catalogue.models import Model
from experiment.catalogue.node_images import NodeImage, serving_image
from experiment.catalogue.runtimes import NO_ASYNC_SCHEDULING, Mode, Runtime
from experiment.forms import FileSection
from experiment.measurement import Benchmark
from experiment.model import Cluster, Expect, Serve, Serving
from experiment.prompts import Prompt


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model at a revision."""

    model: Model
    revision: str | None
    """Commit on Hugging Face; `None` until the weights are fetched, when it is resolved and recorded."""
    shape_of: str | None = None
    """Where its shape was declared to be found: a model of the catalogue, or a `config.json`; `None` in the catalogue."""
    address: str | None = None
    """Folder in S3 that it is taken from; `None` for Hugging Face."""

    @property
    def declared(self) -> tuple[str, ...]:
        """What the file says of it, which nobody has verified before it is fetched."""
        shape = f"{self.model.name}: shape of {self.shape_of}, as declared; compared with its config.json when fetched"
        weights = f"{self.model.name}: weights of {self.address}"
        return (*([shape] if self.shape_of else []), *([weights] if self.address else []))


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """The treatment of an arm: who drafts, how many tokens, in which mode."""

    mode: str
    draft: Weights
    num_speculative_tokens: int
    draft_max_model_len: int


class ArmServing(Serving):
    """With the degree of tensor parallelism, which the instance type decides where the file does not, one batch, and what
    the load asks of it."""

    later = ("prompt_tokens", "sequence_tokens")

    tensor_parallel: int
    max_num_seqs: int
    """Sequences in this arm's batch."""
    prompt_tokens: int = 0
    """What the longest prompt of the load is expected to have; 0 where nothing is compiled for it."""
    sequence_tokens: int = 0
    """The same with its answer and a step; 0 where decoding is compiled for the whole context alone."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One vLLM service."""

    name: str
    target: Weights
    runtime: Runtime
    instance: Instance
    """What it stands on."""
    serving: ArmServing
    speculation: Speculation | None
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the Neuron configuration that this arm sets otherwise."""
    scheduler: str | None = None
    """`synchronous` where asynchronous scheduling is turned off for this arm."""

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens that are drafted in one decoding step; 0 where it decodes plainly."""
        return self.speculation.num_speculative_tokens if self.speculation else 0

    @property
    def mode(self) -> Mode | None:
        """What its runtime says to its way of speculating."""
        return self.runtime.modes[self.speculation.mode] if self.speculation else None

    @property
    def tokens_per_step(self) -> int:
        """The most tokens that one decoding step of this arm can yield."""
        return self.mode.tokens_per_step(self.num_speculative_tokens) if self.mode else 1

    @property
    def step_room(self) -> int:
        """Tokens of the context that must be left over when an answer ends; see `Mode.within_context`."""
        return self.num_speculative_tokens if self.mode and self.mode.within_context else 0

    @property
    def also_changes(self) -> tuple[str, ...]:
        """What else differs in this arm's engine: what speculation changes (`Mode.also_changes`), what the file sets."""
        return (
            *(self.mode.also_changes if self.mode else ()),
            *(f"{key} is {json.dumps(value)}" for key, value in self.engine.items()),
            *([NO_ASYNC_SCHEDULING] if self.scheduler else ()),
        )

    @property
    def batch_only(self) -> bool:
        """Whether no server can run it: then it is one batch Job around the runtime's own script, never loaded."""
        return self.mode is not None and self.mode.batch_only

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Target, then draft if there is one."""
        return (self.target, self.speculation.draft) if self.speculation else (self.target,)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment; of each size of the batch, the first arm is the baseline."""

    name: str
    description: str
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
    """How the file of prompts is written; empty where they stand in the experiment's own."""

    @property
    def instance(self) -> Instance:
        """The instance type that the arms stand on."""
        return INSTANCES[self.cluster.instance]

    @property
    def longest_answer(self) -> int:
        """Tokens of the longest answer that the benchmark asks for."""
        return max(self.benchmark.max_tokens, *(prompt.max_tokens or 0 for prompt in self.prompts), 0)

    @property
    def answer_limit(self) -> int | None:
        """Tokens at which the servers end every answer, whatever is asked for.

        Callers of a promoted arm ask for any length, and one whose steps must fit the context would end at its end.
        """
        return self.longest_answer if any(arm.step_room for arm in self.promoted_arms) else None

    @property
    def promoted_arms(self) -> tuple[Arm, ...]:
        """The arms that serve after the comparison; none before."""
        return tuple(arm for arm in self.arms if self.serve and arm.name in self.serve.arms)

    @property
    def node_image(self) -> NodeImage | None:
        """The image of the Trn2 nodes, whose driver serves the runtime of every arm; `None` on an instance type without devices."""
        if not self.instance.neuron:
            return None
        return serving_image(self.cluster.kubernetes, [arm.runtime for arm in self.arms])

    @property
    def served_arms(self) -> tuple[Arm, ...]:
        """The arms that answer requests and are compared."""
        return tuple(arm for arm in self.arms if not arm.batch_only)

    @property
    def batch_arms(self) -> tuple[Arm, ...]:
        """The arms that run as one batch Job each."""
        return tuple(arm for arm in self.arms if arm.batch_only)

    @property
    def device_arms(self) -> tuple[Arm, ...]:
        """The arms that stand on Neuron devices; buckets, compilations, claims and proofs are for them alone."""
        return tuple(arm for arm in self.arms if arm.serving.devices)

    @property
    def lab_only(self) -> bool:
        """Whether it runs on one machine by the lab; rendered like any other, it is applied to no cluster."""
        return any(arm.runtime.lab_only for arm in self.arms)

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Every model at every revision that some arm needs, each once."""
        return tuple(dict.fromkeys(weights for arm in self.arms for weights in arm.weights))

    @property
    def baseline(self) -> Arm:
        """The arm that every other of its batch is compared with; what all arms share can be read from it."""
        return self.arms[0]

    @property
    def by_batch(self) -> tuple[tuple[Arm, ...], ...]:
        """The arms of each size of the batch, the baseline first."""
        sizes = dict.fromkeys(arm.serving.max_num_seqs for arm in self.arms)
        return tuple(tuple(arm for arm in self.arms if arm.serving.max_num_seqs == size) for size in sizes)

    def baseline_of(self, arm: Arm) -> Arm:
        """What `arm` is compared with: the baseline of its own batch."""
        return next(one for one in self.arms if one.serving.max_num_seqs == arm.serving.max_num_seqs)

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the prompts, in the order of the file."""
        return tuple(dict.fromkeys(prompt.class_name for prompt in self.prompts))


_LATER = (
    *("engine", "scheduler", "shape_of", "address"),
    *("tokens", "at_s", "conversation", "think_s", "made_up"),
)
"""Fields that came later: where they declare nothing, the fingerprint stays what it was before. Of a section the model says it."""
_JUDGED = (
    *("one_layer", "needs_device_sampling", "synchronous", "degrees", "offered"),
    *("config_keys", "ends", "plain_only", "schedules_ahead"),
)
"""Facts of the catalogue that a file is judged by, and that change nothing of one that passes or are seen in its arms."""


def digest(experiment: Experiment) -> str:
    """SHA-256, hexadecimal, of all that the experiment resolves to, catalogue facts included: files that mean the same have
    the same one."""
    plain = _plain(experiment)
    del plain["prompt_format"], plain["expect"]  # neither changes what is deployed and asked
    plain["cluster"]["instance"] = _plain(experiment.instance)
    plain["benchmark"]["slo"] = list(experiment.benchmark.goodput.items())
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _plain(value: Any) -> Any:
    found: dict[str, Any] | None = None
    later: tuple[str, ...] = _LATER
    if isinstance(value, FileSection):
        found, later = dict(value), value.later
    elif is_dataclass(value):
        found = {one.name: getattr(value, one.name) for one in fields(value)}
    if found is not None:
        value = {name: inner for name, inner in found.items() if inner or name not in later}
        value = {name: inner for name, inner in value.items() if name not in _JUDGED}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
