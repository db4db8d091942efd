"""Types of the values of an experiment file: patterns with their descriptions, bounds, lists."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema, core_schema

from trnspec.benchmark.limits import MAX_S, MIN_S

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
