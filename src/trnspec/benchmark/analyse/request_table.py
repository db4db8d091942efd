"""The requests of a run as one table: a row for each measured request, with every metric once."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from trnspec.benchmark.analyse import statistics
from trnspec.benchmark.analyse.statistics import UNKNOWN, Array, ClusterIds
from trnspec.benchmark.analyse.values import decoding, output_tokens, values_of
from trnspec.benchmark.measure.records import BlockRecord, RequestRecord
from trnspec.benchmark.metrics import METRICS
from trnspec.benchmark.plan import Load

CLOCK_S = 0.002
"""Start times are recorded in milliseconds."""
_METRICS = tuple(metric.name for metric in METRICS if metric.scope == "request" and metric.unit != "requests")

_COLUMNS = ("ok", "pair", "tokens", "span_s", "decoded", "tpot_error")


class CellKey(NamedTuple):
    """A class of prompts and a load, at which arms are compared."""

    class_: str
    load: Load

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> CellKey:
        """The place of a row of a summary: of a cell, a comparison or an explanation."""
        return cls(row.get("class", ""), Load(concurrency=row["concurrency"], rate_per_s=row["rate_per_s"]))

    def __str__(self) -> str:
        return f"{self.class_}, {self.load.in_words}"

    def to_dict(self) -> dict[str, Any]:
        return {"class": self.class_, **vars(self.load)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Requests:
    """Rows of the table, as columns of equal length. An unknown number is NaN."""

    answers: Sequence[RequestRecord]
    ok: Array
    """Whether the request was answered."""
    pair: Array
    """The identity of a pair: the requests of two arms with the same number had the same prompt and nonce, under the same start."""
    cluster_ids: ClusterIds
    metrics: Mapping[str, Array]
    """Each metric of the registry that has a value for a request, by name."""
    tokens: Array
    span_s: Array
    """The time of decoding: from the first arrival to the last. NaN where nothing was decoded after the first arrival."""
    decoded: Array
    """Tokens after the first arrival."""
    tpot_error: Array
    """The bound of the error of the logarithm of the time per token, because the tokens of the first arrival are estimated."""

    def __len__(self) -> int:
        return len(self.answers)

    def at(self, rows: Array) -> Requests:
        """The rows with these numbers, or those that are true."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Requests(
            answers=[self.answers[row] for row in rows.tolist()],
            cluster_ids=self.cluster_ids.of(rows),
            metrics={name: values[rows] for name, values in self.metrics.items()},
            **{name: getattr(self, name)[rows] for name in _COLUMNS},
        )

    @cached_property
    def answered(self) -> Requests:
        return self.at(self.ok)

    @property
    def failed(self) -> int:
        return len(self) - int(self.ok.sum())

    @property
    def prompts(self) -> int:
        """The number of different prompts."""
        return len(np.unique(self.cluster_ids.prompt))

    @property
    def tpot_s(self) -> float | None:
        """The time per token of all answers together; None if it is unknown for all."""
        tokens = np.nansum(self.decoded)
        return float(np.nansum(self.span_s) / tokens) if tokens else None

    def paired_with(self, other: Requests) -> tuple[Requests, Requests]:
        """The pairs of answers of both: equally long, in the order of this one."""
        _, own, others = np.intersect1d(
            np.where(self.ok, self.pair, -1), np.where(other.ok, other.pair, -2), return_indices=True
        )
        order = np.argsort(own)
        return self.at(own[order]), other.at(others[order])


def joined(parts: Sequence[Requests]) -> Requests:
    """The rows of several tables."""
    return Requests(
        answers=[answer for part in parts for answer in part.answers],
        cluster_ids=statistics.joined([part.cluster_ids for part in parts]),
        metrics={name: np.concatenate([part.metrics[name] for part in parts]) for name in _METRICS},
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS},
    )


def table(
    records: Sequence[RequestRecord],
    ceilings: Mapping[str, int],
    *,
    queue_of: Mapping[str, str] = MappingProxyType({}),
    blocks: Mapping[tuple[str, CellKey], Sequence[BlockRecord]] = MappingProxyType({}),
) -> Requests:
    """The table of these requests. `ceilings` are the tokens that a step of each arm can yield, `queue_of` the classes of the blocks in which
    each class was asked, where that is not the class itself."""
    metrics = {name: np.full(len(records), np.nan) for name in _METRICS}
    decoding_of = {
        name: np.full(len(records), np.nan) for name in ("tokens", "span_s", "decoded", "tpot_error")
    }
    for row, record in enumerate(records):
        tokens = output_tokens(record, ceilings[record.arm])
        after = decoding(record, tokens)
        for name, value in values_of(record, ceilings[record.arm], tokens, after).items():
            metrics[name][row] = value
        known = (tokens, *((after.span_s, after.tokens, after.doubt) if after else ()))
        for column, value in zip(decoding_of.values(), known, strict=False):
            column[row] = np.nan if value is None else value
    return Requests(
        answers=records,
        ok=np.array([record.error is None for record in records], bool),
        pair=_codes((record.pair_id, record.start) for record in records),
        cluster_ids=ClusterIds(
            class_=_codes(record.class_ for record in records),
            prompt=_codes((record.class_, record.prompt_id) for record in records),
            queue=_codes(queue_of.get(record.class_, record.class_) for record in records),
            block=_blocks(records, queue_of, blocks),
            start=np.array([record.start for record in records], int),
        ),
        metrics=metrics,
        **decoding_of,
    )


def _codes(values: Iterable[Any]) -> Array:
    """A number for each value; equal values have the same."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], int)


def _blocks(
    records: Sequence[RequestRecord],
    queue_of: Mapping[str, str],
    blocks: Mapping[tuple[str, CellKey], Sequence[BlockRecord]],
) -> Array:
    """The number of the block of each request, equal for both arms. If the record has none, the block is found by its time. A load that was
    not held and had one block has UNKNOWN here."""
    begun = {key: _begun(own) for key, own in blocks.items()} if any(r.block is None for r in records) else {}
    numbers: dict[tuple[int, int, int], int] = {}
    found = np.full(len(records), UNKNOWN)
    for row, record in enumerate(records):
        if (number := record.block) is None:
            own = begun.get(
                (record.arm, CellKey(queue_of.get(record.class_, record.class_), record.load)), []
            )
            index = bisect_right(own, record.started_unix_s + CLOCK_S, key=lambda block: block[0])
            if not index or len(own) == 1 or record.started_unix_s > own[index - 1][1]:
                continue
            number = own[index - 1][2]
        found[row] = numbers.setdefault((record.start, record.round, number), len(numbers))
    return found


def _begun(blocks: Sequence[BlockRecord]) -> list[tuple[float, float, int]]:
    """Start, end and number of blocks in the order of their time; the number counts within their round."""
    numbers: Counter[tuple[int, int]] = Counter()
    spans = []
    for block in sorted(blocks, key=lambda block: block.started_unix_s):
        numbers[block.start, block.round] += 1
        begin_s = block.started_unix_s
        spans.append((begin_s, begin_s + block.duration_s + CLOCK_S, numbers[block.start, block.round]))
    return spans
