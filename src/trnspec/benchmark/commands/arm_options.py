"""The types of options that click does not have, what a user declares about arms, and how options change a plan.

What a plan holds is checked by the plan alone: an option for it only says how the text is read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

import click

from trnspec.benchmark.errors import PlanError
from trnspec.core.files import json_of

if TYPE_CHECKING:
    from trnspec.benchmark.measure.raw_run import RawRun
    from trnspec.benchmark.plan import Plan

MIX = "Your shares of the output tokens, by class (default: equal)."
Decorator = Callable[[Any], Any]
PATH: Any = click.Path(path_type=Path)
_SWITCHES = {"url": "--arm", "max_tokens_per_step": "--speculative-tokens"}
"""Options about arms whose names differ from the field of the plan."""


class Number(click.FloatRange):
    """A number within limits. Click takes NaN too, because it is below no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a number", param, ctx) if math.isnan(number) else number


def read_by(read: Callable[[str], Any]) -> Any:
    """A click type whose values `read` converts. It raises ValueError for others, which says what is wrong."""

    def checked(text: Any) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return click.types.FuncParamType(checked)


def in_json(text: str) -> Any:
    try:
        return json_of(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} is not JSON ({error})") from None


def numbers(text: str) -> Any:
    """Numbers, separated by commas."""
    return in_json(f"[{text}]")


def pair(text: str, read: Callable[[str], Any] = str) -> tuple[str, Any]:
    """`NAME=VALUE`."""
    name, _, value = text.partition("=")
    if not (name and value):
        raise ValueError(f"{shown(text)} is not NAME=VALUE")
    try:
        return name.strip(), read(value)
    except ValueError:
        raise ValueError(f"{shown(value)} of {shown(name)} is not a number") from None


def pairs(text: str) -> dict[str, Any]:
    """`NAME=NUMBER` pairs, separated by commas."""
    return dict(pair(each, float) for each in text.split(","))


def points(text: str) -> dict[int, float]:
    """Seconds per step by window, as in `0=0.045,7=0.0944`."""
    parts = (item.partition("=") for item in text.split(","))
    times = {COUNT.convert(k, None, None): POSITIVE.convert(s, None, None) for k, _, s in parts}
    if 0 not in times or len(times) < 2:
        raise ValueError(f"{text!r} must name plain decoding (0) and a window, for example 0=0.045,7=0.0944")
    return times


def shares(text: str) -> dict[str, float]:
    """Shares by class, as in `chat=3,code=1`; a class may have any name."""
    parts = [item.rpartition("=") for item in text.split(",")]
    if wrong := [weight for _, equals, weight in parts if not equals]:
        raise ValueError(f"{wrong[0]!r} is not CLASS=SHARE")
    return {class_.strip(): POSITIVE.convert(weight, None, None) for class_, _, weight in parts}


def percent(text: str) -> float:
    """A share as in `5%`, from 0 to 100 %."""
    number = text.removesuffix("%")
    try:
        return float(SHARE.convert(float(number) / 100, None, None))
    except (ValueError, click.BadParameter):
        raise ValueError(f"{text!r} is not a share from 0% to 100%, as in 5%") from None


def of_arm(switch: str, metavar: str, read: Callable[[str], Any], help_: str, *names_: str) -> Decorator:
    """An option about one arm, `NAME=VALUE`, which may be repeated."""
    type_ = read_by(partial(pair, read=read))
    return click.option(switch, *names_, type=type_, multiple=True, metavar=f"NAME={metavar}", help=help_)


def about_arms(function: Any) -> Any:
    """The options that declare what an arm is, for a run that was not told."""
    for option in (
        of_arm("--usd-per-hour", "X", float, "The price of an arm's server for an hour."),
        of_arm("--speculative-tokens", "K", int, "Draft tokens of an arm per step; 0: it decodes plainly."),
    ):
        function = option(function)
    return function


POSITIVE, SHARE = Number(1e-9, 1e9), Number(0, 1)
COUNT: Any = click.IntRange(0, 10**9)
NUMBERS, NAMED = read_by(numbers), read_by(pair)


def json_option(help_: str) -> Decorator:
    return click.option("--json", is_flag=True, help=help_)


def folder(metavar: str = "DIR", help_: str = "The folder of a run.", **settings: Any) -> Decorator:
    return click.argument("folder", type=PATH, metavar=metavar, help=help_, **settings)


def of_arms(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The values of the options about arms, by field and name of the arm."""
    return {name: dict(given[name]) for name in ("speculative_tokens", "usd_per_hour")}


def overridden(plan: Plan, of_arms: Mapping[str, Mapping[str, Any]], **settings: Any) -> Plan:
    """The plan with other values: `of_arms` by field and arm, `settings` by field (None keeps the value of the plan).

    Raises PlanError for an unknown arm, and for invalid values.
    """
    from trnspec.benchmark.plan import from_dict

    given = {name: value for name, value in settings.items() if value is not None}
    names = [arm.name for arm in plan.arms]
    for name, by_arm in of_arms.items():
        check_names(_SWITCHES.get(name, f"--{name.replace('_', '-')}"), by_arm, names)
    if "concurrency" in given:  # one kind of load replaces the other
        given["rate"] = []
    content = plan.to_dict() | given
    for arm in content["arms"]:
        arm |= {name: by_arm[arm["name"]] for name, by_arm in of_arms.items() if arm["name"] in by_arm}
    for prompt in content["prompts"]:
        if "max_tokens" in prompt:  # the option also limits the values of single prompts
            prompt["max_tokens"] = min(prompt["max_tokens"], given.get("max_tokens", prompt["max_tokens"]))
    return from_dict(content)


def check_names(option: str, given: Collection[str], names: Collection[str]) -> None:
    """Raises PlanError for a name that the plan does not have."""
    for name in given:
        if name not in names:
            raise PlanError(f"{option}: {name!r} is not in the plan; it has {', '.join(names)}")


def recorded(folder: Path, given: Mapping[str, Any] | None = None) -> RawRun:
    """The run in `folder`, with the options about its arms. By default k drafts yield k + 1 tokens.

    Lines that cannot be used are reported on standard error. Raises ResultsError or PlanError.
    """
    from trnspec.benchmark.measure import journal

    raw, values = journal.read(folder), of_arms(given) if given else {}
    if raw.unusable_lines:
        print(f"{folder}: {raw.unusable_lines}", file=sys.stderr)
    if not any(values.values()):
        return raw
    values["max_tokens_per_step"] = {name: k + 1 for name, k in values["speculative_tokens"].items()}
    return raw.with_plan(overridden(raw.sessions[-1].plan, values))
