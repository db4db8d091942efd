"""`python -m experiment check FILE`: what an experiment file resolves to, or everything that is wrong with it; `published`: what
others have measured on Trainium2; `step`: what that predicts for one engine; `prompts`: a file of prompts as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from core.command_line import SETTINGS, carried_out
from core.console import print_text
from core.findings import Misuse
from core.words import count
from experiment import InvalidExperiment, expected, load, step_time
from experiment.description import as_json, as_text
from experiment.prompts import counter

_FILE: Any = click.Path(path_type=Path)
_json = click.option("--json", "machine", is_flag=True, help="The same for a machine.")


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m experiment") -> int:
    """Exit 0 for a file that can work, 2 for one that cannot."""
    return carried_out(door, arguments, prog=prog)


@click.group(help=__doc__, context_settings=dict(SETTINGS))
def door() -> None:
    """The group of the verbs."""


@door.command()
@click.argument("file", type=_FILE)
@_json
def check(file: Path, machine: bool) -> int:
    """Resolve a file, or list its problems (exit 2)."""
    return checked(file, machine)


def checked(file: Path, machine: bool) -> int:
    """Print what a file resolves to, or its problems; the exit code."""
    try:
        experiment = load(file)
    except InvalidExperiment as error:
        if machine:
            print(json.dumps({"valid": False, "problems": error.as_json()}, indent=2))
        else:
            print(error, file=sys.stderr)
            print(f"{count(len(error.findings), 'problem')}, nothing was written", file=sys.stderr)
        return 2
    print(json.dumps(as_json(experiment), indent=2) if machine else as_text(experiment))
    return 0


@door.command()
@_json
def published(machine: bool) -> None:
    """Print published results of decoding on Trainium2, and what forecasts make of them."""
    if machine:
        print(json.dumps(step_time.ledger(), indent=2))
    else:
        print_text(*step_time.ledger_lines())


@door.command()
@click.option(
    "--model",
    required=True,
    metavar="NAME|FILE",
    help="A model of the catalogue or of the published results, or its config.json.",
)
@click.option(
    "--tensor-parallel", type=click.IntRange(1, 64), required=True, metavar="N", help="Logical NeuronCores."
)
@click.option("--logical-nc-config", type=click.Choice([1, 2]), default=2, help="Cores in a logical one.")
@click.option(
    "--batch", type=click.IntRange(1, 4096), default=1, metavar="N", help="Sequences compiled into a step."
)
@click.option(
    "--tokens",
    type=click.IntRange(1, 1_000_000),
    required=True,
    metavar="N",
    help="Context compiled into a step.",
)
@click.option(
    "--handicap", type=click.Choice(sorted(step_time.BEYOND)), help="What is known to slow the engine down."
)
@click.option(
    "--mode", type=click.Choice(["fused", "eagle", "eagle3", "medusa", "dflash"]), help="How it drafts."
)
@click.option("--draft", metavar="NAME|FILE", help="The draft model of mode fused.")
@click.option(
    "--window",
    type=click.IntRange(1, 1000),
    default=7,
    metavar="N",
    help="Tokens drafted a step (default 7).",
)
@click.option(
    "--at-once", type=click.IntRange(1, 4096), default=1, metavar="N", help="Concurrent requests (default 1)."
)
@_json
def step(
    model: str,
    tensor_parallel: int,
    logical_nc_config: int,
    batch: int,
    tokens: int,
    machine: bool,
    draft: str | None,
    **drafting: Any,
) -> None:
    """Say what published results predict for one engine."""
    if drafting["mode"] and drafting["at_once"] > batch:
        raise Misuse(f"--at-once {drafting['at_once']}: a step of --batch {batch} takes no more than that")
    if drafting["mode"] == "fused" and draft is None:
        raise Misuse("--mode fused: needs --draft, whose passes are part of a step")
    own = step_time.PlainEngine(
        shape=expected.shape_of(model, "--model"),
        chips=tensor_parallel * logical_nc_config / 8,
        batch=batch,
        compiled_tokens=tokens,
    )
    drafts = expected.shape_of(draft, "--draft") if draft else None
    plain, drafted = expected.step(own, draft=drafts, **drafting)
    if machine:
        print(json.dumps({"origin": "predicted", "plain": vars(plain), "drafted": drafted and vars(drafted)}))
    else:
        print_text(*expected.step_lines(plain, drafted))


@door.command()
@click.argument("file", type=_FILE)
@click.option(
    "--tokenizer", type=_FILE, metavar="FILE", help="The target's tokenizer.json, which counts `tokens`."
)
def prompts(file: Path, tokenizer: Path | None) -> None:
    """Print a file of prompts in any known format as JSON lines of our own."""
    from benchmark.prompt_files import as_line, read_file, texts_of  # `check` starts without it

    tokens_of = counter(tokenizer) if tokenizer else None
    read = read_file(file, name=file.name)
    if read.problems:
        raise Misuse(*(replace(one, where=str(one.value), value=None) for one in read.problems))
    lines = [content for _, content in read.lines]
    if tokens_of:
        lines = [line | {"tokens": max(1, sum(map(tokens_of, texts_of(line))))} for line in lines]
    print(f"{file.name}: {count(len(lines), 'prompt')}, {read.format}", file=sys.stderr)
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(encoding="utf-8")  # as a file is, whatever the terminal's encoding
    print("\n".join(map(as_line, lines)))


if __name__ == "__main__":
    sys.exit(main())
