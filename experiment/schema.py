"""The experiment file as its author writes it. Structure only; what the values mean together is judged in `checks`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST = 1_000_000
Positive = Annotated[int, Field(gt=0, le=MOST)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[int, Field(ge=0, le=MOST)]


class Section(BaseModel):
    """A mapping that knows its keys and does not guess types (`"4"` is not 4)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelReference(Section):
    """A model and, where it is known, the commit to take it from."""

    model: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")] | None = None


class SpeculationSection(Section):
    """How an arm speculates."""

    mode: str
    draft: ModelReference
    num_speculative_tokens: int
    draft_max_model_len: Positive | None = None


class ArmSection(Section):
    """One vLLM service. Without `speculation` it decodes one token a step."""

    name: str
    speculation: SpeculationSection | None = None


class ServingSection(Section):
    """What all arms share."""

    devices: Positive = 8
    logical_nc_config: Literal[1, 2] = 2
    tensor_parallel: Positive | None = None
    max_num_seqs: Positive = 4
    max_model_len: Positive = 1024
    allocation: Literal["dra"] = "dra"


class PromptsSection(Section):
    """Either classes with their prompts, or a file of JSON lines."""

    classes: dict[str, list[str]] | None = None
    file: str | None = None


class ObjectivesSection(Section):
    """Service-level objectives, seconds per request; goodput is the share that meets all of them."""

    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    e2e_s: Seconds | None = None


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


class ClusterSection(Section):
    """Where it runs."""

    kubernetes: str = "1.35"
    region: str = "us-east-2"
    availability_zones: Annotated[list[str], Field(min_length=2)] = ["us-east-2a", "us-east-2b"]
    admin_cidrs: list[str] = []
    instance: str = "trn2.48xlarge"
    nodes: Annotated[int, Field(ge=0, le=16)] = 0


class ExperimentFile(Section):
    """The whole file, version 1."""

    version: Annotated[int, Field(ge=1, le=1)]
    name: str
    description: str = ""
    target: ModelReference
    runtime: str = "nxdi-vllm-0.9.1"
    serving: ServingSection = ServingSection()
    arms: list[ArmSection]
    prompts: PromptsSection
    benchmark: BenchmarkSection = BenchmarkSection()
    cluster: ClusterSection = ClusterSection()


def known_keys(path: tuple[int | str, ...]) -> list[str]:
    """The keys that the section at `path` accepts; empty where any key may stand."""
    section = _annotation(path)
    return sorted(section.model_fields) if _is_section(section) else []


def leaf_type(path: tuple[int | str, ...]) -> type[str] | type[int] | None:
    """`str` or `int` where the field at `path` is one, nothing for sections and lists."""
    annotation = _annotation(path)
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
