"""Check an experiment or a file of prompts: show what it holds, or list all its problems. No checkout is needed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import click

from trnspec.core.command_line import SETTINGS, carried_out
from trnspec.core.console import print_json, print_table, print_text
from trnspec.core.findings import Misuse
from trnspec.core.words import count
from trnspec.experiment import load
from trnspec.experiment.description import as_json, as_text
from trnspec.experiment.model import Benchmark, PromptsSection
from trnspec.experiment.prompts import Prompt, read_prompts

_YAML = {".yaml", ".yml"}


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m trnspec.experiment") -> int:
    """Return exit code 0 for a file that can work, 2 for one that cannot."""
    return carried_out(door, arguments, prog=prog)


@click.group(help=__doc__, context_settings=dict(SETTINGS))
def door() -> None:
    """The group of the verbs."""


@door.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "machine", is_flag=True, help="Print JSON, errors included.")
def check(path: Path, machine: bool) -> int:
    """Check an experiment (.yaml) or a file of prompts (exit 2: it cannot work)."""
    return checked(path, machine)


def checked(file: Path, machine: bool) -> int:
    """Print what the file holds, or its problems; return the exit code. A file that is not named `.yaml` or `.yml` holds prompts."""
    try:
        if file.suffix.lower() in _YAML or not file.is_file():
            experiment = load(file)
            print_json(as_json(experiment)) if machine else print(as_text(experiment))
        else:
            _prompts(file, machine)
    except Misuse as error:
        if machine:
            print_json({"valid": False, "problems": error.as_json()})
        else:
            print(error, file=sys.stderr)
            print(count(len(error.findings), "problem"), file=sys.stderr)
        return error.exit_code
    return 0


def _prompts(file: Path, machine: bool) -> None:
    """Print what a file of prompts holds. Raises `Misuse` with what is refused, after what can be used was printed."""
    prompts, problems, form = read_prompts(PromptsSection(file=file.name), Benchmark(), file.parent)
    refused = [replace(one, where=str(one.value or file.name), value=None) for one in problems]
    classes = [*_by_class(prompts)]
    if machine and not refused:
        print_json({"valid": True, "prompts": len(prompts), "format": form, "classes": classes})
    elif form and not machine:
        print_text(
            f"{file.name}: {count(len(prompts), 'prompt')} of {count(len(classes), 'class')}, {form}", ""
        )
        print_table(
            ("class", "prompts", "longest prompt", "its tokens"),
            [tuple(map(str, one.values())) for one in classes],
        )
    if refused:
        raise Misuse(*refused)
    if not machine:
        print(f"\nnext: ./trnspec new NAME --prompts {quote(str(file))}")  # one line, to be pasted


def _by_class(prompts: Sequence[Prompt]) -> Iterator[dict[str, Any]]:
    for name, number in sorted(Counter(prompt.class_name for prompt in prompts).items()):
        own = (prompt for prompt in prompts if prompt.class_name == name)
        longest = max(own, key=lambda prompt: prompt.likely_tokens)
        tokens = longest.tokens or f"about {longest.likely_tokens}, at most {longest.max_prompt_tokens}"
        yield {"class": name, "prompts": number, "longest": longest.id, "tokens": tokens}


if __name__ == "__main__":
    sys.exit(main())
