"""The lines of `requests.jsonl`: the requests and their results.

There are three kinds: `run`, written each time the run is started or resumed; `request`, one for each request; `block`, written
when a block of requests to one arm has ended. Times are seconds. `started_unix_s` is wall time, all other times are from a
monotonic clock.

A line that has a wrong type, belongs to another run, or has impossible numbers is not used, because it would distort the
results.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from operator import le
from pathlib import Path
from reprlib import repr as shown
from sys import intern
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    InstanceOf,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)

from trnspec.benchmark.errors import PlanError, ResultsError
from trnspec.benchmark.measure.stream import MAX_TOKENS, statistics_of
from trnspec.benchmark.plan import Load, Plan, from_dict
from trnspec.core.files import json_of, lines_of

COUNTED_GENERATED = "vllm:generation_tokens_total"
"""Counts tokens, or, on engines before vLLM's V1, the steps of each sequence (`trnspec.benchmark.analyse.values`)."""
COUNTED_DRAFTS = "vllm:spec_decode_num_drafts_total"
COUNTED_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
COUNTED_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
COUNTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
"""Its key ends in the position within the draft, from 0: `.../0`."""
LATE_S = 0.02
"""If the client was later than this in a block, there is a warning: the delay is visible in the times that are compared."""


def _shared(name: str) -> str:
    """A name that many records have, stored once in memory. Raises ValueError if it has control characters."""
    if not name.isprintable():
        raise ValueError
    return intern(name)


def _packed(code: str) -> PlainValidator:
    """Stores a list of numbers as an array of this type code, because a run may have millions of them."""

    def packed(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError
        return array(code, value)

    return PlainValidator(packed)


_UNUSED = {"rounds": 1, "duration_s": None, "simultaneous": False}
"""Keys that the plans of the recorded runs in tests/data/h200 have, with the values that all of them have."""


def _plan(content: Any) -> Plan:
    """The plan of a run. Raises PlanError."""
    known = isinstance(content, dict)
    return from_dict(
        {k: v for k, v in content.items() if (k, v) not in _UNUSED.items()} if known else content
    )


Phase = Literal["warmup", "ramp", "measured", "drain"]
"""Only `measured` requests are in results. `ramp` requests are sent before the steady window of a block, `drain` requests after it
(`HeldLoad`)."""
Provenance = Literal["measured", "emulated"]
Api = Literal["chat", "completions"]
Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_shared)]
RunId = Annotated[str, Field(max_length=1000, pattern=r"^[^/.][^/]*$"), AfterValidator(_shared)]
Text = InstanceOf[str]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]
REPEATED = 1_000_000
"""The round in which a run repeats its first cell; all cells are measured in round 1."""
Ordinal = Annotated[int, Field(strict=True, ge=1, le=REPEATED)]
_MAX_S, _MIN_S = 1e7, 5e-7
"""The maximum of a time, and the minimum of one that is not 0; times are recorded in microseconds."""
Seconds = Annotated[float, Field(strict=True, ge=0, le=_MAX_S)]
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800.0, 253_402_300_799.0
"""The range of dates, the years 1 to 9999. A run can be read even if the clock of its machine was wrong."""
Moment = Annotated[float, Field(strict=True, ge=FIRST_MOMENT, le=LAST_MOMENT)]
MAX_COUNTED = 1e18
Counters = Mapping[str, Annotated[float, Field(strict=True, ge=0, le=MAX_COUNTED)]]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Start of a run, or of its continuation."""

    run: RunId
    session: Annotated[Ordinal, Field(alias="sitting")]
    """1 at the start, one more each time the run is resumed."""
    started_unix_s: Moment
    provenance: Provenance
    plan: Annotated[Plan, PlainValidator(_plan)]
    plan_sha256: Name
    owned_by: Mapping[str, Text]
    """The owner of the model by arm, as its endpoint says."""
    timeout_s: Seconds
    client: Name
    python: Name
    cautions: Sequence[Name] | None = None
    """Cautions of emulated endpoints about their own timings."""
    made_up: Mapping[str, Sequence[Name]] | None = None
    """The classes for which an emulated endpoint makes up the acceptance, by arm."""
    held: Annotated[bool, Field(strict=True)] = False
    """Whether its loads are held constant during measurement; false for runs of clients before 0.3."""
    nodes: Mapping[str, Name] | None = None
    """The node that serves each arm, if the run got it as an option."""


@dataclass(frozen=True)
class NodeChange:
    """Between two sessions the server of an arm moved to another node."""

    session: int
    """The first session on the new node."""
    at_unix_s: float
    """The start of that session."""
    arm: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRecord:
    """One request: either its numbers or its `error`, never both."""

    run: RunId
    arm: Name
    class_: Annotated[Name, Field(alias="class")]
    concurrency: Ordinal | None
    """Requests in flight of the cell; None at a rate."""
    prompt_id: Name
    nonce: Text
    pair_id: Name
    """Requests of two arms with the same pair_id have the same prompt and nonce."""
    phase: Phase
    started_unix_s: Moment
    ttft_s: Seconds | None = None
    e2e_s: Seconds | None = None
    chunk_s: Annotated[Sequence[float], _packed("d")] = ()
    """Arrival of each output chunk, seconds since sending; in an open loop, since the request was due."""
    chunk_tokens: Annotated[Sequence[int], _packed("I")] | None = None
    """Tokens in each chunk, if the server says so."""
    chunk_chars: Annotated[Sequence[int], _packed("I")] | None = None
    """Characters in each chunk, where its tokens are not known."""
    output_keys: tuple[Text, ...] = ()
    """The keys of the stream's deltas under which output came."""
    stream_chunks: Count | None = None
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    completion_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    """Tokens of its reasoning, if the server says so; they may not be in the stream."""
    finish_reason: Text | None = None
    token_source: Name | None = None
    spec_stats: Annotated[Mapping[str, Any], AfterValidator(statistics_of)] | None = None
    """The server's statistics of speculation for this request, as it sent them."""
    text_sha256: Text | None = None
    text: Text | None = None
    error: Name | None = None
    """connect_refused, connect_failed, http_<status>, timeout, reset, malformed, html_page, stream_error, no_done, no_finish_reason,
    ended_<finish_reason>, zero_tokens, implausible_usage, too_large."""
    message: Text | None = None
    round: Ordinal = 1
    """The number of the pass over all cells, from 1."""
    rate_per_s: Seconds | None = None
    """Mean arrival rate of the cell, open loop; None in a closed loop."""
    scheduled_s: Seconds | None = None
    """When it was due, seconds since the start of the block; open loop only."""
    forced_length: Annotated[bool, Field(strict=True)] = False
    """Whether the server had to continue after the end of the answer, up to max_tokens."""
    api: Api = "chat"
    block: Ordinal | None = None
    """The number of its block in the cell and round, from 1, the same for each arm; None if the load was not held."""
    start: Ordinal = 1
    """The number of the start of the servers: another node is another start (`RawRun.by_nodes`); not in the file."""

    @property
    def load(self) -> Load:
        return Load(concurrency=self.concurrency, rate_per_s=self.rate_per_s)


@dataclass(frozen=True, kw_only=True)
class BlockRecord:
    """A block of measured requests to one arm, after its end."""

    run: RunId
    arm: Name
    class_: Annotated[Name, Field(alias="class")]
    concurrency: Ordinal | None
    rate_per_s: Seconds | None
    round: Ordinal
    started_unix_s: Moment
    duration_s: Seconds
    client_lag_s: Seconds
    """The maximum lateness of the client's event loop in the block: measured times may be too long by this."""
    counters_before: Counters | None = None
    """The server's counters of speculation, summed over label sets."""
    counters_after: Counters | None = None
    block: Ordinal | None = None
    start: Ordinal = 1
    session: Annotated[Ordinal, Field(alias="sitting")] = 1
    steady_from_s: Seconds | None = None
    """Start of the steady window, seconds after the start of the block; None if the load was not held."""
    steady_until_s: Seconds | None = None
    """End of the steady window, seconds after the start of the block."""

    @property
    def load(self) -> Load:
        return Load(concurrency=self.concurrency, rate_per_s=self.rate_per_s)

    @property
    def key(self) -> BlockKey:
        """The key of the block."""
        return self.arm, self.class_, self.load, self.round, self.block


BlockKey = tuple[str, str, Load, int, int | None]
"""Arm, class, load, round and number of a block."""
Record = RunRecord | RequestRecord | BlockRecord
_KINDS: dict[str, Any] = {"run": RunRecord, "request": RequestRecord, "block": BlockRecord}
_KIND_OF = {type_: kind for kind, type_ in _KINDS.items()}
_KEYS = {"class_": "class", "session": "sitting"}
"""Keys that differ from the name of their field."""


def to_json(record: Any) -> dict[str, Any]:
    """The JSON object of one line of a record file, with `kind` first."""
    names = (field.name for field in fields(record) if field.name != "start")
    values = {_KEYS.get(name, name): getattr(record, name) for name in names}
    if isinstance(record, RunRecord):
        values["plan"] = record.plan.to_dict()
    for name in ("chunk_s", "chunk_tokens", "chunk_chars", "output_keys"):
        if values.get(name) is not None:
            values[name] = list(values[name])
    return {"kind": _KIND_OF.get(type(record), type(record).__name__.lower()), **values}


def from_json(content: Any) -> Record:
    """The record of one line. Unknown keys are ignored, and absent ones have their defaults. Raises ValueError."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"not an object whose kind is one of {', '.join(_KINDS)}")
    try:
        known: Record = reader(_KINDS[kind]).validate_python(content)
        return known
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"][0])
        raise ValueError(f"{name} is {shown(content[name]) if name in content else 'missing'}") from error
    except PlanError as error:
        raise ValueError(f"plan: {str(error)[:200]}") from error
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not a record: {error}") from error


@cache
def reader(type_: Any) -> TypeAdapter[Any]:
    """The validator of this type, created when it is first needed."""
    return TypeAdapter(type_)


class Checker:
    """Checks that the records of a journal belong to the run that it begins with."""

    def __init__(self, opening: RunRecord) -> None:
        plan = opening.plan
        self._opening, self._identity = opening, plan.sha256()
        self._known = {"arm": {arm.name for arm in plan.arms}, "class_": {*plan.classes, *plan.loaded_with}}
        self._limits = {prompt.id: plan.answer_limit(prompt) for prompt in plan.prompts}
        self._max_tokens = max(self._limits.values())
        self._seen: set[int] = set()

    def checked(self, record: Record) -> Record:
        """`record`, if valid. Raises ValueError if it does not belong to the run, or repeats another record."""
        if record.run != self._opening.run:
            raise ValueError(f"run is {shown(record.run)}, the journal is of {self._opening.run}")
        if isinstance(record, RunRecord):
            if record.plan.sha256() != self._identity or record.provenance != self._opening.provenance:
                raise ValueError("a session with another plan or provenance")
            return record
        for name, known in self._known.items():
            if (value := getattr(record, name)) not in known:
                raise ValueError(f"{name.rstrip('_')} is {shown(value)}, which the plan does not have")
        if isinstance(record, RequestRecord):
            max_tokens = self._limits.get(record.prompt_id, self._max_tokens)
            if record.error is None and (wrong := contradiction(record, max_tokens)):
                raise ValueError(wrong)
            if record.phase == "warmup":
                return record
        plan = self._opening.plan
        if record.load not in plan.loads:
            raise ValueError(f"the load is {record.load}, which the plan does not have")
        if record.round not in (1, REPEATED):
            raise ValueError(f"round is {record.round}, of 1")
        if isinstance(record, RequestRecord):
            if (identity := hash((record.arm, record.pair_id))) in self._seen:
                raise ValueError(f"pair_id is {shown(record.pair_id)}, which the arm was asked already")
            self._seen.add(identity)
        return record


def contradiction(record: RequestRecord, max_tokens: int) -> str:
    """The reason why the numbers of an answer of at most `max_tokens` are contradictory; empty if they are not."""
    first_s, last_s, chunk_s = record.ttft_s, record.e2e_s, record.chunk_s
    tokens, chunks = record.completion_tokens, record.chunk_tokens
    if first_s is None or last_s is None:
        return "neither an error nor the times of an answer"
    rising = all(map(le, chain((0.0,), chunk_s), chain(chunk_s, (_MAX_S,))))  # comparisons with NaN are false
    if not rising or first_s > last_s:
        return "chunk_s, ttft_s and e2e_s are not times of one answer"
    span_s = chunk_s[-1] - chunk_s[0] if len(chunk_s) else 0.0
    if any(0 < time_s < _MIN_S for time_s in (first_s, last_s, span_s)):
        return "a time is shorter than a microsecond"
    if tokens is not None and not bool(len(chunk_s)) <= tokens <= max_tokens:
        return f"completion_tokens is {tokens}, of {max_tokens} at most"
    if record.chunk_chars is not None and len(record.chunk_chars) != len(chunk_s):
        return f"chunk_chars has {len(record.chunk_chars)} chunks, chunk_s {len(chunk_s)}"
    if chunks is not None and (len(chunks) != len(chunk_s) or sum(chunks) != tokens):
        return f"chunk_tokens do not add up to completion_tokens = {tokens}"
    return ""


class _Keyed(Protocol):
    @property
    def key(self) -> object: ...


_Line = TypeVar("_Line", bound=_Keyed)


def answers_in(path: Path, kind: type[_Line], of_run: Callable[[_Line], bool]) -> tuple[_Line, ...]:
    """The answers in the file at `path` for a run, each question once. Damaged lines are ignored.

    Raises ResultsError.
    """
    answers: dict[object, _Line] = {}
    try:
        for raw in lines_of(path) if path.exists() else ():
            with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
                line: _Line = reader(kind).validate_python(json_of(raw or b""))
                if of_run(line):
                    answers.setdefault(line.key, line)
    except OSError as error:
        raise ResultsError(
            f"{path}: cannot be read ({error.strerror}); make it readable, or remove it"
        ) from error
    return tuple(answers.values())
