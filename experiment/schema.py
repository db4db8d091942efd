"""The experiment file as its author writes it. Structure only; what the values mean together is judged in `checks`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

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


class Section(BaseModel):
    """A mapping that knows its keys and does not guess types (`"4"` is not 4)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelReference(Section):
    """A model and, where it is known, the commit to take it from."""

    model: str
    revision: Annotated[str, Field(pattern=_COMMIT)] | None = None


class DraftReference(ModelReference):
    """A draft: a model of the catalogue, or a head (EAGLE, EAGLE3, DFlash, Medusa) by any name.

    Heads are many and none has a size of its own worth a catalogue: it follows from the target they were trained for.
    """

    head_for: str | None = None
    """The catalogue's target that the head was trained for."""
    head_layers: Annotated[int, Field(ge=1, le=16)] = 1
    """Decoder layers (Medusa: heads) inside it."""


class SpeculationSection(Section):
    """How an arm speculates; a list is a sweep, each combination an arm of its own."""

    mode: str
    draft: OneOrSeveral[DraftReference]
    num_speculative_tokens: OneOrSeveral[int]
    draft_max_model_len: Positive | None = None


class TreatmentSection(Section):
    """The same after the sweep was expanded: one draft, one window."""

    mode: str
    draft: DraftReference
    num_speculative_tokens: int
    draft_max_model_len: Positive | None = None


class ArmSection(Section):
    """One vLLM service, or one for each combination of its lists. Without `speculation` it decodes plainly."""

    name: str
    runtime: str | None = None
    """Another than the experiment's: then part of the declared treatment."""
    speculation: SpeculationSection | None = None


class SingleArmSection(Section):
    """One vLLM service after the sweep was expanded."""

    name: str
    runtime: str | None = None
    speculation: TreatmentSection | None = None


class WeightsSection(Section):
    """How weights are fetched."""

    token_secret: SecretName | None = None
    """Kubernetes Secret in the experiment's namespace whose key `token` opens gated models."""


class ServingSection(Section):
    """What all arms share."""

    devices: Annotated[int, Field(ge=0, le=16)] = 8
    """Trainium2 chips of one arm; 0 on an instance type without any."""
    logical_nc_config: Literal[1, 2] = 2
    tensor_parallel: Positive | None = None
    max_num_seqs: Positive = 4
    max_model_len: Positive = 1024
    allocation: Literal["dra", "device-plugin"] = "dra"
    artifact_source: Literal["mount", "scratch"] = "mount"
    """Read artifacts from the bucket's mount, or copy them to local NVMe first."""
    pod_security: Literal["image-defaults", "baseline", "restricted"] = "baseline"
    """What containers that hold devices give up: nothing but privilege, all capabilities as well, the image's user too."""
    api_key_secret: SecretName | None = None
    """Kubernetes Secret whose key `api-key` every request must then carry."""


class PromptsSection(Section):
    """Either classes with their prompts, or a file of JSON lines."""

    classes: dict[str, list[str]] | None = None
    file: str | None = None


class ObjectivesSection(Section):
    """Service-level objectives, seconds per request; goodput is the share that meets all of them."""

    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    e2e_s: Seconds | None = None


class LmEvalSection(Section):
    """lm-eval's gsm8k against every arm: quality must not change."""

    limit: Annotated[int, Field(ge=1, le=1319)] = 200
    """Questions asked; gsm8k's test set has 1319."""


class BenchmarkSection(Section):
    """How the arms are loaded."""

    endpoint: Literal["chat", "completions"] = "chat"
    thinking: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    max_tokens: Positive = 600
    concurrency: Annotated[list[Positive], Field(min_length=1)] = [4]
    requests: Positive = 32
    warmup: Annotated[int, Field(ge=0, le=1000)] = 4
    seed: NotNegative = 1
    slo: ObjectivesSection | None = None
    lm_eval: LmEvalSection | None = None


class CapacitySection(Section):
    """How Trn2 nodes are bought."""

    kind: Literal["on-demand", "capacity-block", "reservation"] = "on-demand"
    reservation_id: Annotated[str, Field(pattern=_RESERVATION)] | None = None
    availability_zone: str | None = None
    ends_at: str | None = None


class NetworkSection(Section):
    """Ways out of the private subnets."""

    nat_gateways: Annotated[int, Field(ge=1, le=3)] = 1
    interface_endpoints: bool = False


class ClusterSection(Section):
    """Where it runs."""

    kubernetes: str = "1.35"
    region: str = "us-east-2"
    availability_zones: Annotated[list[str], Field(min_length=2)] = ["us-east-2a", "us-east-2b"]
    admin_cidrs: list[str] = []
    instance: str = "trn2.48xlarge"
    nodes: Annotated[int, Field(ge=0, le=16)] = 0
    max_nodes: Annotated[int, Field(ge=1, le=16)] = 1
    capacity: CapacitySection = CapacitySection()
    network: NetworkSection = NetworkSection()
    off_at_utc: Annotated[str, Field(pattern=_HOUR)] = "22:00"


class ServeSection(Section):
    """The arm that was chosen to stay up after the comparison, and who may call it."""

    arm: str
    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=256)] | None = None
    """Above `replicas`, replicas are added while requests wait."""
    waiting_per_replica: Positive = 4
    """Waiting requests of a replica on average, above which another is added."""
    certificate_arn: str | None = None
    """Certificate in ACM; with one there is an internal load balancer that ends TLS."""
    client_cidrs: list[str] = []
    """Networks that may call the load balancer."""


class Sections(Section):
    """Everything of a file but its arms."""

    version: Annotated[int, Field(ge=1, le=1)]
    name: str
    description: str = ""
    target: ModelReference
    weights: WeightsSection = WeightsSection()
    runtime: str = "nxdi-vllm-0.9.1"
    serving: ServingSection = ServingSection()
    prompts: PromptsSection
    benchmark: BenchmarkSection = BenchmarkSection()
    cluster: ClusterSection = ClusterSection()
    serve: ServeSection | None = None


class ExperimentFile(Sections):
    """The whole file, version 1, as written."""

    arms: list[ArmSection]


class ExpandedFile(Sections):
    """The same with every sweep expanded: what checks judge and `resolve` reads."""

    arms: list[SingleArmSection]


def known_keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys that the section at `path` accepts; empty where any key may stand."""
    section = _annotation(path)
    return sorted(section.model_fields) if _is_section(section) else []


def leaf_type(path: tuple[int | str, ...]) -> type[str] | type[int] | None:
    """`str` or `int` where the field at `path` is one, nothing for sections and lists."""
    annotation = _annotation(path)
    branches = getattr(annotation, "__args__", ())
    if branches and any(isinstance(note, Tag) for note in getattr(branches[0], "__metadata__", ())):
        annotation = branches[0].__origin__
    return annotation if annotation in (str, int) else None


def _annotation(path: tuple[int | str, ...]) -> Any:
    """The section or the type that belongs at `path`; nothing where the schema ends."""
    found: Any = ExperimentFile
    for step in path:
        if isinstance(step, str):
            field = found.model_fields.get(step) if _is_section(found) else None
            if field is None:
                return None
            found = _section_in(field.annotation) or field.annotation
    return found


def _is_section(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, Section)


def _section_in(annotation: Any) -> Any:
    """The section class inside an annotation such as `list[ArmSection]` or `SpeculationSection | None`."""
    if _is_section(annotation):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _section_in(argument)
        if found is not None:
            return found
    return None
