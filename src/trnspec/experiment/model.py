"""The experiment file as its author writes it and as everything downstream reads it: each key, type and default once.

Structure only: `loading` looks up the names, and the modules `*_rules` check what the values mean together.
"""

import json
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    Tag,
)
from pydantic_core import CoreSchema, core_schema

from trnspec.benchmark.plan_limits import MAX_IN_FLIGHT, MAX_LEVELS, MAX_S, MIN_S

MAX_NUMBER = 1_000_000
Positive = Annotated[int, Field(gt=0, le=MAX_NUMBER)]
Seconds = Annotated[float, Field(ge=MIN_S, le=MAX_S)]
SECRET = r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"
COMMIT = r"^[0-9a-f]{40}$"
FOLDER = r"^s3://[a-z0-9][-.a-z0-9]{1,61}[a-z0-9](/[-._=A-Za-z0-9]+)+/?$"
RESERVATION = r"^cr-[0-9a-f]{8,32}$"
VPC = r"^vpc-[0-9a-f]{8,17}$"
SUBNET = r"^subnet-[0-9a-f]{8,17}$"
HOUR = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
SERVED = r"^[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,254}$"
PARSER = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
FORMS = {
    SECRET: "a Secret's name: lower-case letters, digits, hyphens and dots",
    COMMIT: "the 40 hex digits of a commit",
    FOLDER: "a folder of a bucket, as in s3://my-bucket/models/mine",
    RESERVATION: "the id that EC2 gave the reservation or block, as in cr-0123456789abcdef0",
    VPC: "the id of a VPC, as in vpc-0123456789abcdef0",
    SUBNET: "the id of a subnet, as in subnet-0123456789abcdef0",
    HOUR: 'hour and minute in UTC, as in "22:00"',
    SERVED: "a name without spaces, as in my-model or Qwen/Qwen3-32B",
    PARSER: "the name of a parser of vLLM, as in hermes or qwen3",
}
"""Descriptions of the patterns, for refusals."""
SecretName = Annotated[str, Field(pattern=SECRET)]
ParserName = Annotated[str, Field(pattern=PARSER)]
UNION_TAGS = ("<one>", "<several>")
"""Tags that pydantic adds to an error's location for the two branches of `OneOrSeveral`."""
_T = TypeVar("_T")
OneOrSeveral = Annotated[
    Annotated[_T, Tag(UNION_TAGS[0])]
    | Annotated[list[_T], Field(min_length=1, max_length=128), Tag(UNION_TAGS[1])],
    Discriminator(lambda value: UNION_TAGS[isinstance(value, list)]),
]
"""A value, or a list of values to sweep."""


class Listed:
    """Marks a tuple that YAML gives as a list, with bounds of its length: strict validation accepts no list for a tuple."""

    def __init__(self, minimum: int = 0, maximum: int | None = None) -> None:
        self.minimum, self.maximum = minimum, maximum

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        item = handler.generate_schema(get_args(source)[0])
        listed = core_schema.list_schema(item, min_length=self.minimum, max_length=self.maximum, strict=False)
        written = core_schema.plain_serializer_function_ser_schema(list)
        return core_schema.no_info_after_validator_function(tuple, listed, serialization=written)


class FileSection(BaseModel):
    """A mapping with fixed keys and strict types (`"4"` is not 4)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def _finite(value: JsonValue) -> JsonValue:
    """JSON has no infinity and nothing that is not a number, though YAML has."""
    json.dumps(value, allow_nan=False)
    return value


class ModelReference(FileSection):
    """A model and, where it is known, the commit to take it from."""

    model: str
    """Its repository on Hugging Face, as owner/name."""
    revision: Annotated[str, Field(pattern=COMMIT)] | None = None
    """A commit. Without one, a fetch takes the newest commit and records it."""
    like: str | None = None
    """For a fine-tune: the model of the catalogue that has the same shape."""
    config: str | None = None
    """For another model that the catalogue does not list: path of its `config.json`, relative to the experiment file. `check` compares that of a
    head with the target."""
    weights: Annotated[str, Field(pattern=FOLDER)] | None = None
    """Folder in S3 to take the weights from, instead of Hugging Face. Put changed weights into another folder."""


class SpeculationSection(FileSection):
    """How an arm speculates; the first arm, the baseline, does not. A list is a sweep: each combination is an arm."""

    mode: str
    """How tokens are drafted. docs/models.md shows which runtime supports which mode for which model."""
    draft: OneOrSeveral[ModelReference]
    """A smaller model with the target's tokenizer, or for EAGLE, EAGLE3 and DFlash a head that was trained for the target. A head may have
    any name. Give its `config` if its sizes differ from the target's."""
    num_speculative_tokens: OneOrSeveral[int]
    """Draft tokens per step (the window, k)."""


class ArmSection(FileSection):
    """One vLLM service, or one for each combination of its lists. Without `speculation` it decodes plainly."""

    name: str
    """Lower-case letters, digits and hyphens. A sweep adds its values to the name, and a further size of the batch adds, for example, `-b8`."""
    runtime: str | None = None
    """A runtime other than the experiment's. The comparison then includes the runtime."""
    speculation: SpeculationSection | None = None
    engine: dict[str, Annotated[JsonValue, AfterValidator(_finite)]] = Field(default={})
    """Keys of the runtime's Neuron configuration that only this arm sets. The comparison then includes them."""
    scheduler: Literal["synchronous"] | None = None
    """`synchronous` turns asynchronous scheduling off, as DFlash does. A plain arm with this key shows how much time the scheduler costs."""


class AdvancedServing(FileSection):
    """Settings of all arms that few experiments need."""

    pod_security: Literal["ipc-lock", "image-defaults", "baseline", "restricted"] = "baseline"
    """Restrictions of the containers that hold devices, from least to most: `ipc-lock` may also lock memory, `image-defaults` drops only
    privilege, `baseline` drops all capabilities too, `restricted` also runs as a non-root user."""
    served_model_name: Annotated[str, Field(pattern=SERVED)] | None = None
    """The name of the model in requests (default: the target's name)."""
    chat_template: str | None = None
    """Jinja file to use instead of the model's own chat template; the path is relative to this file. `check` allows 32 tokens for it."""
    tool_call_parser: ParserName | None = None
    """vLLM's parser of tool calls, for example `hermes` for Qwen3. It also turns on automatic tool choice."""
    reasoning_parser: ParserName | None = None
    """vLLM's parser that separates reasoning from the answer, for example `qwen3`."""


class CommonServing(FileSection):
    """Settings that the file and each arm have."""

    devices: Annotated[int, Field(ge=1, le=16)] = 8
    """Neuron devices (Trainium2 chips) of one arm. A model is sharded over all of their logical cores (tensor parallelism)."""
    logical_nc_config: Literal[1, 2] = 2
    """Physical NeuronCores in each logical NeuronCore (LNC)."""
    max_num_seqs: OneOrSeveral[Positive] = 4
    """The maximum number of requests that are decoded together in one batch. With a list, every arm exists once for
    each size, the baseline too. The first size keeps the arm's name; a further size 8 adds `-b8`."""
    max_model_len: Positive = 1024
    """The maximum tokens of a prompt and its answer together."""
    allocation: Literal["dra", "device-plugin"] = "dra"
    """How pods get their devices: by resource claims (DRA), or by the device plugin and its scheduler extension."""
    api_key_secret: SecretName | None = None
    """Kubernetes Secret whose key `api-key` every request must carry; without one, any pod of the cluster may send requests."""


class Serving(CommonServing):
    """Settings of all arms."""

    advanced: AdvancedServing = Field(default_factory=AdvancedServing)
    """Settings that few experiments need."""


class PromptsSection(FileSection):
    """The prompts: either classes with their texts, or a file. Each class needs 8 distinct prompts."""

    classes: dict[str, list[str]] | None = None
    """Prompts by class. Texts of one class should be equally easy to draft."""
    file: str | None = None
    """JSON lines (`prompt`, `messages` or `text`, and `class`), CSV, MT-Bench, Spec-Bench, SPEED-Bench, ShareGPT, OpenAI batch or
    fine-tuning, gzip or not; the path is relative to this file."""
    ignore: Annotated[tuple[str, ...], Listed()] = ()
    """Keys of the file's entries to leave out, for example `temperature`, which would change decoding for single prompts."""


WARMUP = 4
"""Requests to each arm before the measurement, or as many as the largest load has at once."""


class Slo(FileSection):
    """Limits of a request, in seconds. The report has the share of requests within each limit and within all of them."""

    ttft_s: Seconds | None = None
    """Time to the first token."""
    tpot_s: Seconds | None = None
    """Time per output token after the first."""
    e2e_s: Seconds | None = None
    """Time to the end of the answer."""


class Benchmark(FileSection):
    """How the arms are measured. The plan of the benchmark pod is made from this."""

    endpoint: Literal["chat", "completions"] = "chat"
    """`chat` applies the model's chat template, `completions` sends plain text."""
    thinking: bool = False
    """Whether the model reasons before it answers, where its chat template has a switch for that."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature. It must be 0 if the runtime speculates greedily only."""
    max_tokens: Positive = 600
    """The maximum tokens of an answer. A line of a prompts file may have its own."""
    concurrency: Annotated[
        tuple[Annotated[int, Field(gt=0, le=MAX_IN_FLIGHT)], ...], Listed(1, MAX_LEVELS)
    ] = (4,)
    """Concurrent requests. Each value is measured by itself. 1, 2, 4, 8, 16, 32 shows up to which load drafting pays."""
    requests: Positive = 32
    """The minimum number of measured requests for each class at each load. The largest class must not have more prompts. Each load lasts for
    four answers in each of four blocks, which may need more requests."""
    mixed: bool = False
    """Whether the requests of all classes share one load. Otherwise each class is measured by itself."""
    cell_minutes: Annotated[float, Field(gt=0, le=44_640)] | None = None
    """The maximum minutes of load for one cell (a load, or a class at a load), all arms together. The cell then has fewer requests."""
    slo: Slo | None = None
    lm_eval: Annotated[int, Field(ge=1, le=1319)] | None = None
    """The number of questions of gsm8k that lm-eval asks each arm, for example 200. Speculation must not change the answers. The test set
    has 1,319."""

    @property
    def goodput(self) -> dict[str, float]:
        """Return the limits of a request, in seconds, by metric."""
        return {name: value for name, value in self.slo or () if value is not None}


class Capacity(FileSection):
    """Purchase option of the Trn2 nodes."""

    kind: Literal["on-demand", "spot", "capacity-block", "reservation"] = "on-demand"
    """Buy a block or a reservation first. EC2 can take a spot node away at any time."""
    reservation_id: Annotated[str, Field(pattern=RESERVATION)] | None = None
    """The id that EC2 gave the block or reservation. Its zone must be the first of `availability_zones`."""
    ends_at: str | None = None
    """End of a capacity block, ISO 8601 in UTC."""
    max_usd_per_hour: Annotated[float, Field(gt=0, le=MAX_NUMBER)] | None = None
    """Spot only: the maximum price of a Trn2 node for an hour. A run asks for the price while it waits and works, and ends above it.
    EC2 does not know this limit: nodes that `./trnspec nodes` starts, or that stay after a run, cost the market price."""


class Network(FileSection):
    """An existing VPC to deploy into; nothing of its network is made or changed. Without it, a deployment makes a network."""

    vpc: Annotated[str, Field(pattern=VPC)] | None = None
    """Its id. Its owner decides about routes to the internet and endpoints."""
    private_subnets: dict[str, Annotated[str, Field(pattern=SUBNET)]] = Field(default={})
    """Its subnets to use, one for each zone: the zone's name, then the subnet's id. The control plane is in the first two zones, and
    stays there; add further ones below."""


class Cluster(FileSection):
    """The cluster and its nodes."""

    kubernetes: str = "1.35"
    """Version of EKS, in quotes."""
    region: str = "us-east-2"
    """AWS region; `./trnspec preflight` asks whether EC2 offers the instance type there."""
    availability_zones: Annotated[tuple[str, ...], Listed(2)] = ("us-east-2a", "us-east-2b")
    """Zones of the nodes. Trn2 nodes start in the first. The network has subnets in every zone of the region."""
    admin_cidrs: Annotated[tuple[str, ...], Listed()] = ()
    """Public networks that may reach the cluster's endpoint; without any it is private."""
    instance: str = "trn2.48xlarge"
    """Instance type of the Trn2 nodes."""
    max_nodes: Annotated[int, Field(ge=1, le=16)] = 1
    """The maximum number of Trn2 nodes. Arms that do not fit on them wait for a later round."""
    capacity: Capacity = Capacity.model_construct()
    network: Network = Network.model_construct()
    off_at_utc: Annotated[str, Field(pattern=HOUR)] = "22:00"
    """The time (UTC) at which the Trn2 nodes are set to 0 every day. With a Capacity Block its end does that."""

    @property
    def off_when(self) -> str:
        """When the Trn2 nodes are turned off, whatever happens, in words."""
        if self.capacity.ends_at:
            return f"an hour before the capacity block ends ({self.capacity.ends_at})"
        return f"every day at {self.off_at_utc} UTC"

    @property
    def trn2_zone(self) -> str:
        """The zone of the Trn2 nodes."""
        return self.availability_zones[0]


class Serve(FileSection):
    """The arm that serves after the comparison. The others have 0 replicas."""

    arm: str
    """Its name."""
    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """The number of its replicas."""


class ExpectedFigure(FileSection):
    """A published figure that a run should meet."""

    arm: str
    """Name of the arm; of a sweep the name that it makes."""
    metric: Literal["tpot_s", "speed_up", "tokens_per_step"] = "tpot_s"
    """Seconds per output token, the speed-up over the baseline, or tokens per decode step."""
    classes: Annotated[tuple[str, ...], Listed()] = ()
    """Classes of prompts that it holds for (default: all)."""
    concurrency: Positive
    """Concurrent requests."""
    row: str | None = None
    """Row of the published results (`./trnspec forecast --all`) that has the value and its source."""
    value: Annotated[float, Field(ge=MIN_S, le=1000)] | None = None
    """The value itself, if no row has it."""
    source: str = ""
    """Where `value` was published."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Allowed difference as a share of the value: with 0.1, a run within 10 % meets it."""


class Expect(FileSection):
    """Published results that a run should meet, and known differences from them."""

    figures: Annotated[tuple[ExpectedFigure, ...], Listed(1)]
    """Published figures."""
    differences: Annotated[tuple[str, ...], Listed()] = ()
    """Known differences from the stack that was published."""


class ExperimentFile(FileSection):
    """An experiment: which ways of decoding a model are compared, on which prompts and where."""

    version: Annotated[int, Field(ge=1, le=1)]
    """Version of the file format: 1."""
    name: str
    """The beginning of the names of stacks, buckets and the namespace."""
    target: ModelReference
    """The model that is served."""
    token_secret: SecretName | None = None
    """Kubernetes Secret in the experiment's namespace whose key `token` opens gated models of Hugging Face."""
    runtime: str = "nxdi-vllm-0.9.1"
    """Image, options and abilities of the servers, from the catalogue."""
    arms: Annotated[tuple[ArmSection, ...], Listed()]
    """The services to compare. The first is the baseline, which decodes plainly."""
    serving: Serving = Serving.model_construct()
    prompts: PromptsSection
    benchmark: Benchmark = Benchmark.model_construct()
    cluster: Cluster = Cluster.model_construct()
    serve: Serve | None = None
    expect: Expect | None = None
