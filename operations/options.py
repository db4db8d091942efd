"""Options that verbs share, and the experiment that they name."""

from __future__ import annotations

import argparse
import json
import math
import os
from glob import glob
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from experiment import Experiment, load
from experiment.finding import Misuse

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "experiments"
REFERENCE = FILES / "qwen3-32b.yaml"
GIVEN = "TRNSPEC_EXPERIMENT"
"""Names another experiment than the reference, for every verb that is given none."""


def _chosen(ctx: click.Context, _param: click.Parameter, given: str | tuple[str, ...] | None) -> Path:
    """The file that was named, as the first of several words too."""
    words = (given,) if isinstance(given, str) else given or ()
    if len(words) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({words[1]})", ctx)
    return Path(words[0] if words else os.environ.get(GIVEN) or REFERENCE)


def yaml_files(incomplete: str) -> list[CompletionItem]:
    """For the completion of a shell: folders, YAML files, and those that the checkout brings."""
    here = {*glob(f"{incomplete}*.yaml"), *glob(f"{incomplete}*.yml")}
    ours = {os.path.relpath(path) for path in FILES.glob("*.yaml")}
    found = here | {path for path in ours if path.startswith(incomplete)}
    return [CompletionItem(incomplete, type="dir"), *map(CompletionItem, sorted(found))]


_ARGUMENT: dict[str, Any] = {
    "metavar": "[EXPERIMENT]",
    "callback": _chosen,
    "shell_complete": lambda _ctx, _param, incomplete: yaml_files(incomplete),
}
experiment_argument = click.argument("path", required=False, **_ARGUMENT)
experiment_before = click.argument("path", nargs=-1, **_ARGUMENT)
"""The same where another argument stands behind it."""
json_option = click.option("--json", "as_json", is_flag=True, help="The same for a machine.")


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Which experiment, in whose account."""
    parser.add_argument(
        "--experiment",
        type=Path,
        default=REFERENCE,
        metavar="FILE",
        help="default: experiments/qwen3-32b.yaml",
    )
    add_account(parser)


def add_account(parser: argparse.ArgumentParser) -> None:
    """Guard against the wrong credentials, and output for machines."""
    parser.add_argument(
        "--account", type=account, metavar="ID", help="refuse credentials of any other account"
    )
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option that every verb has."""
    parser.add_argument("--json", action="store_true", help="the same for a machine")


def experiment_of(path: Path, *, verb: str) -> Experiment:
    """The experiment, which must be one that AWS can hold.

    Raises `InvalidExperiment` and, for experiments of the lab, `Misuse`.
    """
    experiment = load(path)
    local = sorted({arm.runtime.name for arm in experiment.arms if arm.runtime.lab_only})
    if local:
        raise Misuse(
            f"{path}: {experiment.name} runs on {', '.join(local)}, which exists in the lab only, so there is nothing to "
            f"{verb} on AWS; run scripts/lab, or name another --experiment"
        )
    return experiment


def account(text: str) -> str:
    """Twelve digits."""
    if len(text) != 12 or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no account id of twelve digits")
    return text


def whole(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def hours(text: str) -> float:
    """A time in hours, above 0 and at most a week."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 168:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours above 0 and up to 168")
    return value


def as_json(value: Any) -> str:
    """JSON as every verb prints it."""
    return json.dumps(value, indent=2)
