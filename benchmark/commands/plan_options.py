"""What options take and how help lists them; what a user declares about arms, and what options change about a plan.

The type, the limits and the words of a value of the plan are those of the plan's own field.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Annotated, Any

import click

from benchmark.errors import PlanError
from core.reading import json_of

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun
    from benchmark.plan import Plan

Read = Callable[[str], Any]
"""What a text says; raises ValueError, with what it must be."""
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Value(click.ParamType[Any]):
    """A value that a function reads."""

    name = "value"

    def __init__(self, read: Read) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):  # the default
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Option(click.Option):
    """An option under a heading of the help."""

    def __init__(self, *args: Any, section: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class Sectioned(click.Command):
    """A command whose help has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def option(
    name: str, read: Read, metavar: str, help_: str, *, section: str = "Options", **settings: Any
) -> Callable[[Any], Any]:
    """An option with a value."""
    return click.option(
        name, cls=_Option, type=Value(read), metavar=metavar, help=help_, section=section, **settings
    )


def flag(name: str, help_: str, *, section: str = "Options") -> Callable[[Any], Any]:
    return click.option(name, cls=_Option, is_flag=True, help=help_, section=section)


def folder(
    name: str = "folder", metavar: str = "DIR", help_: str = "What `run --out` wrote.", **settings: Any
) -> Callable[[Any], Any]:
    """An argument that is a path."""
    path = click.Path(path_type=Path)
    return click.argument(name, type=path, metavar=metavar, help=help_, **settings)


def only_one(options: Mapping[str, Any], *names: str) -> None:
    """Raises UsageError where more than one of these options is given."""
    given = [f"--{name.replace('_', '-')}" for name in names if options[name] is not None]
    if len(given) > 1:
        raise click.UsageError(f"{given[1]}: not allowed with {given[0]}")


def field(name: str, read: Read = str, *, part: str = "Plan") -> Read:
    """Reads a value of a field of the plan, or of one of its parts; `read` comes before the check."""

    def checked(text: str) -> Any:
        from pydantic import TypeAdapter, ValidationError

        from benchmark import plan  # not before a value is given: help needs no pydantic

        known = getattr(plan, part).model_fields[name]
        value: Any = read(text)
        annotation: Any = Annotated[known.annotation, known]
        try:
            return TypeAdapter[Any](annotation).validate_python(value)
        except ValidationError as error:
            raise ValueError(f"{shown(value)} must be {known.description}") from error

    return checked


def number(text: str, least: float = 1e-9, most: float = 1e9, wanted: str = "a number above 0") -> float:
    """A number that sums and ratios of it survive."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ValueError(f"{shown(text)} must be {wanted}, from {least:g} to {most:g}")
    return value


def share(text: str) -> float:
    return number(text, 0, 1, "a share")


def whole(text: str, least: int = 0) -> int:
    """A whole number that is not below `least`."""
    if not (text.isascii() and text.strip().isdecimal()) or len(text) > 20 or int(text) < least:
        raise ValueError(f"{shown(text)} must be a whole number from {least}, of 20 digits at most")
    return int(text)


def seconds(text: str) -> float:
    """A time above 0: plain seconds, or with s, m or h behind it."""
    unit_s = _UNITS_S.get(text[-1:])
    return number(text) if unit_s is None else number(text[:-1]) * unit_s


def listed(text: str) -> list[str]:
    """Names or numbers with commas between them, each once."""
    found = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not found:
        raise ValueError(f"{shown(text)} names nothing; separate several with commas")
    return found


def pair(text: str, read: Read = str) -> tuple[str, Any]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{shown(text)} is not NAME=VALUE")
    return name.strip(), read(value)


def pairs(text: str) -> dict[str, str]:
    """`NAME=VALUE` with commas between them."""
    return dict(map(pair, text.split(",")))


def address(text: str) -> tuple[str, str]:
    """`NAME=URL` of an arm."""
    from benchmark.limits import url_problem

    name, equals, url = text.partition("=")
    if not (name and equals):
        raise ValueError("is not NAME=URL with an http(s) URL")
    if problem := url_problem(url):
        raise ValueError(f"{shown(name)}: {problem}")
    return name, url.rstrip("/")


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json_of(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{shown(text)} is not a JSON object")
    return value


def of_arm(name: str) -> Read:
    """Reads `NAME=VALUE`: an arm, and a value of that field of it."""
    value_of = field(name, part="Arm")
    return lambda text: pair(text, value_of)


_DECLARED = {
    "--speculative-tokens": ("NAME=X", "Draft tokens per step of an arm; 0 decodes plainly."),
    "--tokens-per-step": (
        "NAME=X",
        "The most a step of an arm can yield: k + 1 on vLLM (assumed), k on NxD Inference.",
    ),
    "--usd-per-hour": ("NAME=X", "What an arm's share of its node costs."),
    "--also-changes": (
        "NAME=TEXT",
        "What else is different in an arm's engine, in words; given again, one thing more.",
    ),
}
"""What no endpoint says about itself."""
_FIELDS = {
    "--speculative-tokens": "speculative_tokens",
    "--tokens-per-step": "max_tokens_per_step",
    "--usd-per-hour": "usd_per_hour",
}
_READ = {name: of_arm(field_) for name, field_ in _FIELDS.items()} | {"--also-changes": pair}
_OPTIONS = {field_: name for name, field_ in _FIELDS.items()} | {
    "url": "--arm",
    "also_changes": "--also-changes",
}


def rows(
    section: str, table: Mapping[str, tuple[str, str]], read: Mapping[str, Read]
) -> Callable[[Any], Any]:
    """A heading of the help with its options, each with the word for its value and its text. Without such a word it is a flag; one
    that begins with NAME= is about an arm, and the option can be given again.

    A value is read by `read`, or as the field of the plan that is called like the option.
    """

    def add(function: Any) -> Any:
        for name, (metavar, help_) in reversed([*table.items()]):
            if metavar:
                value_of = read.get(name) or field(name[2:].replace("-", "_"))
                several = metavar.startswith("NAME=")
                made = option(name, value_of, metavar, help_, section=section, multiple=several)
            else:
                made = flag(name, help_, section=section)
            function = made(function)
        return function

    return add


def declared(section: str) -> Callable[[Any], Any]:
    """The options about arms, under a heading."""
    return rows(section, _DECLARED, _READ)


def of_arms(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the options about arms say, by the field of an arm and its name."""
    texts: dict[str, list[str]] = {}
    for name, text in options["also_changes"]:
        texts.setdefault(name, []).append(text)
    values = {field_: dict(options[name[2:].replace("-", "_")]) for name, field_ in _FIELDS.items()}
    return values | {"also_changes": texts}


def overridden(
    plan: Plan,
    of_arms: Mapping[str, Mapping[str, Any]],
    *,
    classes: Collection[str] | None = None,
    **settings: Any,
) -> Plan:
    """The plan with other values: `of_arms` by field and arm, `settings` by field, where None leaves the plan's.

    Raises PlanError for an arm or a class that it does not have, and for values that no plan may have.
    """
    from benchmark.plan import from_dict

    given = {field: value for field, value in settings.items() if value is not None}
    names = [arm.name for arm in plan.arms]
    for name, by_arm in of_arms.items():
        _known(_OPTIONS[name], by_arm, names)
    _known("--baseline", [given["baseline"]] if "baseline" in given else (), names)
    _known("--classes", classes or (), plan.classes)
    if "concurrency" in given:  # the one kind of load replaces the other
        given["rate"] = []
    if "duration_s" in given:  # and a duration a number of rounds
        given["rounds"] = 1
    elif "rounds" in given:
        given["duration_s"] = None
    content = plan.to_dict() | given
    for arm in content["arms"]:
        said = {name: by_arm[arm["name"]] for name, by_arm in of_arms.items() if arm["name"] in by_arm}
        if texts := said.pop("also_changes", None):
            arm["also_changes"] = list(dict.fromkeys([*arm.get("also_changes", ()), *texts]))
        arm |= said
    content["prompts"] = [one for one in content["prompts"] if not classes or one["class"] in classes]
    if plan.replayed and "requests" not in given:
        content["requests"] = len(content["prompts"])
    for prompt in content["prompts"]:
        if "max_tokens" in prompt:  # the option is also the ceiling of what single prompts ask for
            prompt["max_tokens"] = min(prompt["max_tokens"], given.get("max_tokens", prompt["max_tokens"]))
    return from_dict(content)


def _known(option: str, given: Collection[str], names: Collection[str]) -> None:
    for name in given:
        if name not in names:
            raise PlanError(f"{option}: {name!r} is not in the plan; it has {', '.join(names)}")


def recorded(folder: Path, options: Mapping[str, Any] | None = None) -> RawRun:
    """The run in `folder`, with what options declare about its arms; k drafts yield k + 1 tokens unless they say otherwise.

    Which lines of it cannot be used is said on standard error. Raises ResultsError or PlanError.
    """
    from benchmark.measure import journal

    raw, values = journal.read(folder), of_arms(options) if options else {}
    if raw.left_out:
        print(f"{folder}: {raw.left_out}", file=sys.stderr)
    if not any(values.values()):
        return raw
    assumed = {name: k + 1 for name, k in values["speculative_tokens"].items()}
    values["max_tokens_per_step"] = assumed | values["max_tokens_per_step"]
    return raw.with_plan(overridden(raw.sittings[-1].plan, values))
