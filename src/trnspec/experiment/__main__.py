"""`python -m trnspec.experiment check FILE`: what an experiment file resolves to, or everything that is wrong with it; `prompts`: a file of
prompts as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trnspec.benchmark.prompt_files import as_line, read_file, texts_of
from trnspec.core.command_line import SETTINGS, carried_out
from trnspec.core.findings import Misuse
from trnspec.core.words import count
from trnspec.experiment import InvalidExperiment, load
from trnspec.experiment.description import as_json, as_text
from trnspec.experiment.prompts import counter

_FILE: Any = click.Path(path_type=Path)
_json = click.option("--json", "machine", is_flag=True, help="The same for a machine.")


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m trnspec.experiment") -> int:
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
@click.argument("file", type=_FILE)
@click.option(
    "--tokenizer", type=_FILE, metavar="FILE", help="The target's tokenizer.json, which counts `tokens`."
)
def prompts(file: Path, tokenizer: Path | None) -> None:
    """Print a file of prompts in any known format as JSON lines of our own."""
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
