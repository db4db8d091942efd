"""`new`: write an experiment file for a model and its prompts that passes every check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from trnspec.benchmark.prompt_files import ALL_FORMATS
from trnspec.core.checkout import is_checkout, require_checkout
from trnspec.core.console import print_json, print_table, print_text, warn
from trnspec.core.files import write_whole
from trnspec.core.findings import Misuse
from trnspec.core.screen import pasted, wrapped
from trnspec.experiment.catalogue.published import TARGET
from trnspec.experiment.header import headers, price_classes
from trnspec.experiment.starter import compose
from trnspec.operations.options import FILE, FILES, json_option


@click.command()
@click.argument("name", required=False)
@click.option("--prompts", type=FILE, metavar="FILE", help=f"{ALL_FORMATS} (default: prompts/general.jsonl).")
@click.option("--ignore", multiple=True, metavar="KEY", help="Do not send this key of the prompts.")
@click.option("--model", default=TARGET, metavar="ID", help=f"The model to serve (default: {TARGET}).")
@click.option("--like", metavar="ID", help="For a fine-tune: the model of the catalogue with the same shape.")
@click.option("--draft", metavar="ID", help="The head or small model that drafts (default: one that fits).")
@click.option("--mode", metavar="MODE", help="fused, eagle, eagle3 or dflash (default: the one that fits).")
@click.option("--runtime", metavar="NAME", help="Image of the servers (default: one that AWS supports).")
@click.option(
    "--out", type=FILE, metavar="FILE", help="File to write (default: NAME.yaml in the nearest experiments/)."
)
@click.option("--list", "listing", is_flag=True, help="List the shipped experiments and write nothing.")
@json_option
def command(
    name: str | None, prompts: Path | None, out: Path | None, listing: bool, as_json: bool, **choices: Any
) -> int:
    """Write an experiment called NAME that passes `check`, and say what was chosen.

    The file goes into the nearest folder experiments/, here or above, or else into this folder.
    """
    if listing:
        return _list(as_json)
    if name is None:
        raise click.UsageError("Missing argument 'NAME'; --list shows the experiments to start from.")
    path = out or _experiments() / f"{name}.yaml"
    folder = path.resolve().parent
    if not folder.is_dir():
        raise Misuse(f"{path}: there is no folder {folder}; make it, or choose another NAME or --out")
    asked = prompts or _shared(folder, "prompts/general.jsonl")
    if asked is None or not asked.is_file():
        raise Misuse(
            f"--prompts: {asked or 'experiments/prompts/general.jsonl'} is not a file; give a file of prompts"
        )
    started = compose(name, prompts=asked.resolve(), folder=folder, **choices)
    schema = _shared(folder, "experiment.schema.json")
    first = f"# yaml-language-server: $schema=./{os.path.relpath(schema, folder)}\n" if schema else ""
    try:
        write_whole(path, first + started.text, new=True)
    except OSError as error:
        raise Misuse(f"{path}: cannot be written ({error.strerror}); choose another NAME, or --out") from None
    if problem := _unknown_roles(name):
        warn(problem)
    verbs = ("check", "forecast", "demo" if started.emulated else "preflight")
    then = [f"./trnspec {verb} {pasted(path)}" for verb in verbs]
    if as_json:
        print_json({"path": str(path), "why": started.why, "chosen": started.chosen, "next": then})
        return 0
    print(f"wrote {path}\n")
    print("\n".join(wrapped(started.why)), end="\n\n")
    print_table(("chosen", ""), [*started.chosen.items()])
    print("\nnext:", "\nthen: ".join(then))
    return 0


def _list(as_json: bool) -> int:
    """Print the head of each experiment in the nearest experiments/, else in the checkout."""
    folder = next((one for one in (_experiments(), FILES) if headers(one)), FILES)
    found = {os.path.relpath(path): vars(header) for path, header in headers(folder).items()}
    if as_json:
        print_json([{"path": path, **header} for path, header in found.items()])
        return 0
    columns = ("answers", "hardware", "hours", "price", "difficulty")
    rows = [(Path(path).stem, *(header[name] for name in columns)) for path, header in found.items()]
    print_table(("name", *columns), rows)
    print_text(
        "",
        f"The files are {os.path.relpath(folder)}/NAME.yaml. Hours: predicted Trn2 hours of a first run. Price of the run: "
        f"{price_classes()}.",
    )
    return 0


def _unknown_roles(name: str) -> str:
    """Return one line if the bootstrap's committed policy does not let CloudFormation make this experiment's roles."""
    if not is_checkout():
        return ""
    require_checkout("trnspec new")
    from infra.pipeline.pipeline_file import unknown_roles

    problem = unknown_roles(name)
    return f"to deploy {name}: {problem.line()}" if problem else ""


def _experiments() -> Path:
    """Return the nearest folder of that name, or the current one."""
    here = Path.cwd()
    nearest = next((parent for parent in (here, *here.parents) if (parent / "experiments").is_dir()), None)
    return Path(os.path.relpath(nearest / "experiments")) if nearest else Path()


def _shared(folder: Path, name: str) -> Path | None:
    """Return a file that experiments share: in this folder, or in the checkout."""
    return next((path for path in (folder / name, FILES / name) if path.is_file()), None)
