"""`cdk bootstrap`, `cdk deploy` twice and the teardown of an experiment against a local stand-in for AWS: `./trnspec rehearse`.

This is not a deployment. It shows that the pinned command line can deploy the app, that every template is
accepted, in which order, and that the cluster gets exactly the reviewed objects.
"""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from core.command_line import carried_out
from core.console import print_json, print_text
from core.screen import wrapped
from core.words import count
from lab.command import PATH, REFERENCE, ROOT, experiment_argument

if TYPE_CHECKING:
    from lab.aws.rehearsal import Rehearsal

_MAX_DIFFERENCES = 20
_OUTCOMES = ("created", "recorded", "not modelled", "skipped")


@click.command()
@experiment_argument(REFERENCE, given="TRNSPEC_EXPERIMENT")
@click.option(
    "--manifests", type=PATH, default=ROOT / "manifests", help="Parent folder of its rendered manifests."
)
@click.option(
    "--into",
    type=click.Choice(["vpc", "cluster"]),
    help="An existing VPC, or a cluster in one, is there before.",
)
@click.option("--keep", type=PATH, metavar="DIR", help="Keep the assembly and the logs there.")
@click.option("--json", "as_json", is_flag=True, help="Every resource with what became of it.")
def command(experiment: Path, manifests: Path, into: str | None, keep: Path | None, as_json: bool) -> int:
    """Bootstrap and deploy with the pinned CDK command line, against moto on loopback.

    Exit code 0 when every resource was created, recorded or skipped by its condition, what was applied is what was reviewed
    and nothing that was there before is missing or changed; 1 when a stack failed or something differs.
    """
    os.environ.pop(
        "AWS_PROFILE", None
    )  # moto cannot be imported with an unknown one, and nothing here may use one
    from lab.aws.rehearsal import rehearse_with_cdk

    with tempfile.TemporaryDirectory(prefix="rehearsal-") as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rehearsal = rehearse_with_cdk(
            file=experiment,
            manifests=manifests,
            into=into,
            folder=folder,
            report=lambda line: print(f"==> {line}", file=sys.stderr, flush=True),
        )
    if as_json:
        data = asdict(rehearsal)
        for resource in data["resources"]:
            del resource["properties"]
        print_json(data)
    else:
        print_text(*account_lines(rehearsal), *_differences(rehearsal))
    disturbed = rehearsal.after_teardown is None or rehearsal.after_teardown.disturbed
    return 1 if rehearsal.not_as_reviewed or disturbed else 0


def in_one_line(rehearsal: Rehearsal) -> str:
    """Return the number of resources by outcome."""
    outcomes = [resource.outcome for resource in rehearsal.resources]
    created = count(outcomes.count("created"), "resource")
    counts = f"{created} created, {outcomes.count('recorded')} without an emulator"
    if "not modelled" in outcomes:
        counts += f", {outcomes.count('not modelled')} not modelled"
    return f"rehearsed {count(len(rehearsal.stacks), 'stack')} against a local AWS: {counts}"


def account_lines(rehearsal: Rehearsal) -> Iterator[str]:
    """Yield the outcomes of each stack's resources, what the account holds afterwards, and what a rehearsal cannot show."""
    yield f"Rehearsal of {count(len(rehearsal.stacks), 'stack')} in {rehearsal.region}: moto on loopback, nothing on AWS."
    for stack in rehearsal.stacks:
        outcomes = [resource.outcome for resource in rehearsal.resources if resource.stack == stack]
        counts = [f"{name} {outcomes.count(name):>3}" for name in _OUTCOMES if name in outcomes]
        yield f"  {textwrap.shorten(stack, 36, placeholder='...'):<36} {', '.join(counts)}"
    if (remains := rehearsal.after_teardown) is not None:
        yield (
            f"{rehearsal.bounded_roles} roles were asked: they have the committed execution policy and boundary, "
            "where docs/pipeline.md puts them."
        )
        yield f"A second deployment changes nothing in {count(rehearsal.unchanged_by_a_second_deployment, 'stack')}."
        disturbed = ", ".join(remains.disturbed) or "all as they were"
        yield f"After the teardown: {remains.before} things were there before the deployment, {disturbed}."
        yield f"Left ({len(remains.left)}):"
        yield from (f"  {name}" for name in remains.left)
    yield "What it cannot show:"
    for label, text in (
        ("no emulator", _counted(rehearsal.types("recorded"))),
        ("not modelled", _counted(rehearsal.types("not modelled"))),
        ("unresolved", "; ".join(rehearsal.unresolved)),
        ("not built", count(len(rehearsal.images_not_built), "container image")),
    ):
        if text:
            yield from wrapped(text, f"  {label:<14}")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _differences(rehearsal: Rehearsal) -> Iterator[str]:
    if not rehearsal.not_as_reviewed:
        yield "What was applied is what was reviewed, but for the placeholders."
    yield from (f"not as reviewed: {line}" for line in rehearsal.not_as_reviewed[:_MAX_DIFFERENCES])
    if (more := len(rehearsal.not_as_reviewed) - _MAX_DIFFERENCES) > 0:
        yield f"and {count(more, 'more difference')}"


def main(arguments: list[str] | None = None) -> int:
    return carried_out(command, arguments, prog="python -m lab.rehearse")


if __name__ == "__main__":
    sys.exit(main())
