"""The options that several verbs share, and the experiment that a command line names."""

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
"""The environment variable with the experiment of a verb that is given none."""
MOST_HOURS = 168
"""A week."""


def chosen(ctx: click.Context, _param: click.Parameter | None, given: str | tuple[str, ...] | None) -> Path:
    """Return the file that was named, if only once."""
    words = (given,) if isinstance(given, str) else given or ()
    if len(words) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({words[1]})", ctx)
    return Path(words[0] if words else os.environ.get(GIVEN) or REFERENCE)


def experiments(incomplete: str) -> list[CompletionItem]:
    """Complete folders and experiment files; those of the checkout also by their names."""
    here = {path for end in ("yaml", "yml") for path in glob(f"{incomplete}*.{end}") if _is_experiment(path)}
    ours = {os.path.relpath(path): path.stem for path in FILES.glob("*.yaml")}
    here |= {
        path for path, name in ours.items() if path.startswith(incomplete) or name.startswith(incomplete)
    }
    return [CompletionItem(incomplete, type="dir"), *map(CompletionItem, sorted(here))]


def _is_experiment(path: str) -> bool:
    """Return whether the file has the key `target`: a folder has other YAML files as well."""
    with suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        return any(line.startswith("target:") for line in islice(file, 200))
    return False


def arms(path: Path, incomplete: str) -> list[CompletionItem]:
    """Complete the arms of an experiment that can work; none of another file."""
    with suppress(Refusal):
        return [CompletionItem(arm.name) for arm in load(path).arms if arm.name.startswith(incomplete)]
    return []


def _first(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an experiment; if the verb takes an arm after it, also the arms of the named experiment."""
    typed = str(ctx.params.get("arm") or "")  # a single word is the last argument, also where it is a file
    path = chosen(ctx, None, typed if typed.endswith((".yaml", ".yml")) else None)
    named = arms(path, incomplete) if any(one.name == "arm" for one in ctx.command.params) else []
    return [*named, *experiments(incomplete)]


def _number(most: float, what: str = "a number") -> Any:
    """Return the type of a number above 0; not NaN, which is below no limit."""

    def read(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise click.BadParameter(f"{text!r} is not {what} above 0 and up to {most:g}")
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
HOURS = _number(MOST_HOURS, "a number of hours")
USD = _number(1_000_000)
WAITING: Any = click.types.FuncParamType(_waiting)
"""Hours, from a time with its unit."""
manifests_option = click.option("--manifests", type=FILE, default=ROOT / "manifests", hidden=True)


def with_experiment(function: Callable[..., int]) -> click.Command:
    """Make a verb that takes an experiment as its first argument, and --json."""
    arguments = [one for one in getattr(function, "__click_params__", ()) if isinstance(one, click.Argument)]
    which = _before if arguments else experiment_argument  # the last word is the other argument
    command = click.command()(which(json_option(function)))
    command.params.sort(key=lambda one: one.name == "as_json")  # after the options of the verb
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
