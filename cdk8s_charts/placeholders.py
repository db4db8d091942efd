"""The closed list of values that are known only at deploy time, and the one place where they are filled in."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from experiment.finding import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PLACEHOLDERS = {
    "AWS_ACCOUNT": "id of the account, part of bucket names",
    "BENCHMARK_IMAGE": "image of benchmark and store, tagged with the hash of its content",
    "BENCHMARK_IMAGE_TAG": "tag of that image as names of Jobs carry it; made from the image's address",
    "LMEVAL_IMAGE": "image of the quality check, tagged alike; only where an experiment has one",
}
TAG = "_TAG"
"""After an image's placeholder: what stands for its tag in names of objects that Kubernetes does not let change."""
TAG_LENGTH = 8
_PATTERN = re.compile(r"\$\{([A-Z_]+)\}")


def tags(value: Any) -> str:
    """What the name of an object ends with that holds `value` for good: a placeholder for each image in it.

    The rest of the content is known when it is rendered; which image it is, only at deployment.
    Raises `Misuse` for an image that has no such placeholder.
    """
    images = sorted(name for name in names_in(value) if name.endswith("_IMAGE"))
    for name in images:
        if f"{name}{TAG}" not in PLACEHOLDERS:
            raise Misuse(f"{name} stands in an immutable object; list {name}{TAG} as a placeholder")
    return "".join(f"-${{{name}{TAG}}}" for name in images)


def with_example_tags(name: str) -> str:
    """A name as long as the one that a deployment makes of it."""
    return _PATTERN.sub(lambda match: "0" * TAG_LENGTH if match[1].endswith(TAG) else match[0], name)


def with_tags(values: Mapping[str, str]) -> dict[str, str]:
    """`values` and, for each image's address in them, what stands for its tag or digest in names. Registry and
    repository do not count: they belong to the account and the region, and so does the cluster."""
    last = {name: address.rpartition("/")[2] for name, address in values.items()}
    return {
        **values,
        **tags_in_names({name: re.split("[:@]", one, maxsplit=1)[-1] for name, one in last.items()}),
    }


def tags_in_names(tags_of: Mapping[str, str]) -> dict[str, str]:
    """What stands for images' tags in names: eight hex digits, because a tag may have capitals, dots and 128 characters."""
    return {
        f"{name}{TAG}": hashlib.sha256(tag.encode()).hexdigest()[:TAG_LENGTH]
        for name, tag in tags_of.items()
        if f"{name}{TAG}" in PLACEHOLDERS
    }


def fill(objects: Iterable[Mapping[str, Any]], values: Mapping[str, str]) -> list[dict[str, Any]]:
    """The objects with every `${NAME}` replaced.

    Raises `Misuse` for a value that is missing, that is for no placeholder, or that nobody can fill in.
    """
    for name in sorted(values.keys() - PLACEHOLDERS.keys()):
        raise Misuse(f"{name} is no placeholder; give {', '.join(sorted(PLACEHOLDERS))}")
    return [
        {key: inner if _is_text_of_user(item, key) else filled(inner, values) for key, inner in item.items()}
        for item in objects
    ]


def _is_text_of_user(item: Mapping[str, Any], key: str) -> bool:
    """Data of a ConfigMap is the user's prompts, in which `${HOME}` means itself."""
    return item["kind"] == "ConfigMap" and key == "data"


def names_in(value: Any) -> set[str]:
    """Every placeholder that stands in `value`."""
    if isinstance(value, str):
        return set(_PATTERN.findall(value))
    if isinstance(value, dict):
        return set().union(*(names_in(inner) for inner in value.values()))
    if isinstance(value, list | tuple):
        return set().union(*(names_in(inner) for inner in value))
    return set()


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """A part of an object with every `${NAME}` replaced. Raises `Misuse` for a value that is missing."""
    if isinstance(value, str):
        return _PATTERN.sub(lambda match: _value(match[1], values), value)
    if isinstance(value, dict):
        return {key: filled(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, values) for inner in value]
    return value


def _value(name: str, values: Mapping[str, str]) -> str:
    if name in values:
        return values[name]
    if name in PLACEHOLDERS:
        raise Misuse(f"placeholder {name} has no value; it is the {PLACEHOLDERS[name]}")
    raise Misuse(f"${{{name}}} stands in a rendered object and is no placeholder; write it another way")
