"""Values that options take, each refused with what it should be.

What the command line changes about a plan.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any

from benchmark.errors import PlanError
from benchmark.file_access import json_of

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun
    from benchmark.plan import Plan


_LEAST, _MOST = 1e-9, 1e9
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def address(text: str) -> tuple[str, str]:
    """`NAME=URL` of an arm."""
    name, equals, url = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError("is not NAME=URL with an http(s) URL")
    from benchmark.plan import url_problem  # loads pydantic

    if why := url_problem(url):
        raise argparse.ArgumentTypeError(f"{shown(name)}: {why}")
    return name, url.rstrip("/")


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
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _LEAST <= value <= _MOST:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not a number above 0, from {_LEAST:g} to {_MOST:g}"
        )
    return value


def seconds(text: str) -> float:
    """A time above 0: plain seconds, or with s, m or h behind it."""
    unit = text[-1:]
    if unit not in _UNITS_S:
        return number(text)
    return number(text[:-1]) * _UNITS_S[unit]


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a share from 0 to 1")
    return value


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


def objectives(text: str) -> dict[str, float]:
    """`METRIC=SECONDS` with commas between them."""
    found = dict(map(named, text.split(",")))
    if unknown := set(found) - {"ttft_s", "tpot_s", "e2e_s"}:
        raise argparse.ArgumentTypeError(f"{min(unknown)!r} is none of ttft_s, tpot_s, e2e_s")
    return {name: number(value) for name, value in found.items()}


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a JSON object")
    return value


def recorded(folder: Path) -> RawRun:
    """The run in `folder`; which lines of it cannot be used is said on standard error."""
    from benchmark.measure import journal

    raw = journal.read(folder)
    if raw.left_out:
        print(f"{folder}: {raw.left_out}", file=sys.stderr)
    return raw


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


def add_json(parser: argparse.ArgumentParser, what: str = "the summary as JSON instead of the table") -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def add_declared(group: argparse._ActionsContainer) -> None:
    """What no endpoint says about itself."""
    each: dict[str, Any] = {"action": "append", "default": []}
    drafts = "draft tokens per step of an arm; 0 decodes plainly"
    most = "the most a step of an arm can yield: k + 1 on vLLM (assumed), k on NxD Inference"
    add(group, "--speculative-tokens", of_arm(whole), "NAME=X", drafts, **each)
    add(group, "--tokens-per-step", of_arm(whole), "NAME=X", most, **each)
    add(group, "--usd-per-hour", of_arm(number), "NAME=X", "what an arm's share of its node costs", **each)


def of_arms(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What `add_declared` reads, by the field of an arm and its name."""
    return {
        "speculative_tokens": dict(options.speculative_tokens),
        "max_tokens_per_step": dict(options.tokens_per_step),
        "usd_per_hour": dict(options.usd_per_hour),
    }


def arm(name: str, url: str, drafted: int | None, most_tokens: int) -> dict[str, Any]:
    """An arm of a plan, with what is declared about it.

    Of one that nothing is declared for a step may yield anything, so that its chunks never stand for tokens.
    """
    per_step = most_tokens if drafted is None else drafted + 1
    return {"name": name, "url": url, "speculative_tokens": drafted or 0, "max_tokens_per_step": per_step}


def read_declared(options: argparse.Namespace) -> RawRun:
    """The journal of DIR, with what the options declare. Raises ResultsError or PlanError."""

    return declared(recorded(options.folder), of_arms(options))


_OPTIONS = {
    "url": "--arm",
    "speculative_tokens": "--speculative-tokens",
    "max_tokens_per_step": "--tokens-per-step",
    "usd_per_hour": "--usd-per-hour",
}


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
        arm |= {field: by_arm[arm["name"]] for field, by_arm in of_arms.items() if arm["name"] in by_arm}
    content["prompts"] = [one for one in content["prompts"] if not classes or one["class"] in classes]
    for prompt in content["prompts"]:
        if "max_tokens" in prompt:  # the option is also the ceiling of what single prompts ask for
            prompt["max_tokens"] = min(prompt["max_tokens"], given.get("max_tokens", prompt["max_tokens"]))
    return from_dict(content)


def _known(option: str, given: Collection[str], names: Collection[str]) -> None:
    for name in given:
        if name not in names:
            raise PlanError(f"{option}: {name!r} is not in the plan; it has {', '.join(names)}")


def declared(raw: RawRun, of_arms: Mapping[str, Mapping[str, Any]]) -> RawRun:
    """`raw` with what its run was not told about arms; k drafts yield k + 1 tokens unless said. Raises PlanError."""
    if not any(of_arms.values()):
        return raw
    assumed = {name: k + 1 for name, k in of_arms["speculative_tokens"].items()}
    per_step = {**assumed, **of_arms["max_tokens_per_step"]}
    changed = overridden(raw.plan, {**of_arms, "max_tokens_per_step": per_step})
    last = replace(raw.sittings[-1], plan=changed)
    return replace(raw, sittings=(*raw.sittings[:-1], last))
