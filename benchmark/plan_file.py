"""Reading a plan: JSON in, `Plan` out, or every problem of the file in one error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address
from itertools import chain
from pathlib import Path
from reprlib import repr as shown
from typing import Any
from urllib.parse import urlsplit

from benchmark.errors import PlanError
from benchmark.plan import Arm, Plan, Prompt
from benchmark.reading import json_of, text_of

Check = Callable[[Any], bool]
Field = tuple[Check, str]
Fields = dict[str, Field]

_MOST_IN_FLIGHT, _MOST_PER_S, _LEAST_PER_S = 4096, 10_000, 0.0001
_MOST_REQUESTS, _MOST_WARMUP, _MOST_ROUNDS = 1_000_000, 100_000, 10_000
_MOST_DURATION_S = 31 * 86_400
MOST_OUTPUT = 1 << 20
"""Tokens of an answer, and of a decode step that nothing is known of."""
_MOST_SECONDS, _MOST_USD = 1e6, 1e6
_MOST_LEVELS, _MOST_ARMS, _MOST_DEPTH = 64, 64, 32
_MOST_PROBLEMS = 20
_MOST_URL = 2000
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_NUMBERS = re.compile(r"[0-9.]+")
_BRACKETED = re.compile(r"\[[^\[\]]+\](:[0-9]+)?")


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _whole(minimum: int, maximum: int) -> Field:
    return (
        lambda value: type(value) is int and minimum <= value <= maximum,
        f"a whole number from {minimum} to {maximum}",
    )


def _number(maximum: float, *, above: float | None = None, least: float = 0.0) -> Field:
    """A number from `least`, or above `above`."""

    def holds(value: Any) -> bool:
        return type(value) in (int, float) and least <= value <= maximum and (above is None or value > above)

    bottom = f"from {least:g}" if above is None else f"above {above:g}"
    return holds, f"a number {bottom} to {maximum:,.0f}"


def _or_none(field: Field) -> Field:
    return _optional(field[0]), field[1]


def _name(value: Any) -> bool:
    """CloudWatch takes printable ASCII as a dimension value, and not a leading colon."""
    printable = isinstance(value, str) and value.isascii() and value.isprintable()
    return printable and bool(value.strip()) and len(value) <= 128 and not value.startswith(":")


def _list_of(check: Check, most: int | None = None) -> Check:
    return lambda value: (
        isinstance(value, list) and 0 < len(value) <= (most or len(value)) and all(map(check, value))
    )


def _levels(field: Field) -> Field:
    """None, or a list without entries, or with some."""
    check, wanted = field
    return (
        _optional(lambda value: value == [] or _list_of(check, _MOST_LEVELS)(value)),
        f"a list of at most {_MOST_LEVELS}, each {wanted}",
    )


def _objectives(value: Any) -> bool:
    known = isinstance(value, dict) and bool(value) and set(value) <= set(OBJECTIVES)
    return known and all(map(_number(_MOST_SECONDS, above=0)[0], value.values()))


def url_problem(value: Any) -> str | None:
    """Why `value` is not the base URL of an arm. What may be secret in it is not repeated."""
    wanted = "must be an http(s) URL that ends in /v1"
    if not isinstance(value, str) or not value.isprintable() or any(map(str.isspace, value)):
        return f"{shown(value)}; {wanted}, without spaces"
    if "@" in value:
        return "holds a user name or a password, which results would keep; put the API key into BENCHMARK_API_KEY"
    if "?" in value or "#" in value:
        return f"has a query or a fragment; {wanted}"
    try:
        parts = urlsplit(value)
        port, host = parts.port, parts.hostname or ""
        if "[" in parts.netloc:
            host = str(IPv6Address(host)) if _BRACKETED.fullmatch(parts.netloc) else ""
        else:
            host = host.encode("idna").decode()
        if _NUMBERS.fullmatch(host):
            host = str(IPv4Address(host))
    except ValueError as error:  # an encoding error is one
        return f"{shown(value)} ({error}); {wanted}"
    known = parts.scheme in ("http", "https") and port != 0 and len(value) <= _MOST_URL
    return None if known and (":" in host or _HOST.fullmatch(host)) else f"{shown(value)}; {wanted}"


def without_credentials(url: Any) -> Any:
    """`url` without a user name and a password in it, as older runs may have recorded them."""
    return re.sub(r"^(\w+://)[^/]*@", r"\1", url) if isinstance(url, str) else url


def _shallow(value: Any) -> bool:
    """Whether lists and objects in `value` are nested at most _MOST_DEPTH deep."""
    level = [value]
    for _ in range(_MOST_DEPTH):
        parts = ([*v.values()] if isinstance(v, dict) else v if isinstance(v, list) else () for v in level)
        level = list(chain.from_iterable(parts))
        if not level:
            return True
    return False


def conversation(value: Any) -> bool:
    """Messages, at least one of them the user's with text: the nonce goes in front of it."""
    if not _list_of(lambda message: isinstance(message, dict))(value) or not _shallow(value):
        return False
    return any(m.get("role") == "user" and isinstance(m.get("content"), str) for m in value)


OBJECTIVES = ("ttft_s", "tpot_s", "e2e_s")
"""What an SLO may bound."""
_YES_OR_NO = (_optional(lambda value: isinstance(value, bool)), "true or false")
_NAME = (_name, "printable ASCII, 1 to 128 characters, not starting with a colon")
_SETTINGS: Fields = {
    "schema": (lambda value: type(value) is int and value == 1, "1"),
    "experiment": _NAME,
    "model": (
        lambda value: (
            isinstance(value, str) and bool(value.strip()) and value.isprintable() and len(value) < 500
        ),
        "the served model's name, printable, below 500 characters",
    ),
    "baseline": _NAME,
    "arms": (_list_of(lambda _: True, _MOST_ARMS), f"a list of 1 to {_MOST_ARMS} arms"),
    "concurrency": _levels(_whole(1, _MOST_IN_FLIGHT)),
    "requests": _whole(1, _MOST_REQUESTS),
    "warmup": _or_none(_whole(0, _MOST_WARMUP)),
    "seed": _or_none(_whole(0, (1 << 63) - 1)),
    "max_tokens": _whole(1, MOST_OUTPUT),
    "temperature": _or_none(_number(100)),
    "extra_body": (
        _optional(lambda value: isinstance(value, dict) and _shallow(value)),
        f"a JSON object, nested at most {_MOST_DEPTH} deep",
    ),
    "rate": _levels(_number(_MOST_PER_S, least=_LEAST_PER_S)),
    "rounds": _or_none(_whole(1, _MOST_ROUNDS)),
    "duration_s": _or_none(_number(_MOST_DURATION_S, above=0)),
    "simultaneous": _YES_OR_NO,
    "ignore_eos": _YES_OR_NO,
    "slo": (
        _optional(_objectives),
        f"an object of seconds above 0 to {_MOST_SECONDS:,.0f} for any of {', '.join(OBJECTIVES)}",
    ),
    "prompts": (_list_of(lambda _: True), "a list of at least one prompt"),
}
_ARM: Fields = {
    "name": _NAME,
    "url": (lambda _: True, "see url_problem"),
    "speculative_tokens": _or_none(_whole(0, MOST_OUTPUT)),
    "max_tokens_per_step": _or_none(_whole(1, MOST_OUTPUT)),
    "usd_per_hour": _or_none(_number(_MOST_USD)),
    "also_changes": (
        _optional(_list_of(lambda text: isinstance(text, str) and 0 < len(text) <= 1000, _MOST_LEVELS)),
        f"a list of at most {_MOST_LEVELS} texts",
    ),
}
_PROMPT: Fields = {
    "id": _NAME,
    "class": _NAME,
    "prompt": (_optional(lambda v: isinstance(v, str) and bool(v)), "text"),
    "messages": (_optional(conversation), "messages, one at least a user's with text content"),
    "max_tokens": _or_none(_whole(1, MOST_OUTPUT)),
}


def load(path: Path) -> Plan:
    """Read and check the plan at `path`. Raises PlanError."""
    try:
        content = json_of(text_of(path))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror}); name an existing plan file") from error
    except ValueError as error:
        raise PlanError(f"{path}: not JSON ({error}); a plan is one JSON object") from error
    try:
        return from_dict(content)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def from_dict(content: Any) -> Plan:
    """Check `content` and freeze it. Raises PlanError that names all problems, separated by semicolons."""
    if not isinstance(content, dict):
        raise PlanError(f"a plan is one JSON object, not {type(content).__name__}")
    content = _without_nulls(content)
    problems = _problems(content)
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        problems[_MOST_PROBLEMS:] = [f"and {more} more"] if more > 0 else []
        raise PlanError("; ".join(problems))
    return Plan(
        experiment=content["experiment"],
        model=content["model"],
        baseline=content["baseline"],
        arms=tuple(_arm(arm) for arm in content["arms"]),
        concurrency=tuple(content.get("concurrency", ())),
        requests=content["requests"],
        warmup=content.get("warmup", 0),
        seed=content.get("seed", 1),
        max_tokens=content["max_tokens"],
        temperature=float(content.get("temperature", 0.0)),
        extra_body=content.get("extra_body", {}),
        prompts=tuple(_prompt(prompt) for prompt in content["prompts"]),
        rate=tuple(map(float, content.get("rate", ()))),
        rounds=content.get("rounds", 1),
        duration_s=content.get("duration_s"),
        simultaneous=content.get("simultaneous", False),
        ignore_eos=content.get("ignore_eos", False),
        slo=content.get("slo"),
    )


def _arm(content: Mapping[str, Any]) -> Arm:
    told = _without_nulls(content) | {"also_changes": tuple(content.get("also_changes") or ())}
    return Arm(**{**told, "url": content["url"].rstrip("/")})


def _without_nulls(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if value is not None}


def _prompt(content: Mapping[str, Any]) -> Prompt:
    messages = content.get("messages")
    return Prompt(
        id=content["id"],
        class_=content["class"],
        prompt=content.get("prompt"),
        messages=None if messages is None else tuple(messages),
        max_tokens=content.get("max_tokens"),
    )


def _problems(content: dict[str, Any]) -> list[str]:
    problems = _fields("", content, _SETTINGS)
    for key, fields in (("arms", _ARM), ("prompts", _PROMPT)):
        for index, item in enumerate(content[key] if isinstance(content.get(key), list) else ()):
            problems += _fields(f"{key}[{index}].", item, fields)
            if key == "arms" and isinstance(item, dict) and (why := url_problem(item.get("url"))):
                problems.append(f"arms[{index}].url: {why}")
    return problems or _contradictions(content)


def _fields(where: str, content: Any, fields: Fields) -> list[str]:
    if not isinstance(content, dict):
        return [f"{where.rstrip('.')}: {shown(content)} is not a JSON object"]
    known = ", ".join(fields)
    found = [f"{where}{_key(key)}: unknown; known are {known}" for key in content if key not in fields]
    for key, (holds, wanted) in fields.items():
        if not holds(content.get(key)):
            value = shown(content[key]) if key in content else "missing"
            found.append(f"{where}{key}: {value}; must be {wanted}")
    return found


def _contradictions(content: dict[str, Any]) -> list[str]:
    names = [arm["name"] for arm in content["arms"]]
    ids = [prompt["id"] for prompt in content["prompts"]]
    found = [f"arms: the name {name!r} appears twice" for name in sorted(_repeated(names))]
    for key in ("concurrency", "rate"):
        found += [f"{key}: {level} appears twice" for level in sorted(_repeated(content.get(key, [])))]
    if not content.get("concurrency") and not content.get("rate"):
        found.append("concurrency: missing; must be a list of whole numbers from 1, unless `rate` is given")
    if "duration_s" in content and content.get("rounds", 1) > 1:
        found.append("rounds: a plan with duration_s begins as many as fit; leave one of the two out")
    found += [f"prompts: the id {id_!r} appears twice" for id_ in sorted(_repeated(ids))]
    if content["baseline"] not in names:
        found.append(f"baseline: {content['baseline']!r} is no arm; the arms are {', '.join(names)}")
    for index, prompt in enumerate(content["prompts"]):
        if (prompt.get("prompt") is None) == (prompt.get("messages") is None):
            found.append(f"prompts[{index}]: needs exactly one of `prompt` and `messages`")
    return found


def _repeated(values: list[Any]) -> set[Any]:
    return {value for value, times in Counter(values).items() if times > 1}


def _key(key: str) -> str:
    return key if key.isidentifier() and len(key) < 60 else shown(key)
