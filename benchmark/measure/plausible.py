"""Numbers that no answer can have: a record with such a number counts as failed, whoever wrote it down.

An average over one impossible count is an impossible average, so the request joins the failures: recorded, counted,
named, and left out of every figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import gt
from typing import Any

from benchmark.measure.records import RequestRecord

USAGE, TIMES = "implausible_usage", "implausible_times"
"""Names of the errors; the client itself refuses the first at the socket."""
MOST_TOKENS = 10**9
"""Of a prompt or an answer, where no request says how many it asked for."""
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("ttft_s", "e2e_s", "chunk_tokens", "stream_chunks", "prompt_tokens", "cached_tokens")),
    **dict.fromkeys(
        ("completion_tokens", "finish_reason", "token_source", "spec_stats", "text_sha256", "text")
    ),
    "chunk_s": (),
}
"""What a failed request has instead of numbers."""
_LONGEST_S = 1e7
_LIMITS = ("max_tokens", "max_completion_tokens")


def token_limits(plan: Mapping[str, Any]) -> dict[str, int]:
    """By prompt, how many tokens its answer was limited to; nothing for a plan that cannot be read."""
    try:
        extra = plan.get("extra_body") or {}
        over = [extra[name] for name in _LIMITS if type(extra.get(name)) is int]
        asked = {p["id"]: p.get("max_tokens") or plan["max_tokens"] for p in plan["prompts"]}
        return {id_: max([most, *over]) for id_, most in asked.items() if type(most) is int}
    except (AttributeError, KeyError, TypeError):
        return {}


def believed(record: RequestRecord, limits: Mapping[str, int]) -> RequestRecord:
    """`record`, as a failure where its numbers cannot be true."""
    if record.error is not None:
        return record
    if found := _times(record):
        return replace(record, **_NOTHING, error=TIMES, message=found)
    if found := _counts(record, limits.get(record.prompt_id, MOST_TOKENS)):
        return replace(record, **_NOTHING, error=USAGE, message=found)
    return record


def _times(record: RequestRecord) -> str | None:
    for name in ("ttft_s", "e2e_s"):
        value = getattr(record, name)
        if value is not None and not _numbers((value,)):
            return f"{name} = {value!r} is not a time"
    if not _numbers(record.chunk_s):
        return "chunk_s holds a value that is not a time"
    if any(map(gt, record.chunk_s, islice(record.chunk_s, 1, None))):
        return "chunk_s falls: a chunk came before the one before it"
    if record.ttft_s is not None and record.e2e_s is not None and record.ttft_s > record.e2e_s:
        return f"ttft_s = {record.ttft_s:g} is after the end, e2e_s = {record.e2e_s:g}"
    return None


def _counts(record: RequestRecord, limit: int) -> str | None:
    for name in ("prompt_tokens", "cached_tokens", "stream_chunks"):
        value = getattr(record, name)
        if value is not None and not _count(value, MOST_TOKENS):
            return f"{name} = {_short(value)} is not a count of tokens"
    tokens, chunks = record.completion_tokens, record.chunk_tokens
    if tokens is not None and not (_count(tokens, limit) and (tokens or not record.chunk_s)):
        return f"completion_tokens = {_short(tokens)} for an answer with output, of {limit} tokens at most"
    if chunks is None:
        return None
    if len(chunks) != len(record.chunk_s) or min(chunks, default=0) < 0 or sum(chunks) != tokens:
        return f"chunk_tokens do not come to completion_tokens = {tokens}"
    return None


def _numbers(values: Sequence[Any]) -> bool:
    """Whether all are numbers from 0 that a clock can show; NaN is not above anything."""
    try:
        return not values or (min(values) >= 0 and math.fsum(values) <= len(values) * _LONGEST_S)
    except (TypeError, OverflowError):
        return False


def _count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else repr(value)[:40]
