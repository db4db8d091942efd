"""Create the synthesized stacks in the loopback server, and report the outcome of each resource."""

from __future__ import annotations

import logging
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from trnspec.core.findings import Outside
from trnspec.core.screen import wrapped
from trnspec.core.words import count
from trnspec.lab.aws.moto_server import client
from trnspec.lab.aws.stacks import (
    Outcome,
    RehearsedResource,
    read_assembly,
    resources_of,
    stand_in_for_bootstrap,
)

_OUTCOMES = ("created", "recorded", "skipped")


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """The result of a rehearsal in which every resource was created, recorded or skipped by its condition."""

    region: str
    stacks: tuple[str, ...]
    """They are in creation order."""
    resources: tuple[RehearsedResource, ...]
    images_not_built: tuple[str, ...]
    """`repository:tag` of container images that the stacks name."""
    unresolved: tuple[str, ...]
    """References that moto cannot resolve; a property with one is not usable."""

    def types(self, outcome: Outcome) -> dict[str, int]:
        """Return the number of resources with this outcome, by type."""
        found = Counter(one.type for one in self.resources if one.outcome == outcome)
        return dict(sorted(found.items()))


def rehearse(assembly: Path, *, region: str, endpoint: str) -> Rehearsal:
    """Create every stack of `assembly`, in order, in the empty server at `endpoint`.

    Raises `Outside`, and `Refusal` at the first stack that fails or lacks a resource.
    """
    read, client_of = read_assembly(assembly), partial(client, endpoint=endpoint, region=region)
    with complaints(endpoint) as heard:
        stand_in_for_bootstrap(read, client_of, region=region)
        resources: list[RehearsedResource] = []
        for stack in read.stacks:
            stack.create(client_of("cloudformation"))
            resources += resources_of(stack.name, region=region)
    return Rehearsal(
        region=region,
        stacks=tuple(stack.name for stack in read.stacks),
        resources=tuple(resources),
        images_not_built=read.images,
        unresolved=tuple(dict.fromkeys(heard)),
    )


@contextmanager
def complaints(endpoint: str) -> Iterator[Sequence[str]]:
    """Collect moto's warnings about templates, which would otherwise go to stderr. Raises `Outside` if the server fails."""
    heard: list[str] = []
    listener, logger = logging.Handler(logging.WARNING), logging.getLogger("moto")
    listener.emit = lambda record: heard.append(record.getMessage())  # pyrefly: ignore[method-assign]  # of this one alone
    logger.addHandler(listener)
    try:
        yield heard
    except (BotoCoreError, ClientError) as error:
        reason = str(error).partition("\n")[0]
        raise Outside(f"rehearsal server {endpoint}: {reason}; it must be running, and empty") from error
    finally:
        logger.removeHandler(listener)


def in_one_line(rehearsal: Rehearsal) -> str:
    """Return one line with the number of created resources, and of those without an emulator."""
    outcomes = [resource.outcome for resource in rehearsal.resources]
    stacks, created = count(len(rehearsal.stacks), "stack"), count(outcomes.count("created"), "resource")
    recorded = outcomes.count("recorded")
    return f"rehearsed {stacks} against a local AWS: {created} created, {recorded} without an emulator"


def account_lines(rehearsal: Rehearsal) -> Iterator[str]:
    """Yield the outcomes of each stack's resources, and what a rehearsal cannot show."""
    yield f"Rehearsal of {count(len(rehearsal.stacks), 'stack')} in {rehearsal.region}: moto on loopback, nothing on AWS."
    for stack in rehearsal.stacks:
        outcomes = [resource.outcome for resource in rehearsal.resources if resource.stack == stack]
        counts = [f"{name} {outcomes.count(name):>3}" for name in _OUTCOMES if name in outcomes]
        yield f"  {textwrap.shorten(stack, 36, placeholder='...'):<36} {', '.join(counts)}"
    yield "What it cannot show:"
    for label, text in (
        ("no emulator", _counted(rehearsal.types("recorded"))),
        ("unresolved", "; ".join(rehearsal.unresolved)),
        ("not built", count(len(rehearsal.images_not_built), "container image")),
    ):
        if text:
            yield from wrapped(text, f"  {label:<14}")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())
