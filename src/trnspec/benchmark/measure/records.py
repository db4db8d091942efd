"""The lines of `requests.jsonl`: the requests and their results.

There are five kinds: `run`, written each time the run is started or resumed; `request`, one for each request of the load; `block`,
written when a block of requests to one arm has ended; `question`, asked before the load; `repeat`, asked after it. Times are seconds.
`started_unix_s` is wall time, all other times are from a monotonic clock.

A line that has a wrong type, belongs to another run, or has impossible numbers is left out: it would distort the results.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from reprlib import repr as shown
from sys import intern
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, InstanceOf, PlainValidator, TypeAdapter, ValidationError

from trnspec.benchmark.errors import PlanError
from trnspec.benchmark.plan import Load, Plan, from_dict

COUNTED_GENERATED = "vllm:generation_tokens_total"
"""Counts tokens, or, on engines before vLLM's V1, the steps of each sequence (`trnspec.benchmark.analyse.values`)."""
COUNTED_DRAFTS = "vllm:spec_decode_num_drafts_total"
COUNTED_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
COUNTED_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
COUNTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
"""Its key ends in the position within the draft, from 0: `.../0`."""
LATE_S = 0.02
"""If the client was later than this in a block, there is a warning: the delay is visible in the times that are compared."""
MAX_TOKENS = 1 << 24
"""The maximum tokens of a prompt or an answer; more than any model accepts."""
_OVERSHOOT_TOKENS = 64
"""The tolerance for accepted drafts of the last step that are after the end of the answer."""
_MAX_ENTRIES, _MAX_CHARS = 1024, 200


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
    if isinstance(content, dict):
        content = {k: v for k, v in content.items() if (k, v) not in _UNUSED.items()}
    return from_dict(content)


Phase = Literal["warmup", "ramp", "measured", "drain"]
"""Only `measured` requests are in results. `ramp` requests are sent before the steady window of a block, `drain` requests after it
(`SteadyLoad`)."""
Provenance = Literal["measured", "emulated"]
Api = Literal["chat", "completions"]
Name = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_shared)]
RunId = Annotated[str, Field(max_length=1000, pattern=r"^[^/.][^/]*$"), AfterValidator(_shared)]
Text = InstanceOf[str]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_TOKENS)]
REPEATED = 1_000_000
"""The round in which a run repeats its first cell; all cells are measured in round 1."""
Ordinal = Annotated[int, Field(strict=True, ge=1, le=REPEATED)]
MAX_S, MIN_S = 1e7, 5e-7
"""The maximum of a time, and the minimum of one that is not 0; times are recorded in microseconds."""
Seconds = Annotated[float, Field(strict=True, ge=0, le=MAX_S)]
_FIRST_MOMENT, _LAST_MOMENT = -62_135_596_800.0, 253_402_300_799.0
"""The range of dates, the years 1 to 9999. A run can be read even if the clock of its machine was wrong."""
Moment = Annotated[float, Field(strict=True, ge=_FIRST_MOMENT, le=_LAST_MOMENT)]
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
    versions: Mapping[str, Text] | None = None
    """The version of the server by arm, where `/version` says one."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What came of a request: either its numbers or its `error`, never both."""

    ttft_s: Seconds | None = None
    e2e_s: Seconds | None = None
    chunk_s: Annotated[Sequence[float], _packed("d")] = ()
    """Arrival of each output chunk, seconds since sending; in an open loop, since the request was due."""
    chunk_tokens: Annotated[Sequence[int], _packed("I")] | None = None
    """Tokens in each chunk, if the server says so."""
    chunk_chars: Annotated[Sequence[int], _packed("I")] | None = None
    """Characters in each chunk, where its tokens are not known."""
    output_keys: tuple[Text, ...] = ()
    """The keys of the stream's deltas under which output came, such as content."""
    stream_chunks: Count | None = None
    """All chunks with a choice, including role-only and empty ones."""
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    """Prompt tokens from the server's prefix cache, if it says so."""
    completion_tokens: Count | None = None
    """Tokens of the answer; None if the server sends no usage."""
    reasoning_tokens: Count | None = None
    """Tokens of its reasoning, if the server says so; they may not be in the stream."""
    finish_reason: Text | None = None
    model: Name | None = None
    """The model that answered, as the stream names it."""
    token_source: Name | None = None
    """usage-per-chunk, final-usage, or chunks where the server sends no usage."""
    spec_stats: Annotated[Mapping[str, Any], AfterValidator(statistics_of)] | None = None
    """The server's statistics of speculation for this request, as it sent them."""
    text_sha256: Text | None = None
    text: Text | None = None
    error: Name | None = None
    """connect_refused, connect_failed, http_<status>, timeout, reset, malformed, html_page, stream_error, no_done, no_finish_reason,
    ended_<finish_reason>, zero_tokens, implausible_usage, too_large."""
    message: Text | None = None
    pause_s: float = 0.0
    """Seconds that the next request waits after a refusal: as the server asks (Retry-After), or as it probably needs. Not in the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRecord(Reply):
    """One request."""

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
    session: Annotated[Ordinal, Field(alias="sitting")] = 1
    start: Ordinal = 1
    """The number of the start of the servers: another node is another start (`RawRun.by_nodes`). Not in the file."""

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


@dataclass(frozen=True, kw_only=True)
class _Beside:
    """A request beside the load, with the text of its answer or with an error."""

    run: RunId
    started_unix_s: Moment
    text: Text | None = None
    error: Name | None = None
    message: Text | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionRecord(_Beside):
    """A simple question to an arm before the load."""

    arm: Name
    question: Name
    accepted: Annotated[tuple[Name, ...], Field(min_length=1, max_length=100)]


@dataclass(frozen=True, kw_only=True)
class RepeatRecord(_Beside):
    """A request that the baseline is asked again after the load."""

    pair_id: Name


Record = RunRecord | RequestRecord | BlockRecord | QuestionRecord | RepeatRecord
_KINDS: dict[str, type[Record]] = {
    "run": RunRecord,
    "request": RequestRecord,
    "block": BlockRecord,
    "question": QuestionRecord,
    "repeat": RepeatRecord,
}
_KIND_OF = {type_: kind for kind, type_ in _KINDS.items()}
_KEYS = {"class_": "class", "session": "sitting"}
"""Keys that differ from the name of their field."""
_NOT_STORED = ("start", "pause_s")


def values_of(record: Any) -> dict[str, Any]:
    """The values of a record or a reply, by field."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def to_json(record: Record) -> dict[str, Any]:
    """The JSON object of one line of a journal, with `kind` first."""
    values = {
        _KEYS.get(key, key): value for key, value in values_of(record).items() if key not in _NOT_STORED
    }
    if isinstance(record, RunRecord):
        values["plan"] = record.plan.to_dict()
    for name in ("chunk_s", "chunk_tokens", "chunk_chars", "output_keys"):
        if values.get(name) is not None:
            values[name] = list(values[name])
    return {"kind": _KIND_OF[type(record)], **values}


def from_json(content: Any) -> Record:
    """The record of one line. Unknown keys are ignored, and absent ones have their defaults. Raises ValueError."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"not an object whose kind is one of {', '.join(_KINDS)}")
    try:
        record: Record = _reader(_KINDS[kind]).validate_python(content)
        return record
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"][0])
        raise ValueError(f"{name} is {shown(content[name]) if name in content else 'missing'}") from error
    except PlanError as error:
        raise ValueError(f"plan: {str(error)[:200]}") from error
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not a record: {error}") from error


@cache
def _reader(type_: type[Record]) -> TypeAdapter[Any]:
    """The validator of this type, created when it is first needed."""
    return TypeAdapter(type_)


def tokens_in(usage: Mapping[str, Any], key: str, *, maximum: int = MAX_TOKENS) -> int | None:
    """The number of tokens under `key`, from 0 to `maximum`; None if the key is missing. Raises ValueError."""
    value = usage.get(key)
    if (isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _MAX_CHARS) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    if value is None or (type(value) is int and 0 <= value <= maximum):
        return value
    raise ValueError(f"{key} is {shown(value)}; must be a whole number from 0 to {maximum}")


def statistics_of(drafts: Mapping[str, Any], *, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """Statistics of speculation without nested or long values. Raises ValueError."""
    maximum = max_tokens + _OVERSHOOT_TOKENS
    for key in ("num_spec_steps", "num_accepted_draft_tokens"):
        tokens_in(drafts, key, maximum=maximum)
    histogram = drafts.get("acceptance_histogram")
    if histogram is not None and not _are_counts(histogram, maximum):
        wanted = f"a list of at most {_MAX_ENTRIES} counts"
        raise ValueError(f"acceptance_histogram is {shown(histogram)}; must be {wanted}")
    return {key: value for key, value in drafts.items() if len(key) <= _MAX_CHARS and _is_simple(value)}


def _are_counts(value: Any, maximum: int) -> bool:
    counts = isinstance(value, list) and len(value) <= _MAX_ENTRIES
    return counts and all(type(n) is int and 0 <= n <= maximum for n in value)


def _is_simple(value: Any) -> bool:
    """Whether a value is a simple JSON value of usual size, or a list of counts."""
    if isinstance(value, str):
        return len(value) <= _MAX_CHARS
    if isinstance(value, (int, float)):
        return abs(value) < 1 << 63
    return value is None or _are_counts(value, MAX_TOKENS)
