"""The lines of `requests.jsonl`: what was asked of whom, and what came back.

Three kinds: `run`, written each time the run is started or resumed; `request`, one for each request; `block`,
what was seen around a block of requests to one arm once it has ended.
Times are seconds; `started_unix_s` is wall time, everything else is taken from a monotonic clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from sys import intern
from typing import Any, Literal

Phase = Literal["warmup", "measured"]
Provenance = Literal["measured", "emulated"]
Api = Literal["chat", "completions"]

COUNTED_GENERATED = "vllm:generation_tokens_total"
"""Counts tokens, or, on engines before vLLM's V1, the steps of each sequence (`benchmark.analyse.drafts`)."""
COUNTED_DRAFTS = "vllm:spec_decode_num_drafts_total"
COUNTED_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
COUNTED_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
COUNTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
"""Its key ends in the position within the draft, from 0: `.../0`."""
_RENAMED = {"class_": "class"}
_FORMER = {"spec_stats": "speculation"}
"""What a key was called in older journals."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Start of a run, or of its continuation."""

    run: str
    sitting: int
    """1 at the start, one more at each continuation."""
    started_unix_s: float
    provenance: Provenance
    plan: Mapping[str, Any]
    plan_sha256: str
    owned_by: Mapping[str, str]
    """By arm: who the endpoint says owns the model."""
    timeout_s: float
    client: str
    python: str
    cautions: Sequence[str] | None = None
    """What emulated endpoints say against their own timings."""
    made_up: Mapping[str, Sequence[str]] | None = None
    """By arm: classes for which an emulated endpoint knows no acceptance and makes it up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRecord:
    """One request: either its numbers or its `error`, never both."""

    run: str
    arm: str
    class_: str
    concurrency: int | None
    """Requests in flight of the cell; None where they arrive at a rate."""
    prompt_id: str
    nonce: str
    pair_id: str
    """The same in each arm: same prompt, same nonce."""
    phase: Phase
    started_unix_s: float
    ttft_s: float | None = None
    e2e_s: float | None = None
    chunk_s: Sequence[float] = ()
    """Arrival of each output chunk, seconds since sending."""
    chunk_tokens: Sequence[int] | None = None
    """Tokens in each of them, where the server tells."""
    stream_chunks: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    token_source: str | None = None
    spec_stats: Mapping[str, Any] | None = None
    """The server's own statistics of speculation for this request, as it sent them."""
    text_sha256: str | None = None
    text: str | None = None
    error: str | None = None
    """connect_refused, connect_failed, http_<status>, timeout, reset, malformed, html_page, stream_error, no_done,
    zero_tokens, implausible_usage, too_large; implausible_times is a reader's (`benchmark.measure.plausible`)."""
    message: str | None = None
    round: int = 1
    """Which pass over all cells it belongs to, from 1."""
    rate_per_s: float | None = None
    """Mean arrival rate of the cell, open loop; None in a closed loop."""
    scheduled_s: float | None = None
    """When it was to be sent, seconds since the block's start; open loop only."""
    forced_length: bool = False
    """Whether the server was told to write on beyond the end of the answer, up to max_tokens."""
    api: Api = "chat"


@dataclass(frozen=True, kw_only=True)
class BlockRecord:
    """A block of measured requests to one arm, after its end."""

    run: str
    arm: str
    class_: str
    concurrency: int | None
    rate_per_s: float | None
    round: int
    started_unix_s: float
    duration_s: float
    client_lag_s: float
    """The longest that the client's event loop was late meanwhile: measured times may be too long by it."""
    counters_before: Mapping[str, float] | None = None
    """The server's counters of speculation, summed over label sets (`benchmark.measure.counters`)."""
    counters_after: Mapping[str, float] | None = None


Record = RunRecord | RequestRecord | BlockRecord
_KINDS: dict[str, type[Record]] = {"run": RunRecord, "request": RequestRecord, "block": BlockRecord}
_KIND_OF = {type_: kind for kind, type_ in _KINDS.items()}
_PACKED = {"chunk_s": "d", "chunk_tokens": "I"}
"""Sequences of numbers, by the type code that keeps them small: a run may hold millions of them."""
_REPEATED = frozenset(
    ("run", "arm", "class_", "prompt_id", "phase", "finish_reason", "token_source", "error", "api")
)
"""Texts that many records share, and that are therefore kept once."""


def to_json(record: Record) -> dict[str, Any]:
    """The JSON object of one line, `kind` first."""
    kind = _KIND_OF[type(record)]
    values = {_RENAMED.get(f.name, f.name): getattr(record, f.name) for f in fields(record)}
    for name in _PACKED:
        if values.get(name) is not None:
            values[name] = list(values[name])
    return {"kind": kind, **values}


def from_json(content: Mapping[str, Any]) -> Record:
    """The record of one line; keys that this version does not know are dropped, those that an older one did
    not write have their defaults. Raises ValueError, or TypeError where something is missing.
    """
    if content.get("kind") not in _KINDS:
        raise ValueError(f"kind {content.get('kind')!r} is none of {', '.join(_KINDS)}")
    record = _KINDS[content["kind"]]
    values: dict[str, Any] = {}
    for field in fields(record):
        name = _RENAMED.get(field.name, field.name)
        key = name if name in content else _FORMER.get(name, name)
        if key in content:
            values[field.name] = content[key]
    for name, value in values.items():
        if name in _REPEATED and isinstance(value, str):
            values[name] = intern(value)
        elif name in _PACKED and isinstance(value, list):
            values[name] = array(_PACKED[name], value)
    return record(**values)
