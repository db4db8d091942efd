"""The lines of `requests.jsonl`: what was asked of whom, and what came back.

Two kinds: `run`, written each time the run is started or resumed, and `request`, one for each request.
Times are seconds; `started_unix_s` is wall time, everything else is taken from a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Phase = Literal["warmup", "measured"]
Provenance = Literal["measured", "emulated"]

_RENAMED = {"class_": "class"}


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


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request: either its numbers or its `error`, never both."""

    run: str
    arm: str
    class_: str
    concurrency: int
    prompt_id: str
    nonce: str
    pair_id: str
    """The same in each arm: same prompt, same nonce."""
    phase: Phase
    started_unix_s: float
    ttft_s: float | None = None
    e2e_s: float | None = None
    chunk_s: tuple[float, ...] = ()
    """Arrival of each output chunk, seconds since sending."""
    chunk_tokens: tuple[int, ...] | None = None
    """Tokens in each of them, where the server tells."""
    stream_chunks: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    token_source: str | None = None
    speculation: Mapping[str, Any] | None = None
    text_sha256: str | None = None
    text: str | None = None
    error: str | None = None
    """connect_refused, connect_failed, http_<status>, timeout, reset, malformed, stream_error, no_done,
    zero_tokens."""
    message: str | None = None


def to_json(record: RunRecord | RequestRecord) -> dict[str, Any]:
    """The JSON object of one line, `kind` first."""
    kind = "run" if isinstance(record, RunRecord) else "request"
    values = {_RENAMED.get(f.name, f.name): getattr(record, f.name) for f in fields(record)}
    return {"kind": kind, **values}


def from_json(content: Mapping[str, Any]) -> RunRecord | RequestRecord:
    """The record of one line; keys that this version does not know are dropped. Raises ValueError."""
    kinds: dict[str, type[RunRecord] | type[RequestRecord]] = {"run": RunRecord, "request": RequestRecord}
    if content.get("kind") not in kinds:
        raise ValueError(f"kind {content.get('kind')!r} is neither run nor request")
    record = kinds[content["kind"]]
    values: dict[str, Any] = {f.name: content.get(_RENAMED.get(f.name, f.name)) for f in fields(record)}
    for name in ("chunk_s", "chunk_tokens"):
        if isinstance(values.get(name), list):
            values[name] = tuple(values[name] or ())
    return record(**values)
