"""The values of options and their help; what a user declares about arms, and how options change a plan.

`options.toml` has the options of each verb. An option for a field of the plan has the type, the limits and the description of that
field.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Annotated, Any

import click

from trnspec.benchmark.errors import PlanError
from trnspec.core.files import json_of

if TYPE_CHECKING:
    from trnspec.benchmark.measure.journal import RawRun
    from trnspec.benchmark.plan import Plan

Read = Callable[[str], Any]
"""Converts the text of an option to its value; raises ValueError with what is required."""
Decorator = Callable[[Any], Any]
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_FIELDS = {
    "--arm": "url",
    "--node": "nodes",
    "--name": "experiment",
    "--tokens-per-step": "max_tokens_per_step",
}
"""Fields of the plan, or of an arm, with an option of another name."""
_OF_ARMS = ("speculative_tokens", "max_tokens_per_step", "usd_per_hour", "also_changes")


class Value(click.ParamType[Any]):
    """A click type whose values are converted by a function."""

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


class _Sectioned(click.Command):
    """A command whose help lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headings = {typed.split()[0]: heading for heading, typed, _ in _listed_options(str(self.name))}
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections.setdefault(headings.get(param.opts[0], "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


@cache
def _texts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("options.toml").read_text(encoding="utf-8"))


def _listed_options(verb: str) -> Iterator[tuple[str, str, str]]:
    """For each option: the heading, the option as it is typed, and its help text."""
    for section, rows in _texts()[verb].items():
        for typed, text in rows.items():
            yield from (
                (section, *row) for row in (_texts()["Arms"].items() if typed == "Arms" else [(typed, text)])
            )


def verb(name: str, *, epilog: str | None = None, **values: Read | Mapping[str, Any]) -> Decorator:
    """A command with its options from `options.toml`. `values` has, for options that are neither plain text nor a field of the plan, a
    function that reads the value, or a mapping of click settings, which may have `read`."""

    def command(function: Any) -> Any:
        for section, typed, text in reversed([*_listed_options(name)]):
            switch, _, metavar = typed.partition(" ")
            field_name = _FIELDS.get(switch, switch[2:].replace("-", "_"))
            given = values.get(field_name, {})
            settings: dict[str, Any] = {"read": given} if callable(given) else {**given}
            read: Read = settings.pop("read", str)
            if "NAME=" in typed:
                read = partial(pair, read=field(field_name, read, part="PlannedArm"))
                settings["multiple"] = True
            elif section.startswith(("Arms", "Load")):
                read = field(field_name, read)
            settings = (
                dict[str, Any](type=Value(read), metavar=metavar) | settings if metavar else {"is_flag": True}
            )
            function = click.option(switch, field_name, help=text, **settings)(function)
        return click.command(name, cls=_Sectioned, epilog=epilog)(function)

    return command


def folder(
    name: str = "folder", metavar: str = "DIR", help_: str = "What `run --out` wrote.", **settings: Any
) -> Decorator:
    """A path argument."""
    return click.argument(name, type=click.Path(path_type=Path), metavar=metavar, help=help_, **settings)


def field(name: str, read: Read = str, *, part: str = "Plan") -> Read:
    """A reader for a field of the plan or of one of its parts, which also checks the limits of the field. For another name it is `read`."""

    def checked(text: str) -> Any:
        from trnspec.benchmark import plan  # imported late, because help does not need pydantic

        known = getattr(plan, part).model_fields.get(name)
        return _held(read(text), known.annotation, known) if known else read(text)

    return checked


def _held(value: Any, type_: Any, limits: Any) -> Any:
    """The value, checked against a type and the limits of a pydantic field. Raises ValueError."""
    from pydantic import TypeAdapter, ValidationError

    annotation: Any = Annotated[type_, limits]
    try:
        return TypeAdapter[Any](annotation).validate_python(value)
    except ValidationError as error:
        own = str(error.errors()[0].get("ctx", {}).get("error", ""))  # does not show secrets of an address
        raise ValueError(own or f"{shown(value)} must be {limits.description}") from error


def number(text: str) -> float:
    """A number above 0, within limits for which sums and ratios are finite."""
    from trnspec.benchmark.limits import number

    return float(_held(text, float, number(1e9, above=1e-9)))


def share(text: str) -> float:
    from trnspec.benchmark.limits import number

    return float(_held(text, float, number(1)))


def whole(text: str, minimum: int = 0) -> int:
    from trnspec.benchmark.limits import whole

    return int(_held(text, int, whole(minimum, 10**9)))


def seconds(text: str) -> float:
    """A time above 0 in seconds: a number, or a number followed by s, m or h."""
    unit_s = _UNITS_S.get(text[-1:])
    return number(text) if unit_s is None else number(text[:-1]) * unit_s


def listed(text: str) -> list[str]:
    """Names or numbers, separated by commas, each once."""
    names = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not names:
        raise ValueError(f"{shown(text)} names nothing; separate several with commas")
    return names


def pair(text: str, read: Read = str) -> tuple[str, Any]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{shown(text)} is not NAME=VALUE")
    return name.strip(), read(value)


def pairs(text: str) -> dict[str, str]:
    """`NAME=VALUE` pairs, separated by commas."""
    return dict(map(pair, text.split(",")))


def json_object(text: str) -> Any:
    try:
        return json_of(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} is not JSON ({error})") from error


def of_arms(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The values of the options about arms, by field and name of the arm. A list is added to that of the arm."""
    values: dict[str, dict[str, Any]] = {name: dict(given[name]) for name in _OF_ARMS[:-1]}
    values["also_changes"] = {}
    for arm, text in given["also_changes"]:
        values["also_changes"].setdefault(arm, []).extend(text)
    return values


def overridden(
    plan: Plan,
    of_arms: Mapping[str, Mapping[str, Any]],
    *,
    classes: Collection[str] | None = None,
    **settings: Any,
) -> Plan:
    """The plan with other values: `of_arms` by field and arm, `settings` by field (None keeps the value of the plan).

    Raises PlanError for an unknown arm or class, and for invalid values.
    """
    from trnspec.benchmark.plan import from_dict

    given = {name: value for name, value in settings.items() if value is not None}
    names, switches = [arm.name for arm in plan.arms], {field_: switch for switch, field_ in _FIELDS.items()}
    for name, by_arm in of_arms.items():
        check_names(switches.get(name, f"--{name.replace('_', '-')}"), by_arm, names)
    check_names("--baseline", [given["baseline"]] if "baseline" in given else (), names)
    check_names("--classes", classes or (), plan.classes)
    if "concurrency" in given:  # one kind of load replaces the other
        given["rate"] = []
    content = plan.to_dict() | given
    for arm in content["arms"]:
        changes = {name: by_arm[arm["name"]] for name, by_arm in of_arms.items() if arm["name"] in by_arm}
        if texts := changes.get("also_changes"):
            changes["also_changes"] = list(dict.fromkeys([*arm.get("also_changes", ()), *texts]))
        arm |= changes
    content["prompts"] = [
        prompt for prompt in content["prompts"] if not classes or prompt["class"] in classes
    ]
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
    assumed = {name: k + 1 for name, k in values["speculative_tokens"].items()}
    values["max_tokens_per_step"] = assumed | values["max_tokens_per_step"]
    return raw.with_plan(overridden(raw.sessions[-1].plan, values))
