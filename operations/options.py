"""What command lines of verbs share, and the experiment that they name."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
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


def chosen(ctx: click.Context, _param: click.Parameter | None, given: str | tuple[str, ...] | None) -> Path:
    """The file that was named, if only once."""
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


def _hours(text: str | float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 168:
        raise click.BadParameter(f"{text!r} is not a number of hours above 0 and up to 168")
    return value


def _account(text: str) -> str:
    if len(text) != 12 or not text.isdecimal():
        raise click.BadParameter(f"{text!r} is not an account id of twelve digits")
    return text


_ARGUMENT: dict[str, Any] = {
    "metavar": "[EXPERIMENT]",
    "callback": chosen,
    "shell_complete": lambda _ctx, _param, incomplete: yaml_files(incomplete),
}
experiment_argument = click.argument("path", required=False, **_ARGUMENT)
_before = click.argument("path", nargs=-1, **_ARGUMENT)
account_option = click.option(
    "--account", type=_account, metavar="ID", help="Refuse credentials of any other account."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, change nothing.")
json_option = click.option("--json", "as_json", is_flag=True, help="The same for a machine, problems too.")
FILE: Any = click.Path(path_type=Path)
HOURS: Any = click.types.FuncParamType(_hours)
manifests_option = click.option(
    "--manifests", type=FILE, default=ROOT / "manifests", metavar="DIR", help="Default: manifests/."
)


def on_aws(function: Callable[..., int]) -> click.Command:
    """A verb that takes an experiment, first, an account that credentials must be of, and --json."""
    arguments = [one for one in getattr(function, "__click_params__", ()) if isinstance(one, click.Argument)]
    which = _before if arguments else experiment_argument  # the last word is the other argument
    command = click.command()(which(account_option(json_option(function))))
    common = ("account", "as_json")  # behind what the verb has of its own
    command.params.sort(key=lambda one: one.name in common)
    return command


def experiment_of(path: Path, *, verb: str) -> Experiment:
    """The experiment, which must be one that AWS can hold.

    Raises `InvalidExperiment` and, for experiments of the lab, `Misuse`.
    """
    experiment = load(path)
    local = sorted({arm.runtime.name for arm in experiment.arms if arm.runtime.lab_only})
    if local:
        raise Misuse(
            f"{path}: {experiment.name} runs on {', '.join(local)}, which exists in the lab only, so there is nothing to "
            f"{verb} on AWS; run ./trnspec lab {path}, or name another experiment"
        )
    return experiment
