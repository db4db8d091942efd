"""The plan: which arms answer which prompts, how often and how many at once.

The charts make it, the pod reads it, options change it: the same model checks it each time.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from reprlib import repr as shown
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from benchmark.addresses import url_problem
from benchmark.errors import PlanError
from benchmark.file_access import json_of, text_of

MOST_OUTPUT = 1 << 20
"""Tokens of an answer, and of a decode step that nothing is known of."""
_MOST_LEVELS, _MOST_ARMS, _MOST_DEPTH, _MOST_PROBLEMS = 64, 64, 32, 20
_MOST_SECONDS, _MOST_USD = 1e6, 1e6
_FEWEST = 8
"""Requests of a search's cell, where the plan has as many."""
OBJECTIVES = ("ttft_s", "tpot_s", "e2e_s")
"""What an SLO may bound."""


def _shallow(value: Any) -> bool:
    """Whether lists and objects in `value` are nested at most _MOST_DEPTH deep."""
    level = [value]
    for _ in range(_MOST_DEPTH):
        parts = (
            v.values() if isinstance(v, dict) else v if isinstance(v, (list, tuple)) else () for v in level
        )
        level = list(chain.from_iterable(parts))
        if not level:
            return True
    return False


def by_user(message: Mapping[str, Any]) -> bool:
    """Whether the user wrote it, as plain text: the nonce goes in front of the last such message."""
    return message.get("role") == "user" and isinstance(message.get("content"), str)


def conversation(value: Any) -> bool:
    """Messages, at least one of them the user's with text."""
    if not (isinstance(value, (list, tuple)) and all(isinstance(m, dict) for m in value) and _shallow(value)):
        return False
    return any(map(by_user, value))


def _held_to(check: Callable[[Any], bool]) -> AfterValidator:
    """Refuses what `check` does not hold for; the field says what it must be."""

    def held(value: Any) -> Any:
        if not check(value):
            raise ValueError
        return value

    return AfterValidator(held)


def _must_be(wanted: str, **limits: Any) -> Any:
    return Field(description=wanted, **limits)


def _whole(minimum: int, maximum: int) -> Any:
    return _must_be(f"a whole number from {minimum} to {maximum}", ge=minimum, le=maximum)


def _number(maximum: float, *, above: float | None = None, least: float = 0.0) -> Any:
    """A number from `least`, or above `above`."""
    bottom = f"from {least:g}" if above is None else f"above {above:g}"
    return _must_be(f"a number {bottom} to {maximum:,.0f}", gt=above, ge=least, le=maximum)


def _list(wanted: str, *, least: int = 1, most: int | None = None) -> Any:
    """JSON has lists where a frozen model has tuples. One wrong entry says as much as a million."""
    return _must_be(wanted, strict=False, min_length=least, max_length=most, fail_fast=True)


def _levels(each: Any) -> Any:
    return _list(f"a list of at most {_MOST_LEVELS}, each {each.description}", least=0, most=_MOST_LEVELS)


_IN_FLIGHT, _PER_S = _whole(1, 4096), _number(10_000, least=0.0001)
_OBJECTIVE = _number(_MOST_SECONDS, above=0)
_FOR_ANY_OF = f"an object of seconds above 0 to {_MOST_SECONDS:,.0f} for any of {', '.join(OBJECTIVES)}"
_NAMED = "printable ASCII, 1 to 128 characters, not starting with a colon"
Name = Annotated[str, _must_be(_NAMED, pattern=r"^( +[!-~]|[!-9;-~])[ -~]*$", max_length=128)]
"""CloudWatch takes it as a dimension value."""
Tokens = Annotated[int, _whole(1, MOST_OUTPUT)]
Message = Mapping[str, Any]
_LEFT_OUT = Field(exclude_if=lambda value: not value)
"""A plan file does not have the key where it says nothing."""


class _Part(BaseModel):
    """A JSON object that knows its keys and does not guess types; null is as if the key were absent."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in content.items() if value is not None or key not in known}

    def to_dict(self, *, exclude_unset: bool = False) -> dict[str, Any]:
        """As a plan file has it; `exclude_unset` leaves out what was not given."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=exclude_unset)


class Arm(_Part):
    """One endpoint under test."""

    name: Name
    url: Annotated[
        str, _held_to(lambda url: url_problem(url) is None), AfterValidator(lambda url: url.rstrip("/"))
    ]
    """Base URL up to and including `/v1`, without a trailing slash."""
    speculative_tokens: Annotated[int, _whole(0, MOST_OUTPUT)] = 0
    """Draft tokens per step; 0 is plain decoding."""
    max_tokens_per_step: Tokens = 1
    """The most tokens that one decode step of this engine can yield."""
    usd_per_hour: Annotated[int | float | None, _number(_MOST_USD)] = None
    """What the arm's share of its node costs."""
    also_changes: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...],
        _list(f"a list of at most {_MOST_LEVELS} texts", least=0, most=_MOST_LEVELS),
        _LEFT_OUT,
    ] = ()
    """What is different in its engine beside the speculation, in words for the report."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """How a cell is loaded: so many requests in flight, or arriving at a rate. Exactly one is set."""

    concurrency: int | None = None
    rate_per_s: float | None = None
    """Mean of a Poisson process."""

    def __str__(self) -> str:
        return f"c{self.concurrency}" if self.rate_per_s is None else f"{self.rate_per_s:g}/s"

    @property
    def in_words(self) -> str:
        if self.rate_per_s is None:
            return f"{self.concurrency} at a time"
        return f"{self.rate_per_s:g} requests/s"


class Search(_Part):
    """Cells chosen one after the other between two loads, instead of listed ones (`benchmark/analyse/search.py`)."""

    low: Annotated[int | float, _number(10_000, above=0)]
    high: Annotated[int | float, _number(10_000, above=0)]
    by: Annotated[str, Field(pattern="^(concurrency|rate)$"), _must_be("concurrency or rate")] = "concurrency"
    cells: Annotated[int, _whole(2, _MOST_LEVELS)] = 12
    """At most so many, each of all arms and classes, several at a load where one is not enough; the first is then
    repeated beyond them."""
    minutes: Annotated[int | float | None, _number(44_640, above=0), _LEFT_OUT] = None
    """Of loading, after which no cell is begun."""
    usd: Annotated[int | float | None, _number(_MOST_USD, above=0), _LEFT_OUT] = None
    """What all arms together cost in that time, after which no cell is begun."""

    @property
    def budget(self) -> str:
        """In words."""
        minutes = f"{self.minutes:g} minutes of loading" if self.minutes else ""
        return ", ".join(filter(None, (f"{self.cells} cells", minutes, f"${self.usd:g}" if self.usd else "")))

    def load(self, value: float) -> Load:
        """The load of that size."""
        return Load(rate_per_s=value) if self.by == "rate" else Load(concurrency=int(value))


class Prompt(_Part):
    """One prompt; `messages` goes to /chat/completions, `prompt` to /completions. Exactly one is set."""

    id: Name
    class_: Name = Field(alias="class")
    prompt: Annotated[str | None, _held_to(bool), _must_be("text"), _LEFT_OUT] = None
    messages: Annotated[
        Annotated[tuple[Message, ...], Field(strict=False, fail_fast=True)] | None,
        _held_to(conversation),
        _must_be("messages, one at least a user's with text content"),
        _LEFT_OUT,
    ] = None
    max_tokens: Annotated[int | None, _whole(1, MOST_OUTPUT), _LEFT_OUT] = None


class Plan(_Part):
    """Everything that decides which requests are sent, in the order of its file."""

    schema_: Annotated[int, _must_be("1", ge=1, le=1)] = Field(alias="schema")
    experiment: Name
    model: Annotated[
        str,
        _held_to(lambda value: bool(value.strip()) and value.isprintable() and len(value) < 500),
        _must_be("the served model's name, printable, below 500 characters"),
    ]
    baseline: Name
    arms: Annotated[tuple[Arm, ...], _list(f"a list of 1 to {_MOST_ARMS} arms", most=_MOST_ARMS)]
    concurrency: Annotated[tuple[Annotated[int, _IN_FLIGHT], ...], _levels(_IN_FLIGHT)] = ()
    requests: Annotated[int, _whole(1, 1_000_000)]
    """Measured requests per cell."""
    warmup: Annotated[int, _whole(0, 100_000)] = 0
    """Unmeasured requests per arm before the first cell."""
    seed: Annotated[int, _whole(0, (1 << 63) - 1)] = 1
    max_tokens: Tokens
    temperature: Annotated[float, _number(100)] = 0.0
    extra_body: Annotated[
        Mapping[str, Any], _held_to(_shallow), _must_be(f"a JSON object, nested at most {_MOST_DEPTH} deep")
    ] = Field(default_factory=dict)
    """Merged into each request body as it is."""
    rate: Annotated[tuple[Annotated[float, _PER_S], ...], _levels(_PER_S)] = ()
    """Requests per second, a cell each, open loop; where given, `concurrency` counts for nothing."""
    rounds: Annotated[int, _whole(1, 10_000)] = 1
    """Passes over all cells, `requests` in each."""
    duration_s: Annotated[int | float | None, _number(31 * 86_400, above=0)] = None
    """Where given, rounds are begun until this time of loading has passed."""
    simultaneous: Annotated[bool, _must_be("true or false")] = False
    """Whether the arms are loaded at once instead of in turns."""
    ignore_eos: Annotated[bool, _must_be("true or false")] = False
    """Whether answers are forced to max_tokens. What follows an answer's end is not natural text."""
    slo: Annotated[
        Mapping[
            Annotated[str, Field(pattern=f"^({'|'.join(OBJECTIVES)})$")], Annotated[int | float, _OBJECTIVE]
        ]
        | None,
        _must_be(_FOR_ANY_OF, min_length=1),
    ] = None
    """Objectives for goodput: ttft_s, tpot_s, e2e_s, each optional."""
    search: Annotated[
        Search | None,
        _must_be("an object with low, high and, if need be, by, cells, minutes, usd"),
        _LEFT_OUT,
    ] = None
    """Where given, loads are searched; then `concurrency` and `rate` are not given."""
    prompts: Annotated[tuple[Prompt, ...], _list("a list of at least one prompt")]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if found := list(_contradictions(self)):
            raise PlanError(_one_line(found))
        return self

    @property
    def loads(self) -> tuple[Load, ...]:
        """What cells are loaded with, in order."""
        if self.rate:
            return tuple(Load(rate_per_s=rate) for rate in self.rate)
        return tuple(Load(concurrency=level) for level in self.concurrency)

    def measured_at(self, loads: Iterable[Load]) -> Plan:
        """The plan of a search with the loads that it came to."""
        listed = list(loads)
        levels = tuple(sorted(one.concurrency for one in listed if one.concurrency is not None))
        rates = tuple(sorted(one.rate_per_s for one in listed if one.rate_per_s is not None))
        return self.model_copy(update={"concurrency": levels, "rate": rates})

    def cell(self, load: Load) -> Plan:
        """The plan of one cell of a search: a quarter of `requests`, in whole waves, so that no block has a lighter end. Of
        arrivals at a rate half of them, in one block, since a queue needs time to build up."""
        each = max(-(-self.requests // (2 if load.concurrency is None else 4)), min(self.requests, _FEWEST))
        if load.concurrency is not None:
            each = max(1, round(each / load.concurrency)) * load.concurrency
        return self.measured_at([load]).model_copy(update={"requests": each})

    def admits(self, load: Load) -> bool:
        """Whether a cell may have this load."""
        if self.search is None:
            return load in self.loads
        value = load.rate_per_s if self.search.by == "rate" else load.concurrency
        return value is not None and self.search.low <= value <= self.search.high

    @property
    def classes(self) -> tuple[str, ...]:
        """Prompt classes in order of first appearance."""
        return tuple(dict.fromkeys(prompt.class_ for prompt in self.prompts))

    @property
    def requests_per_round(self) -> int:
        """Measured requests in one pass over all cells."""
        return len(self.arms) * len(self.classes) * len(self.loads) * self.requests

    @property
    def greedy(self) -> bool:
        """Whether answers are the most likely ones, not drawn: `extra_body` has the last word, as in the request."""
        return bool(self.extra_body.get("temperature", self.temperature) == 0)

    def loading_s(self, durations_s: Iterable[float]) -> float:
        """The time that blocks of such durations take, which `duration_s` bounds: of simultaneous arms it counts once."""
        total = sum(durations_s)
        return total / len(self.arms) if self.simultaneous else total

    @property
    def prices(self) -> dict[str, float | None]:
        """By arm, dollars an hour."""
        return {arm.name: arm.usd_per_hour for arm in self.arms}

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def with_arms(self, names: Sequence[str]) -> Plan:
        """The plan with these arms alone; the first of them is the baseline where the plan's own is not one."""
        baseline = self.baseline if self.baseline in names else names[0]
        arms = tuple(arm for arm in self.arms if arm.name in names)
        return self.model_copy(update={"arms": arms, "baseline": baseline})

    def most_tokens(self, prompt: Prompt) -> int:
        """What an answer to `prompt` may have: `extra_body` has the last word, as in the request."""
        for key in ("max_completion_tokens", "max_tokens"):
            if type(own := self.extra_body.get(key)) is int:
                return own
        return prompt.max_tokens or self.max_tokens

    def sha256(self) -> str:
        """Identity of the plan: what is asked of whom. An arm at another address or price, or described in other words, is
        the same arm."""
        content, aside = self.to_dict(), ("url", "usd_per_hour", "also_changes")
        content["arms"] = [{k: v for k, v in arm.items() if k not in aside} for arm in content["arms"]]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


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
    content = {key: value for key, value in content.items() if value is not None}
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        problems = _told("", Plan, content, error)
    for key, part in _PARTS.items():
        for index, entry in enumerate(content[key] if isinstance(content.get(key), list) else ()):
            if not isinstance(entry, dict):
                problems.append(f"{key}[{index}]: {shown(entry)} is not a JSON object")
                continue
            try:
                part.model_validate(entry)
            except ValidationError as error:
                problems += _told(f"{key}[{index}].", part, entry, error)
    raise PlanError(_one_line(problems))


_PARTS: dict[Any, type[_Part]] = {"arms": Arm, "prompts": Prompt}


def _told(where: str, part: type[_Part], content: dict[str, Any], error: ValidationError) -> list[str]:
    """What pydantic found, in our words: a line for each wrong field of `part`, unknown keys first."""
    fields = {field.alias or name: field for name, field in part.model_fields.items()}
    wrong: dict[str, None] = {}
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        key, *inside = found["loc"]
        # Wrong entries of a part have lines of their own, and make a list seem too short.
        if not (key in _PARTS and inside) and not (found["type"] == "too_short" and content[str(key)]):
            wrong[str(key)] = None
    known = ", ".join(fields)
    lines = [f"{where}{_key(key)}: unknown; known are {known}" for key in wrong if key not in fields]
    for key in filter(wrong.__contains__, fields):
        if key == "url":
            lines.append(f"{where}{key}: {url_problem(content.get(key))}")
        else:
            value = shown(content[key]) if key in content else "missing"
            lines.append(f"{where}{key}: {value}; must be {fields[key].description}")
    return lines


def _one_line(problems: list[str]) -> str:
    more = len(problems) - _MOST_PROBLEMS
    return "; ".join([*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])])


def _contradictions(plan: Plan) -> Iterable[str]:
    names = [arm.name for arm in plan.arms]
    yield from (f"arms: the name {name!r} appears twice" for name in _repeated(names))
    yield from (f"concurrency: {level} appears twice" for level in _repeated(plan.concurrency))
    yield from (f"rate: {level} appears twice" for level in _repeated(plan.rate))
    if plan.search:
        yield from _against_search(plan, plan.search)
    elif not plan.loads:
        yield "concurrency: missing; must be a list of whole numbers from 1, unless `rate` is given"
    if plan.duration_s is not None and plan.rounds > 1:
        yield "rounds: a plan with duration_s begins as many as fit; leave one of the two out"
    yield from (f"prompts: the id {id_!r} appears twice" for id_ in _repeated(p.id for p in plan.prompts))
    if plan.baseline not in names:
        yield f"baseline: {plan.baseline!r} is not an arm; the arms are {', '.join(names)}"
    for index, prompt in enumerate(plan.prompts):
        if (prompt.prompt is None) == (prompt.messages is None):
            yield f"prompts[{index}]: needs exactly one of `prompt` and `messages`"


def _against_search(plan: Plan, search: Search) -> Iterable[str]:
    given = {"concurrency": plan.concurrency, "rate": plan.rate, "duration_s": plan.duration_s}
    given |= {"rounds": plan.rounds > 1, "simultaneous": plan.simultaneous}
    if names := [name for name, value in given.items() if value]:
        yield f"search: chooses the loads itself; leave {' and '.join(names)} out"
    if not search.low < search.high:
        yield f"search: {search.low:g} to {search.high:g} is an empty range; its low end must be below its high end"
    if search.by == "concurrency" and {search.low % 1, search.high % 1} != {0}:
        yield f"search: {search.low:g} to {search.high:g}; requests at once are whole numbers"
    if len(plan.arms) < 2:
        yield "search: looks for the load at which arms change places, and the plan has one arm"
    if search.usd is not None and None in plan.prices.values():
        yield "search.usd: needs usd_per_hour of every arm"


def _repeated(values: Iterable[Any]) -> list[Any]:
    return sorted(value for value, times in Counter(values).items() if times > 1)


def _key(key: str) -> str:
    return key if key.isidentifier() and len(key) < 60 else shown(key)
