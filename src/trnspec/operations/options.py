"""What command lines of verbs share, and the experiment that they name."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from trnspec.core.checkout import ROOT
from trnspec.core.findings import Refusal
from trnspec.experiment import load

FILES = ROOT / "experiments"
REFERENCE = FILES / "qwen3-32b.yaml"
GIVEN = "TRNSPEC_EXPERIMENT"
"""Names another experiment than the reference, for every verb that is given none."""
MOST_HOURS = 168
"""A week."""


def chosen(ctx: click.Context, _param: click.Parameter | None, given: str | tuple[str, ...] | None) -> Path:
    """The file that was named, if only once."""
    words = (given,) if isinstance(given, str) else given or ()
    if len(words) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({words[1]})", ctx)
    return Path(words[0] if words else os.environ.get(GIVEN) or REFERENCE)


def experiments(incomplete: str) -> list[CompletionItem]:
    """For the completion of a shell: folders and experiment files, those of the checkout by their names too."""
    here = {path for end in ("yaml", "yml") for path in glob(f"{incomplete}*.{end}") if _is_experiment(path)}
    ours = {os.path.relpath(path): path.stem for path in FILES.glob("*.yaml")}
    here |= {
        path for path, name in ours.items() if path.startswith(incomplete) or name.startswith(incomplete)
    }
    return [CompletionItem(incomplete, type="dir"), *map(CompletionItem, sorted(here))]


def _is_experiment(path: str) -> bool:
    """Whether it has the key `target`, since a folder has other YAML files as well."""
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        return any(line.startswith("target:") for line in islice(file, 200))
    return False


def arms(path: Path, incomplete: str) -> list[CompletionItem]:
    """The arms of an experiment that can work; none of another file."""
    with suppress(Refusal):
        return [CompletionItem(arm.name) for arm in load(path).arms if arm.name.startswith(incomplete)]
    return []


def _first(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """An experiment; where the verb takes an arm behind it, also the arms of the one that was named."""
    typed = str(ctx.params.get("arm") or "")  # a single word is the last argument, also where it is a file
    path = chosen(ctx, None, typed if typed.endswith((".yaml", ".yml")) else None)
    named = arms(path, incomplete) if any(one.name == "arm" for one in ctx.command.params) else []
    return [*named, *experiments(incomplete)]


def _hours(text: str | float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST_HOURS:
        raise click.BadParameter(f"{text!r} is not a number of hours above 0 and up to {MOST_HOURS}")
    return value


def _number(most: float) -> Any:
    """A number above 0; not NaN, which is below no limit."""

    def read(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise click.BadParameter(f"{text!r} is not a number above 0 and up to {most:g}")
        return value

    return click.types.FuncParamType(read)


def _waiting(text: str) -> float:
    if (
        not re.fullmatch(r"[1-9][0-9]{0,99}[smh]", text)
        or (hours := int(text[:-1]) / {"s": 3600, "m": 60, "h": 1}[text[-1]]) > MOST_HOURS
    ):
        raise click.BadParameter(f"{text!r} is not a time like 90m or 12h, of a week at most")
    return hours


_ARGUMENT: dict[str, Any] = {
    "metavar": "[EXPERIMENT]",
    "callback": chosen,
    "shell_complete": _first,
}
experiment_argument = click.argument("path", required=False, **_ARGUMENT)
_before = click.argument("path", nargs=-1, **_ARGUMENT)
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, errors included.")
FILE: Any = click.Path(path_type=Path)
HOURS: Any = click.types.FuncParamType(_hours)
USD = _number(1_000_000)
WAITING: Any = click.types.FuncParamType(_waiting)
"""Hours, from a time with its unit."""
manifests_option = click.option("--manifests", type=FILE, default=ROOT / "manifests", hidden=True)


def with_experiment(function: Callable[..., int]) -> click.Command:
    """A verb that takes an experiment, first, and --json."""
    arguments = [one for one in getattr(function, "__click_params__", ()) if isinstance(one, click.Argument)]
    which = _before if arguments else experiment_argument  # the last word is the other argument
    command = click.command()(which(json_option(function)))
    command.params.sort(key=lambda one: one.name == "as_json")  # behind what the verb has of its own
    return command


@click.command()
@experiment_argument
@json_option
def check(path: Path, as_json: bool) -> int:
    """Check an experiment (.yaml) or a file of prompts: say what it holds, or everything that is wrong with it (exit 2).

    Prompts are read in the formats that `new --prompts` takes.
    """
    from trnspec.experiment.__main__ import checked

    return checked(path, as_json)
