"""What options take, each value refused with what it should be, and what they change about a plan."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

from benchmark.errors import PlanError
from benchmark.objectives import DEFAULT, METRICS, PERCENTILE
from core.reading import json_of

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun
    from benchmark.plan import Plan

_LEAST, _MOST = 1e-9, 1e9
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def address(text: str) -> tuple[str, str]:
    """`NAME=URL` of an arm."""
    from benchmark.limits import url_problem

    name, equals, url = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError("is not NAME=URL with an http(s) URL")
    if why := url_problem(url):
        raise argparse.ArgumentTypeError(f"{shown(name)}: {why}")
    return name, url.rstrip("/")


def host_and_port(text: str) -> tuple[str, int]:
    """Where to listen."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or not int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not HOST:PORT, as in 127.0.0.1:9400")
    return host, int(port)


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise argparse.ArgumentTypeError("names at least one")
    return found


def whole(text: str) -> int:
    """A whole number, 0 or more."""
    if not (text.isascii() and text.strip().isdecimal()) or len(text) > 20:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number, of 20 digits at most")
    return int(text)


def positive(text: str) -> int:
    """A whole number above 0."""
    if whole(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return int(text)


def number(text: str) -> float:
    """A number above 0 that sums and ratios of it survive."""
    return _between(text, _LEAST, _MOST, f"number above 0, from {_LEAST:g} to {_MOST:g}")


def share(text: str) -> float:
    """A number from 0 to 1."""
    return _between(text, 0, 1, "share from 0 to 1")


def _between(text: str, least: float, most: float, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a {wanted}")
    return value


def seconds(text: str) -> float:
    """A time above 0: plain seconds, or with s, m or h behind it."""
    unit_s = _UNITS_S.get(text[-1:])
    return number(text) if unit_s is None else number(text[:-1]) * unit_s


def seconds_or_none(text: str) -> float:
    """The same, or 0."""
    return 0.0 if text.strip() == "0" else seconds(text)


def levels(text: str) -> list[int]:
    """Whole numbers above 0 with commas between them, each once."""
    return list(dict.fromkeys(map(positive, text.split(","))))


def rates(text: str) -> list[float]:
    """The same of numbers above 0."""
    return list(dict.fromkeys(map(number, text.split(","))))


def named(text: str) -> tuple[str, str]:
    """`NAME=VALUE` of an arm."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not NAME=VALUE with the name of an arm")
    return name, value


def of_arm(value_of: Callable[[str], Any]) -> Callable[[str], tuple[str, Any]]:
    """`NAME=VALUE` of an arm, with the value read."""

    def read(text: str) -> tuple[str, Any]:
        name, value = named(text)
        return name, value_of(value)

    return read


def slo(text: str) -> dict[str, float]:
    """`METRIC=SECONDS` with commas between them."""
    found = dict(map(named, text.split(",")))
    if unknown := set(found) - set(METRICS):
        raise argparse.ArgumentTypeError(f"{shown(min(unknown))} is not one of {', '.join(METRICS)}")
    return {name: number(value) for name, value in found.items()}


def objective(text: str) -> dict[str, dict[str, float]]:
    """`METRIC=SECONDS` or `METRIC.PERCENTILE=SECONDS` with commas between them."""
    found: dict[str, dict[str, float]] = {}
    for name, value in map(named, text.split(",")):
        metric, dot, percentile = name.partition(".")
        percentile = percentile if dot else DEFAULT
        if metric not in METRICS or not re.fullmatch(PERCENTILE, percentile):
            wanted = f"one of {', '.join(METRICS)}, with a percentile from .p50 to .p99.9 or without"
            raise argparse.ArgumentTypeError(f"{shown(name)} is not {wanted}")
        if percentile in found.setdefault(metric, {}):
            raise argparse.ArgumentTypeError(f"{metric}.{percentile} is given twice")
        found[metric][percentile] = number(value)
    return found


def search_range(text: str) -> tuple[float, float]:
    """`LOW:HIGH`, two loads."""
    low, colon, high = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not LOW:HIGH, as in 1:64")
    first, last = (int(value) if value.is_integer() else value for value in map(number, (low, high)))
    if not first < last:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is an empty range; LOW must be below HIGH, as in 1:64"
        )
    return first, last


def search_budget(text: str) -> dict[str, float]:
    """`cells=N,minutes=X,usd=X`, one of them at least."""
    found = dict(map(named, text.split(",")))
    if unknown := set(found) - {"cells", "minutes", "usd"}:
        raise argparse.ArgumentTypeError(f"{min(unknown)!r} is not one of cells, minutes, usd")
    return {name: positive(value) if name == "cells" else number(value) for name, value in found.items()}


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a JSON object")
    return value


def add(
    to: argparse._ActionsContainer,
    option: str,
    type_: Callable[[str], Any],
    metavar: str,
    help_: str,
    **more: Any,
) -> None:
    """An option with a value."""
    to.add_argument(option, type=type_, metavar=metavar, help=help_, **more)


def add_name(to: argparse._ActionsContainer, help_: str, **more: Any) -> None:
    """--name, and the word that it had before."""
    add(to, "--name", str, "NAME", help_, **more)
    to.add_argument("--experiment", dest="name", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_json(parser: argparse.ArgumentParser, what: str = "the summary as JSON instead of text") -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what}")


_DECLARED: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "speculative_tokens": (
        "--speculative-tokens",
        whole,
        "draft tokens per step of an arm; 0 decodes plainly",
    ),
    "max_tokens_per_step": (
        "--tokens-per-step",
        whole,
        "the most a step of an arm can yield: k + 1 on vLLM (assumed), k on NxD Inference",
    ),
    "usd_per_hour": ("--usd-per-hour", number, "what an arm's share of its node costs"),
}
"""What no endpoint says about itself: by the field of an arm, its option."""
_ALSO_CHANGES = "--also-changes"
_OPTIONS = {field: option for field, (option, *_) in _DECLARED.items()} | {
    "url": "--arm",
    "also_changes": _ALSO_CHANGES,
}


def add_declared(group: argparse._ActionsContainer) -> None:
    for field, (option, type_, help_) in _DECLARED.items():
        add(group, option, of_arm(type_), "NAME=X", help_, dest=field, action="append", default=[])
    also = "what else is different in an arm's engine, in words; given again, one thing more"
    add(group, _ALSO_CHANGES, named, "NAME=TEXT", also, action="append", default=[])


def of_arms(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What `add_declared` reads, by the field of an arm and its name."""
    texts: dict[str, list[str]] = {}
    for name, text in options.also_changes:
        texts.setdefault(name, []).append(text)
    return {field: dict(getattr(options, field)) for field in _DECLARED} | {"also_changes": texts}


def arm(name: str, url: str, drafted: int | None, most_tokens: int) -> dict[str, Any]:
    """An arm of a plan, with what is declared about it.

    Of one that nothing is declared for a step may yield anything, so that its chunks never stand for tokens.
    """
    per_step = most_tokens if drafted is None else drafted + 1
    return {"name": name, "url": url, "speculative_tokens": drafted or 0, "max_tokens_per_step": per_step}


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
    for field, by_arm in of_arms.items():
        _known(_OPTIONS[field], by_arm, names)
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
        given_of = {field: by_arm[arm["name"]] for field, by_arm in of_arms.items() if arm["name"] in by_arm}
        if texts := given_of.pop("also_changes", None):
            arm["also_changes"] = list(dict.fromkeys([*arm.get("also_changes", ()), *texts]))
        arm |= given_of
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


def recorded(folder: Path) -> RawRun:
    """The run in `folder`; which lines of it cannot be used is said on standard error."""
    from benchmark.measure import journal

    raw = journal.read(folder)
    if raw.left_out:
        print(f"{folder}: {raw.left_out}", file=sys.stderr)
    return raw


def read_declared(options: argparse.Namespace) -> RawRun:
    """The journal of DIR, with what the options declare; k drafts yield k + 1 tokens unless said.

    Raises ResultsError or PlanError.
    """
    raw, told = recorded(options.folder), of_arms(options)
    if not any(told.values()):
        return raw
    assumed = {name: k + 1 for name, k in told["speculative_tokens"].items()}
    changed = overridden(
        raw.sittings[-1].plan, told | {"max_tokens_per_step": assumed | told["max_tokens_per_step"]}
    )
    return raw.with_plan(changed)
