"""The experiment file as its author writes it and as everything downstream reads it: each key and default once.

Structure only: `resolving` looks up the names, and `checks` has the rules of what the values mean together.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from trnspec.benchmark.limits import MIN_S
from trnspec.experiment import forms
from trnspec.experiment.forms import FileSection, Listed, OneOrSeveral, ParserName, Positive, SecretName
from trnspec.experiment.measurement import Benchmark


def _finite(value: JsonValue) -> JsonValue:
    """JSON has no infinity and nothing that is not a number, though YAML has."""
    json.dumps(value, allow_nan=False)
    return value


class ModelReference(FileSection):
    """A model and, where it is known, the commit to take it from."""

    model: str
    """Its repository on Hugging Face, as owner/name."""
    revision: Annotated[str, Field(pattern=forms.COMMIT)] | None = None
    """A commit; without one the newest is taken when the weights are fetched, and recorded."""
    like: str | None = None
    """The model of the catalogue that has the same shape, for a model that the catalogue does not list, as a fine-tune."""
    config: str | None = None
    """The same by its `config.json`; the path is relative to the experiment file's folder. Of a head it is compared with the target."""
    weights: Annotated[str, Field(pattern=forms.FOLDER)] | None = None
    """Folder in S3 to take it from, instead of Hugging Face; changed weights need another one."""


class DraftReference(ModelReference):
    """A draft: a model of the catalogue, or a head (EAGLE, EAGLE3, DFlash) by any name.

    Heads are many and none has a size of its own worth a catalogue: it follows from the target they were trained for.
    """

    head_for: str | None = None
    """The catalogue's target that the head was trained for."""
    head_layers: Annotated[int, Field(ge=1, le=16)] = 1
    """Decoder layers inside it."""


class SpeculationSection(FileSection):
    """How an arm speculates; the first arm, the baseline, does not. A list is a sweep: each combination is an arm."""

    mode: str
    """What drafts, and how; which runtime can do it for which model is in docs/models.md."""
    draft: OneOrSeveral[DraftReference]
    num_speculative_tokens: OneOrSeveral[int]
    """Tokens that are drafted in one step (the window, k)."""
    draft_max_model_len: Positive | None = None
    """The draft's own context, in tokens; the target's without it."""


class ArmSection(FileSection):
    """One vLLM service, or one for each combination of its lists. Without `speculation` it decodes plainly."""

    name: str
    """Lower-case letters, digits and hyphens; a sweep adds its values, a further size of the batch `-b8`."""
    runtime: str | None = None
    """A runtime other than the experiment's; it is then part of what is compared."""
    speculation: SpeculationSection | None = None
    engine: dict[str, Annotated[JsonValue, AfterValidator(_finite)]] = Field(default={})
    """Keys of the runtime's Neuron configuration that this arm alone sets; they are part of what is compared."""
    scheduler: Literal["synchronous"] | None = None
    """`synchronous` turns asynchronous scheduling off, as DFlash does: such a plain arm next to the baseline shows how much of a drafted
    step the scheduler costs."""


class WeightsSection(FileSection):
    """How weights are fetched."""

    token_secret: SecretName | None = None
    """Kubernetes Secret in the experiment's namespace whose key `token` opens gated models."""


class Serving(FileSection):
    """What all arms share."""

    devices: Annotated[int, Field(ge=1, le=16)] = 8
    """Neuron devices (Trainium2 chips) of one arm."""
    logical_nc_config: Literal[1, 2] = 2
    """Physical NeuronCores in a logical one."""
    tensor_parallel: Positive | None = None
    """Logical NeuronCores over which a model is sharded; all of the arm's devices without it."""
    max_num_seqs: OneOrSeveral[Positive] = 4
    """Requests that are decoded together in one batch. Each size of a list has all arms, the baseline too: NAME of the first
    size, NAME-b8 of a further size 8."""
    max_model_len: Positive = 1024
    """Prompt and output together, in tokens."""
    allocation: Literal["dra", "device-plugin"] = "dra"
    """Resource claims, or extended resources and the scheduler extension."""
    artifact_source: Literal["mount", "scratch"] = "mount"
    """Read artifacts from the bucket's mount, or copy them to local NVMe first."""
    pod_security: Literal["ipc-lock", "image-defaults", "baseline", "restricted"] = "baseline"
    """What containers that hold devices give up: privilege only, with (`ipc-lock`) or without the right to lock memory, all capabilities
    as well, or the image's user too."""
    api_key_secret: SecretName | None = None
    """Kubernetes Secret whose key `api-key` every request must carry; without one, any pod of the cluster may ask."""
    served_model_name: Annotated[str, Field(pattern=forms.SERVED)] | None = None
    """The name of the model in requests; the target's without it."""
    chat_template: str | None = None
    """Jinja file to use instead of the model's own chat template; the path is relative to this file. `check` counts 32 tokens for it."""
    tool_call_parser: ParserName | None = None
    """vLLM's parser of tool calls, as `hermes` for Qwen3. It also turns on automatic tool choice."""
    reasoning_parser: ParserName | None = None
    """vLLM's parser that separates reasoning from the answer, as `qwen3`."""


class PromptsSection(FileSection):
    """What is asked: either classes with their prompts, or a file. Each class needs 8 distinct prompts."""

    classes: dict[str, list[str]] | None = None
    """Prompts by class: texts that resemble each other in how well they can be drafted."""
    file: str | None = None
    """JSON lines (`prompt`, `messages` or `text`, and `class`), CSV, MT-Bench, Spec-Bench, SPEED-Bench, ShareGPT, OpenAI batch or
    fine-tuning, gzip or not; the path is relative to this file."""
    ignore: Annotated[tuple[str, ...], Listed()] = ()
    """Keys of its entries that are not sent, as `temperature`, which would change decoding for single prompts."""


class Capacity(FileSection):
    """Purchase option of the Trn2 nodes."""

    kind: Literal["on-demand", "spot", "capacity-block", "reservation"] = "on-demand"
    """A block and a reservation are bought before, and need their id and zone. A spot node can be taken away at any time."""
    reservation_id: Annotated[str, Field(pattern=forms.RESERVATION)] | None = None
    """The id that EC2 gave it."""
    availability_zone: str | None = None
    """The zone of the reservation; without one, leave it out."""
    ends_at: str | None = None
    """End of a capacity block, ISO 8601 in UTC."""
    max_usd_per_hour: Annotated[float, Field(gt=0, le=forms.MAX_NUMBER)] | None = None
    """Spot only: the most that a Trn2 node may cost an hour. A run asks for the price while it waits and works, and ends above it.
    EC2 does not know this limit: nodes that `scale` starts, or that stay after a run, cost what the market asks."""


class Network(FileSection):
    """The network that a deployment makes and its ways out, or an existing VPC, in which nothing of the network is made or
    changed."""

    nat_gateways: Annotated[int, Field(ge=1, le=3)] = 1
    """One, or one for each zone."""
    interface_endpoints: bool = False
    """Whether calls to AWS stay in the network, through endpoints that bill by the hour."""
    vpc: Annotated[str, Field(pattern=forms.VPC)] | None = None
    """Id of an existing VPC to deploy into; its owner decides about ways out and endpoints."""
    private_subnets: dict[str, Annotated[str, Field(pattern=forms.SUBNET)]] = Field(default={})
    """Its subnets to use, one for each zone: the zone's name, then the subnet's id. The control plane is in the first two zones, and
    stays there; add further ones below."""


class Cluster(FileSection):
    """Where it runs."""

    kubernetes: str = "1.35"
    """Version of EKS, in quotes."""
    region: str = "us-east-2"
    """AWS region; `./trnspec preflight` asks whether EC2 offers the instance type there."""
    availability_zones: Annotated[tuple[str, ...], Listed(2)] = ("us-east-2a", "us-east-2b")
    """Where nodes may stand. The network has subnets in every zone of the region."""
    admin_cidrs: Annotated[tuple[str, ...], Listed()] = ()
    """Public networks that may reach the cluster's endpoint; without any it is private."""
    instance: str = "trn2.48xlarge"
    """Instance type of the Trn2 nodes."""
    nodes: Annotated[int, Field(ge=0, le=16)] = 0
    """Trn2 nodes to start at deploy time; 0 bills nothing."""
    max_nodes: Annotated[int, Field(ge=1, le=16)] = 1
    """Trn2 nodes at most; arms beyond what fits wait for a later batch."""
    capacity: Capacity = Capacity.model_construct()
    network: Network = Network.model_construct()
    off_at_utc: Annotated[str, Field(pattern=forms.HOUR)] = "22:00"
    """Every day at this time (UTC) the Trn2 nodes are turned off; with a capacity block its end does."""

    @property
    def off_when(self) -> str:
        """When the Trn2 nodes are turned off, whatever happens, in words."""
        if self.capacity.ends_at:
            return f"an hour before the capacity block ends ({self.capacity.ends_at})"
        return f"every day at {self.off_at_utc} UTC"

    @property
    def trn2_zone(self) -> str:
        """Where the Trn2 nodes stand: in the reservation's zone where there is one, else in the first."""
        return self.capacity.availability_zone or self.availability_zones[0]


class Serve(FileSection):
    """The arm that was chosen to stay up after the comparison; the others stand at 0."""

    arm: str
    """Its name."""
    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """How many there are of it."""


class ExpectedFigure(FileSection):
    """A published figure that a run should meet."""

    arm: str
    """Name of the arm; of a sweep the name that it makes."""
    metric: Literal["tpot_s", "speed_up", "tokens_per_step"] = "tpot_s"
    """Seconds per output token, how many times as fast as the baseline that is, or tokens of a decode step."""
    classes: Annotated[tuple[str, ...], Listed()] = ()
    """Classes of prompts that it holds for; all of them where none is named."""
    concurrency: Positive
    """Requests at once."""
    row: str | None = None
    """Row of the published results (`./trnspec forecast --all`) that has the value and its source."""
    value: Annotated[float, Field(ge=MIN_S, le=1000)] | None = None
    """The value itself, where no row has it."""
    source: str = ""
    """Where `value` was published."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the value by which a run may differ and still meet it."""


class Expect(FileSection):
    """What a run should meet, and why it may not."""

    figures: Annotated[tuple[ExpectedFigure, ...], Listed(1)]
    """Published figures."""
    differences: Annotated[tuple[str, ...], Listed()] = ()
    """What is known to be different from the stack that was published."""


class ExperimentFile(FileSection):
    """An experiment: which ways of decoding a model are compared, on which prompts and where."""

    version: Annotated[int, Field(ge=1, le=1)]
    """Version of the form of this file: 1."""
    name: str
    """Names of stacks, buckets and the namespace begin with it."""
    description: str = ""
    """One sentence, for people."""
    target: ModelReference
    """The model that is served."""
    weights: WeightsSection = WeightsSection.model_construct()
    runtime: str = "nxdi-vllm-0.9.1"
    """Image, options and abilities of the servers, from the catalogue."""
    arms: Annotated[tuple[ArmSection, ...], Listed()]
    """What is compared; the first is the baseline, which decodes plainly."""
    serving: Serving = Serving.model_construct()
    prompts: PromptsSection
    benchmark: Benchmark = Benchmark.model_construct()
    cluster: Cluster = Cluster.model_construct()
    serve: Serve | None = None
    expect: Expect | None = None
