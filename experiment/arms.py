"""The experiment as everything downstream reads it: resolved, frozen, nothing left to look up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.catalogue.node_images import serving_image

if TYPE_CHECKING:
    from experiment.catalogue.instances import Instance
    from experiment.catalogue.models import Model
    from experiment.catalogue.node_images import NodeImage
    from experiment.catalogue.runtimes import Runtime


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model at a revision."""

    model: Model
    revision: str | None
    """Commit on Hugging Face; `None` until the weights are fetched, when it is resolved and recorded."""


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """The treatment of an arm: who drafts, how many tokens, in which mode."""

    mode: str
    draft: Weights
    num_speculative_tokens: int
    draft_max_model_len: int


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What both arms of a fair comparison share."""

    devices: int
    """Neuron devices (chips) of one arm."""
    logical_nc_config: int
    """Physical NeuronCores in a logical one."""
    tensor_parallel: int
    """Logical NeuronCores over which a model is sharded."""
    max_num_seqs: int
    max_model_len: int
    """Prompt and output together, in tokens."""
    allocation: str
    """`dra` (resource claims) or `device-plugin` (extended resources and the scheduler extension)."""
    artifact_source: str = "mount"
    """`mount` (read from the bucket's mount) or `scratch` (copied to local NVMe first)."""
    pod_security: str = "baseline"
    """`restricted` or `baseline` (Pod Security Standards), or `image-defaults`: baseline without dropping capabilities."""
    api_key_secret: str | None = None
    """Secret whose key `api-key` every request must carry; `None`: open inside the cluster."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One vLLM service."""

    name: str
    target: Weights
    runtime: Runtime
    instance: Instance
    """What it stands on."""
    serving: Serving
    speculation: Speculation | None

    @property
    def tokens_per_step(self) -> int:
        """The most tokens that one decoding step of this arm can yield."""
        if self.speculation is None:
            return 1
        return self.runtime.tokens_per_step(
            self.speculation.mode, num_speculative_tokens=self.speculation.num_speculative_tokens
        )

    @property
    def step_room(self) -> int:
        """Tokens of the context that must be left over when an answer ends; see `Mode.within_context`."""
        if self.speculation is None or not self.runtime.modes[self.speculation.mode].within_context:
            return 0
        return self.speculation.num_speculative_tokens

    @property
    def also_changes(self) -> tuple[str, ...]:
        """What else speculation changes in this arm's engine; see `Mode.also_changes`."""
        return self.runtime.modes[self.speculation.mode].also_changes if self.speculation else ()

    @property
    def batch_only(self) -> bool:
        """Whether no server can run it: then it is one batch Job around the runtime's own script, never loaded."""
        return self.speculation is not None and self.runtime.modes[self.speculation.mode].batch_only

    @property
    def weights(self) -> tuple[Weights, ...]:
        """Target, then draft if there is one."""
        return (self.target, self.speculation.draft) if self.speculation else (self.target,)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of one class; `messages` for chat, `text` for completions, never both."""

    id: str
    class_name: str
    text: str | None = None
    messages: tuple[tuple[str, str], ...] = ()
    """Role and content, in order."""
    max_tokens: int | None = None

    @property
    def utf8_bytes(self) -> int:
        """Upper bound of its tokens: a byte-level vocabulary never needs more than one token a byte."""
        contents = [self.text] if self.text is not None else [content for _, content in self.messages]
        return sum(len(content.encode()) for content in contents)


@dataclass(frozen=True, kw_only=True)
class LmEval:
    """lm-eval's gsm8k against every arm."""

    limit: int
    """Questions asked."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """How the arms are loaded; the plan of the benchmark pod is made from it."""

    endpoint: str
    thinking: bool
    temperature: float
    max_tokens: int
    concurrency: tuple[int, ...]
    requests: int
    """Measured requests in a cell (arm x class x concurrency)."""
    warmup: int
    seed: int
    slo: tuple[tuple[str, float], ...]
    """Service-level objectives by metric (`ttft_s`, `tpot_s`, `e2e_s`), in seconds; empty without any."""
    lm_eval: LmEval | None = None


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How Trn2 nodes are bought."""

    kind: str = "on-demand"
    """`on-demand`, `capacity-block` or `reservation`."""
    reservation_id: str | None = None
    availability_zone: str | None = None
    """The reservation's; `None` on demand."""
    ends_at: str | None = None
    """End of a capacity block, ISO 8601 in UTC."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """Ways out of the private subnets."""

    nat_gateways: int = 1
    interface_endpoints: bool = False


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Where it runs."""

    kubernetes: str
    region: str
    availability_zones: tuple[str, ...]
    """Where nodes may stand. The network has subnets in every zone of the region."""
    admin_cidrs: tuple[str, ...]
    instance: Instance
    nodes: int
    """Trn2 nodes to start at deploy time; 0 bills nothing."""
    max_nodes: int = 1
    """Trn2 nodes at most; arms beyond what fits wait for a later batch."""
    capacity: Capacity = Capacity()
    network: Network = Network()
    off_at_utc: str
    """Every day at this hour the Trn2 group is set to 0."""

    @property
    def trn2_zone(self) -> str:
        """Where the Trn2 nodes stand: in the reservation's zone where there is one, else in the first."""
        return self.capacity.availability_zone or self.availability_zones[0]


@dataclass(frozen=True, kw_only=True)
class Serve:
    """The arm that stays up after the comparison."""

    arm: str
    replicas: int
    """At least so many."""
    max_replicas: int
    """At most so many; as many as `replicas` where nothing scales."""
    waiting_per_replica: int = 4
    """Waiting requests of a replica on average, above which another is added."""
    certificate_arn: str | None = None
    """Of the internal load balancer's TLS; `None`: the service is reached inside the cluster only."""
    client_cidrs: tuple[str, ...] = ()
    """Networks that may call the load balancer."""

    @property
    def scales(self) -> bool:
        """Whether replicas come and go with the waiting requests."""
        return self.max_replicas > self.replicas


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment; `arms[0]` is the baseline."""

    name: str
    description: str
    arms: tuple[Arm, ...]
    prompts: tuple[Prompt, ...]
    benchmark: BenchmarkSettings
    cluster: ClusterSettings
    token_secret: str | None = None
    """Secret whose key `token` opens gated models."""
    serve: Serve | None = None

    @property
    def longest_answer(self) -> int:
        """Tokens of the longest answer that the benchmark asks for."""
        return max(self.benchmark.max_tokens, *(prompt.max_tokens or 0 for prompt in self.prompts), 0)

    @property
    def answer_limit(self) -> int | None:
        """Tokens at which the servers end every answer, whatever is asked for.

        Callers of a promoted arm ask for any length, and one whose steps must fit the context would end at its end.
        """
        promoted = next((arm for arm in self.arms if self.serve and arm.name == self.serve.arm), None)
        return self.longest_answer if promoted is not None and promoted.step_room else None

    @property
    def node_image(self) -> NodeImage | None:
        """Of the Trn2 nodes: its driver serves the runtime of every arm. `None` on an instance type without devices."""
        if not self.cluster.instance.neuron:
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
        """The arm that every other is compared with."""
        return self.arms[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes of the prompts, in the order of the file."""
        return tuple(dict.fromkeys(prompt.class_name for prompt in self.prompts))
