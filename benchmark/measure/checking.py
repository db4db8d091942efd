"""Whether a line of the journal is used: whether it is one of its run, and whether its numbers can be true.

A request with numbers that no answer can have counts as failed, also in the records of another client: recorded, counted,
named, and left out of every figure, since an average over one impossible count is an impossible average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from operator import gt
from reprlib import repr as shown
from typing import Any

from benchmark.measure.records import MOST_ROUNDS, REPEATED, Record, RequestRecord, RunRecord
from benchmark.measure.stream import MOST_TOKENS, ImplausibleCount, statistics_of, tokens_in
from benchmark.plan import Load

_USAGE, _TIMES = "implausible_usage", "implausible_times"
"""Names of the errors; the client itself refuses the first at the socket."""
_NUMBERS = "ttft_s e2e_s chunk_tokens stream_chunks prompt_tokens cached_tokens completion_tokens spec_stats"
_NOTHING: dict[str, Any] = {
    **dict.fromkeys((*_NUMBERS.split(), "finish_reason", "token_source", "text_sha256", "text")),
    "chunk_s": (),
}
"""What a failed request has instead of numbers."""
_LONGEST_S = 1e7
_LEAST_S = 5e-7
"""Times are written down to the microsecond: a shorter one is 0."""


class Belonging:
    """What the run that a journal begins with lets follow."""

    def __init__(self, opening: RunRecord) -> None:
        plan = opening.plan
        self._opening, self._identity = opening, plan.sha256()
        self._known = {"arm": {arm.name for arm in plan.arms}, "class_": {*plan.classes, *plan.loaded_with}}
        self._admits = plan.admits
        self._rounds = plan.rounds if plan.duration_s is None else MOST_ROUNDS
        self._repeats = plan.held
        if plan.search:
            self._rounds = REPEATED
        self._limits = {prompt.id: plan.most_tokens(prompt) for prompt in plan.prompts}
        self._most_tokens = max(self._limits.values())
        self._seen: set[int] = set()

    def checked(self, record: Record) -> Record:
        """`record` as it is used. Raises ValueError where it is not of the run, or is there already."""
        if isinstance(record, RequestRecord):
            record = believed(record, self._limits.get(record.prompt_id, self._most_tokens))
        if record.run != self._opening.run:
            raise ValueError(f"run is {shown(record.run)}, the journal is of {self._opening.run}")
        if isinstance(record, RunRecord):
            if record.plan.sha256() != self._identity or record.provenance != self._opening.provenance:
                raise ValueError("a sitting with another plan or provenance")
            return record
        for name, known in self._known.items():
            if (value := getattr(record, name)) not in known:
                raise ValueError(f"{name.rstrip('_')} is {shown(value)}, which the plan does not have")
        if isinstance(record, RequestRecord) and record.phase == "warmup":
            return record
        load = Load(concurrency=record.concurrency, rate_per_s=record.rate_per_s)
        if not self._admits(load):
            raise ValueError(f"the load is {load}, which the plan does not have")
        if record.round > self._rounds and not (self._repeats and record.round == REPEATED):
            raise ValueError(f"round is {record.round}, of {self._rounds}")
        if isinstance(record, RequestRecord):
            if (identity := hash((record.arm, record.pair_id))) in self._seen:
                raise ValueError(f"pair_id is {shown(record.pair_id)}, which the arm was asked already")
            self._seen.add(identity)
        return record


def believed(record: RequestRecord, most_tokens: int = MOST_TOKENS) -> RequestRecord:
    """`record`, as a failure where its numbers cannot be true of an answer of `most_tokens` at most."""
    if record.error is not None:
        return record
    if found := _times(record):
        return replace(record, **_NOTHING, error=_TIMES, message=found)
    if found := _counts(record, most_tokens):
        return replace(record, **_NOTHING, error=_USAGE, message=found)
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
    if record.ttft_s is None or record.e2e_s is None:
        return "neither an error nor the times of an answer"
    if record.ttft_s > record.e2e_s:
        return f"ttft_s = {record.ttft_s:g} is after the end, e2e_s = {record.e2e_s:g}"
    span = record.chunk_s[-1] - record.chunk_s[0] if len(record.chunk_s) else 0.0
    if any(0 < value < _LEAST_S for value in (record.ttft_s, record.e2e_s, span)):
        return "a time is shorter than a microsecond"
    return None


def _counts(record: RequestRecord, limit: int) -> str | None:
    tokens, chunks = record.completion_tokens, record.chunk_tokens
    try:
        for name in ("prompt_tokens", "cached_tokens", "stream_chunks", "completion_tokens"):
            most = limit if name == "completion_tokens" else MOST_TOKENS
            tokens_in({name: getattr(record, name)}, name, most=most)
        statistics_of(record.spec_stats or {}, most_tokens=limit)
    except (ImplausibleCount, AttributeError, TypeError) as error:
        return str(error)
    if tokens == 0 and record.chunk_s:
        return "completion_tokens = 0 for an answer with output"
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
