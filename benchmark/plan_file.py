"""Reading a plan: JSON in, `Plan` out, or every problem of the file in one error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmark.errors import PlanError
from benchmark.plan import Arm, Plan, Prompt

Check = Callable[[Any], bool]
Fields = dict[str, tuple[Check, str]]


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _whole(minimum: int) -> Check:
    return lambda value: type(value) is int and value >= minimum


def _name(value: Any) -> bool:
    """CloudWatch takes printable ASCII as a dimension value, and not a leading colon."""
    printable = isinstance(value, str) and value.isascii() and value.isprintable()
    return printable and bool(value.strip()) and len(value) <= 128 and not value.startswith(":")


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and bool(value) and all(map(check, value))


def _number(value: Any, *, above: float | None = None) -> bool:
    """A finite number from 0, or above `above`."""
    return (
        type(value) in (int, float)
        and value < float("inf")
        and (value >= 0 if above is None else value > above)
    )


def _above_zero(value: Any) -> bool:
    return _number(value, above=0.0)


def _objectives(value: Any) -> bool:
    known = isinstance(value, dict) and bool(value) and set(value) <= set(OBJECTIVES)
    return known and all(map(_above_zero, value.values()))


def _http_url(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    return urlsplit(value).scheme in ("http", "https") and bool(urlsplit(value).hostname)


def conversation(value: Any) -> bool:
    """Messages, at least one of them the user's with text: the nonce goes in front of it."""
    if not _list_of(lambda message: isinstance(message, dict))(value):
        return False
    return any(m.get("role") == "user" and isinstance(m.get("content"), str) for m in value)


OBJECTIVES = ("ttft_s", "tpot_s", "e2e_s")
"""What an SLO may bound."""
_YES_OR_NO = (_optional(lambda value: isinstance(value, bool)), "true or false")
_NAME = (_name, "printable ASCII, 1 to 128 characters, not starting with a colon")
_SETTINGS: Fields = {
    "schema": (lambda value: value == 1, "1"),
    "experiment": _NAME,
    "model": (lambda value: isinstance(value, str) and bool(value), "the served model's name"),
    "baseline": _NAME,
    "arms": (_list_of(lambda _: True), "a list of at least one arm"),
    "concurrency": (
        _optional(lambda v: v == [] or _list_of(_whole(1))(v)),
        "a list of whole numbers from 1",
    ),
    "requests": (_whole(1), "a whole number from 1"),
    "warmup": (_optional(_whole(0)), "a whole number from 0"),
    "seed": (_optional(_whole(0)), "a whole number from 0"),
    "max_tokens": (_whole(1), "a whole number from 1"),
    "temperature": (_optional(_number), "a number from 0"),
    "extra_body": (_optional(lambda v: isinstance(v, dict)), "a JSON object"),
    "rate": (
        _optional(lambda v: v == [] or _list_of(_above_zero)(v)),
        "a list of requests per second above 0",
    ),
    "rounds": (_optional(_whole(1)), "a whole number from 1"),
    "duration_s": (_optional(_above_zero), "a number of seconds above 0"),
    "simultaneous": _YES_OR_NO,
    "ignore_eos": _YES_OR_NO,
    "slo": (_optional(_objectives), f"an object of seconds above 0 for any of {', '.join(OBJECTIVES)}"),
    "prompts": (_list_of(lambda _: True), "a list of at least one prompt"),
}
_ARM: Fields = {
    "name": _NAME,
    "url": (_http_url, "an http(s) URL that ends in /v1"),
    "speculative_tokens": (_optional(_whole(0)), "a whole number from 0"),
    "max_tokens_per_step": (_optional(_whole(1)), "a whole number from 1"),
    "usd_per_hour": (_optional(_number), "a number from 0"),
    "also_changes": (
        _optional(_list_of(lambda text: isinstance(text, str) and bool(text))),
        "a list of texts",
    ),
}
_PROMPT: Fields = {
    "id": _NAME,
    "class": _NAME,
    "prompt": (_optional(lambda v: isinstance(v, str) and bool(v)), "text"),
    "messages": (_optional(conversation), "messages, one at least a user's with text content"),
    "max_tokens": (_optional(_whole(1)), "a whole number from 1"),
}


def load(path: Path) -> Plan:
    """Read and check the plan at `path`. Raises PlanError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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
    return problems or _contradictions(content)


def _fields(where: str, content: Any, fields: Fields) -> list[str]:
    if not isinstance(content, dict):
        return [f"{where.rstrip('.')}: {content!r} is no JSON object"]
    found = [f"{where}{key}: unknown; known are {', '.join(fields)}" for key in content if key not in fields]
    for key, (holds, wanted) in fields.items():
        if not holds(content.get(key)):
            value = repr(content[key])[:60] if key in content else "missing"
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
    return {value for value in values if values.count(value) > 1}
