"""`demo`: the whole experiment on this machine, emulated."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trnspec.core.checkout import ROOT
from trnspec.core.console import print_json, warn
from trnspec.core.screen import folded, pasted
from trnspec.operations.options import FILE, REFERENCE, experiment_argument, json_option

if TYPE_CHECKING:
    from trnspec.lab.demo import Demonstration


@click.command()
@experiment_argument
@click.option(
    "--out",
    type=FILE,
    default=lambda: ROOT / "results" / datetime.now(UTC).strftime("demo-%Y%m%dT%H%M%SZ"),
    metavar="DIR",
    help="Folder for the results (default: results/demo-<time>).",
)
@json_option
@click.option("--verbose", is_flag=True, help="Also list what the rehearsal did with each stack.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=32,
    metavar="N",
    help="Maximum tokens of an answer (default 32). An emulated token takes as long as a real one.",
)
def command(path: Path, out: Path, as_json: bool, verbose: bool, max_tokens: int) -> int:
    """Run the whole experiment on this machine, emulated, in about three minutes: stacks, endpoints, load, answer."""
    # moto cannot be imported with an unknown one, and nothing here may use one
    os.environ.pop("AWS_PROFILE", None)
    from trnspec.lab.demo import Stages, demonstrate

    stages = Stages()
    try:
        out.mkdir(parents=True, exist_ok=True)
        demonstration = demonstrate(path, out=out.resolve(), max_tokens=max_tokens, stages=stages)
    except KeyboardInterrupt:
        kept = f"; what was measured is in {out}" if (out / "requests.jsonl").exists() else ""
        warn(f"interrupted, servers are stopped{kept}")
        return 130
    rehearsal, result = demonstration.rehearsal, demonstration.result
    answer = {
        "schema": 1,
        "experiment": pasted(path),
        "provenance": result.run.provenance,
        "question": result.question,
        "sentence": result.sentence,
        "rehearsal": {
            "stacks": list(rehearsal.stacks),
            "resources": Counter(resource.outcome for resource in rehearsal.resources),
        },
        "on_aws": {
            "trn2_hours": round(demonstration.trn2_hours, 2),
            "ways": demonstration.ways,
            "rates_as_of": demonstration.rates_as_of,
        },
        "results": pasted(out),
        "report": pasted(out / "report.html"),
        "next": next_command(path),
    }
    if as_json:
        print_json(answer | {"stages": stages.finished})
    else:
        print("\n".join(as_lines(demonstration, answer, inventory=verbose)))
    return 0


def next_command(path: Path) -> str:
    """Return the command that follows: an experiment of the user's own, or its forecast."""
    if path.resolve() == REFERENCE:
        return "./trnspec new mine --prompts FILE"
    return f"./trnspec forecast {pasted(path)}"


def as_lines(demonstration: Demonstration, answer: Mapping[str, Any], *, inventory: bool) -> Iterator[str]:
    """Yield the answer as lines; with `inventory`, after the rehearsed stacks."""
    from trnspec.benchmark.show.report_templates import render
    from trnspec.lab.aws.rehearsal import account_lines

    if inventory:
        yield from ("", *account_lines(demonstration.rehearsal))
    yield from ("", render(demonstration.result), "")
    if demonstration.step:
        yield from folded([f"Emulated   {demonstration.step}"])
    on_aws = "{trn2_hours:.1f} predicted Trn2 hours, rates of {rates_as_of}: {ways}"
    yield from folded([f"On AWS     {on_aws.format(**answer['on_aws'])}"])
    yield f"Report     {answer['report']}"
    yield f"Next       {answer['next']}"
