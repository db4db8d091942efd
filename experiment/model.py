"""The experiment file as its author writes it and as everything downstream reads it: each key and default once.

Structure only; what the values mean together is judged in `checks`, and what needs the catalogue is found in `arms`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    Tag,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

from experiment.catalogue.models import MODELS, head

if TYPE_CHECKING:
    from experiment.catalogue.instances import Instance
    from experiment.catalogue.models import Model


MOST = 1_000_000
Positive = Annotated[int, Field(gt=0, le=MOST)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]
_SECRET = r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"
_COMMIT = r"^[0-9a-f]{40}$"
_RESERVATION = r"^cr-[0-9a-f]{8,32}$"
_HOUR = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
FORMS = {
    _SECRET: "a Secret's name: lower-case letters, digits, hyphens and dots",
    _COMMIT: "the 40 hex digits of a commit",
    _RESERVATION: "the id that EC2 gave the reservation or block, as in cr-0123456789abcdef0",
    _HOUR: 'hour and minute in UTC, as in "22:00"',
}
"""What the patterns of this schema ask for, for who reads a refusal."""
REMOVED_KEYS = {
    "benchmark.harness": (
        "chose llmperf as the client, which this release no longer builds or runs",
        "remove the key: llmperf's files and its own figure come with every run (docs/reproduce.md)",
    ),
    "benchmark.llmperf": (
        "set what llmperf asks, which this release no longer builds or runs",
        "remove the key",
    ),
}
"""Keys that an earlier release read: what they did, and what to do now."""
STAND_INS = {"name": "", "model": "", "mode": "", "arm": "", "num_speculative_tokens": 0}
"""What may stand where one of these required values is missing, so that the rest of the file can be judged."""
SecretName = Annotated[str, Field(pattern=_SECRET)]
UNION_TAGS = ("<one>", "<several>")
"""What pydantic puts into an error's location for the two branches of `OneOrSeveral`."""
_T = TypeVar("_T")
OneOrSeveral = Annotated[
    Annotated[_T, Tag(UNION_TAGS[0])]
    | Annotated[list[_T], Field(min_length=1, max_length=128), Tag(UNION_TAGS[1])],
    Discriminator(lambda value: UNION_TAGS[isinstance(value, list)]),
]
"""A value, or a list of values to sweep."""


class Listed:
    """Marks a tuple that YAML gives as a list, with so many items at least: strict validation takes no list for one."""

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        item = handler.generate_schema(get_args(source)[0])
        listed = core_schema.list_schema(item, min_length=self.least, strict=False)
        written = core_schema.plain_serializer_function_ser_schema(list)
        return core_schema.no_info_after_validator_function(tuple, listed, serialization=written)


def _finite(value: JsonValue) -> JsonValue:
    """JSON has no infinity and nothing that is not a number, though YAML has."""
    json.dumps(value, allow_nan=False)
    return value


class Section(BaseModel):
    """A mapping that knows its keys and does not guess types (`"4"` is not 4)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class ModelReference(Section):
    """A model and, where it is known, the commit to take it from."""

    model: str
    revision: Annotated[str, Field(pattern=_COMMIT)] | None = None

    @property
    def described(self) -> Model | None:
        """The catalogue's entry; `None` where it has none."""
        return MODELS.get(self.model)


class DraftReference(ModelReference):
    """A draft: a model of the catalogue, or a head (EAGLE, EAGLE3, DFlash, Medusa) by any name.

    Heads are many and none has a size of its own worth a catalogue: it follows from the target they were trained for.
    """

    head_for: str | None = None
    """The catalogue's target that the head was trained for."""
    head_layers: Annotated[int, Field(ge=1, le=16)] = 1
    """Decoder layers (Medusa: heads) inside it."""

    @property
    def described(self) -> Model | None:
        """A head stands for itself, in the shape of the target that it was trained for."""
        if self.head_for is None:
            return super().described
        return head(self.model, target=self.head_for, layers=self.head_layers)


class SpeculationSection(Section):
    """How an arm speculates; a list is a sweep, each combination an arm of its own."""

    mode: str
    draft: OneOrSeveral[DraftReference]
    num_speculative_tokens: OneOrSeveral[int]
    draft_max_model_len: Positive | None = None


class Treatment(SpeculationSection):
    """The same after the sweep was expanded: one draft, one window, its length filled in."""

    draft: DraftReference
    num_speculative_tokens: int
    draft_max_model_len: int


class ArmSection(Section):
    """One vLLM service, or one for each combination of its lists. Without `speculation` it decodes plainly."""

    name: str
    runtime: str | None = None
    """Another than the experiment's: then part of the declared treatment."""
    speculation: SpeculationSection | None = None
    engine: dict[str, Annotated[JsonValue, AfterValidator(_finite)]] = {}
    """Keys of the runtime's Neuron configuration that this arm sets otherwise: part of the declared treatment."""


class SingleArm(ArmSection):
    """The same after the sweep was expanded, with the places of the file that it was made from."""

    runtime: str
    speculation: Treatment | None = None
    at: str
    """`arms[1]`."""
    runtime_at: str
    """`arms[1].runtime`, or `runtime` where it has none of its own."""
    draft_at: str = ""
    """`arms[1].speculation.draft`, in a sweep with the draft's number."""
    window_at: str = ""


class WeightsSection(Section):
    """How weights are fetched."""

    token_secret: SecretName | None = None
    """Kubernetes Secret in the experiment's namespace whose key `token` opens gated models."""


class Serving(Section):
    """What all arms share."""

    devices: Annotated[int, Field(ge=0, le=16)] = 8
    """Neuron devices (Trainium2 chips) of one arm; 0 on an instance type without any."""
    logical_nc_config: Literal[1, 2] = 2
    """Physical NeuronCores in a logical one."""
    tensor_parallel: Positive | None = None
    """Logical NeuronCores over which a model is sharded; all of the arm's devices without it."""
    max_num_seqs: Positive = 4
    max_model_len: Positive = 1024
    """Prompt and output together, in tokens."""
    allocation: Literal["dra", "device-plugin"] = "dra"
    """Resource claims, or extended resources and the scheduler extension."""
    artifact_source: Literal["mount", "scratch"] = "mount"
    """Read artifacts from the bucket's mount, or copy them to local NVMe first."""
    pod_security: Literal["image-defaults", "baseline", "restricted"] = "baseline"
    """What containers that hold devices give up: nothing but privilege, all capabilities as well, the image's user too."""
    api_key_secret: SecretName | None = None
    """Kubernetes Secret whose key `api-key` every request must carry; `None`: open inside the cluster."""

    def degree_on(self, instance: Instance) -> int:
        """The declared degree of tensor parallelism, or every logical core of the arm's devices."""
        cores = instance.logical_cores(devices=self.devices, logical_nc_config=self.logical_nc_config)
        return self.tensor_parallel or max(cores, 1)


class PromptsSection(Section):
    """Either classes with their prompts, or a file of JSON lines."""

    classes: dict[str, list[str]] | None = None
    file: str | None = None


class Objectives(Section):
    """Service-level objectives, seconds per request; goodput is the share that meets all of them."""

    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    e2e_s: Seconds | None = None


class LmEval(Section):
    """lm-eval's gsm8k against every arm: quality must not change."""

    limit: Annotated[int, Field(ge=1, le=1319)] = 200
    """Questions asked; gsm8k's test set has 1319."""


class Benchmark(Section):
    """How the arms are loaded; the plan of the benchmark pod is made from it."""

    endpoint: Literal["chat", "completions"] = "chat"
    thinking: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    max_tokens: Positive = 600
    concurrency: Annotated[tuple[Positive, ...], Listed(1)] = (4,)
    requests: Positive = 32
    """Measured requests in a cell (arm x class x concurrency)."""
    warmup: Annotated[int, Field(ge=0, le=1000)] = 4
    seed: NotNegative = 1
    slo: Objectives | None = None
    lm_eval: LmEval | None = None

    @property
    def objectives(self) -> dict[str, float]:
        """Seconds by metric (`ttft_s`, `tpot_s`, `e2e_s`) of the objectives that are set."""
        return {name: value for name, value in self.slo or () if value is not None}


class Capacity(Section):
    """How Trn2 nodes are bought."""

    kind: Literal["on-demand", "capacity-block", "reservation"] = "on-demand"
    reservation_id: Annotated[str, Field(pattern=_RESERVATION)] | None = None
    availability_zone: str | None = None
    """The reservation's; `None` on demand."""
    ends_at: str | None = None
    """End of a capacity block, ISO 8601 in UTC."""


class Network(Section):
    """Ways out of the private subnets."""

    nat_gateways: Annotated[int, Field(ge=1, le=3)] = 1
    interface_endpoints: bool = False


class Cluster(Section):
    """Where it runs."""

    kubernetes: str = "1.35"
    region: str = "us-east-2"
    availability_zones: Annotated[tuple[str, ...], Listed(2)] = ("us-east-2a", "us-east-2b")
    """Where nodes may stand. The network has subnets in every zone of the region."""
    admin_cidrs: Annotated[tuple[str, ...], Listed()] = ()
    instance: str = "trn2.48xlarge"
    nodes: Annotated[int, Field(ge=0, le=16)] = 0
    """Trn2 nodes to start at deploy time; 0 bills nothing."""
    max_nodes: Annotated[int, Field(ge=1, le=16)] = 1
    """Trn2 nodes at most; arms beyond what fits wait for a later batch."""
    capacity: Capacity = Capacity()
    network: Network = Network()
    off_at_utc: Annotated[str, Field(pattern=_HOUR)] = "22:00"
    """Every day at this hour the Trn2 group is set to 0."""

    @property
    def trn2_zone(self) -> str:
        """Where the Trn2 nodes stand: in the reservation's zone where there is one, else in the first."""
        return self.capacity.availability_zone or self.availability_zones[0]


def _as_replicas(value: Any, info: ValidationInfo) -> Any:
    return info.data.get("replicas", 1) if value is None else value


class Serve(Section):
    """The arm that was chosen to stay up after the comparison, and who may call it."""

    arm: str
    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """At least so many."""
    max_replicas: Annotated[int, Field(ge=1, le=256), BeforeValidator(_as_replicas)] = Field(
        default=None, validate_default=True
    )
    """At most so many; as many as `replicas` where it is left out. Above, replicas are added while requests wait."""
    waiting_per_replica: Positive = 4
    """Waiting requests of a replica on average, above which another is added."""
    certificate_arn: str | None = None
    """Certificate in ACM; with one there is an internal load balancer that ends TLS, else only the cluster calls it."""
    client_cidrs: Annotated[tuple[str, ...], Listed()] = ()
    """Networks that may call the load balancer."""

    @property
    def scales(self) -> bool:
        """Whether replicas come and go with the waiting requests."""
        return self.max_replicas > self.replicas


class ExperimentFile(Section):
    """The whole file, version 1, as written."""

    version: Annotated[int, Field(ge=1, le=1)]
    name: str
    description: str = ""
    target: ModelReference
    weights: WeightsSection = WeightsSection()
    runtime: str = "nxdi-vllm-0.9.1"
    arms: Annotated[tuple[ArmSection, ...], Listed()]
    serving: Serving = Serving()
    prompts: PromptsSection
    benchmark: Benchmark = Benchmark()
    cluster: Cluster = Cluster()
    serve: Serve | None = None


class ExpandedFile(ExperimentFile):
    """The same with every sweep expanded: what checks judge and `resolve` reads."""

    arms: tuple[SingleArm, ...]


def known_keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys that the section at `path` accepts; empty where any key may stand."""
    section = _annotation(path)
    return sorted(section.model_fields) if _is_section(section) else []


def _annotation(path: tuple[int | str, ...]) -> Any:
    """The section or the type that belongs at `path`; nothing where the schema ends."""
    found: Any = ExperimentFile
    for step in path:
        if isinstance(step, str):
            field = found.model_fields.get(step) if _is_section(found) else None
            if field is None:
                return None
            found = _section_in(field.annotation)
    return found


def _is_section(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Section)


def _section_in(annotation: Any) -> Any:
    """The section class inside an annotation such as `list[ArmSection]` or `SpeculationSection | None`."""
    if _is_section(annotation):
        return annotation
    found = (_section_in(argument) for argument in getattr(annotation, "__args__", ()))
    return next((section for section in found if section is not None), None)
