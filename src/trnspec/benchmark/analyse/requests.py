"""The requests of a run as one table: a row for each measured request, with every metric once; and the blocks that they were sent in."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from trnspec.benchmark.analyse import statistics
from trnspec.benchmark.analyse.statistics import UNKNOWN, Array, Sources
from trnspec.benchmark.analyse.values import decoding, output_tokens, values_of
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import REPEATED, BlockRecord, RequestRecord
from trnspec.benchmark.metrics import METRICS
from trnspec.benchmark.plan import MIXED, Load, Plan, PlannedArm

CLOCK_S = 0.002
"""Start times are recorded in milliseconds."""
_METRICS = tuple(metric.name for metric in METRICS if metric.scope == "request" and metric.unit != "requests")


class Place(NamedTuple):
    """A class of prompts and a load, at which arms are compared."""

    class_: str
    load: Load

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Place:
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
    sources: Sources
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
            ok=self.ok[rows],
            pair=self.pair[rows],
            sources=self.sources.of(rows),
            metrics={name: values[rows] for name, values in self.metrics.items()},
            tokens=self.tokens[rows],
            span_s=self.span_s[rows],
            decoded=self.decoded[rows],
            tpot_error=self.tpot_error[rows],
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
        return len(np.unique(self.sources.prompt))

    @property
    def tpot_s(self) -> float | None:
        """The time per token of all answers together; None if it is unknown for all."""
        tokens = np.nansum(self.decoded)
        return float(np.nansum(self.span_s) / tokens) if tokens else None

    def with_(self, other: Requests) -> tuple[Requests, Requests]:
        """The pairs of answers of both: equally long, in the order of this one."""
        _, own, others = np.intersect1d(
            np.where(self.ok, self.pair, -1), np.where(other.ok, other.pair, -2), return_indices=True
        )
        order = np.argsort(own)
        return self.at(own[order]), other.at(others[order])


@dataclass(frozen=True, kw_only=True)
class Footing:
    """The conditions of a comparison."""

    held: bool = True
    """Whether the load was held constant during measurement."""
    starts: int = 1
    """The number of starts of the servers."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The requests and blocks of a run by arm and place."""

    raw: RawRun
    """With a start of the servers for each node (`RawRun.by_nodes`)."""
    requests: Mapping[tuple[str, Place], Requests]
    """Measured requests."""
    unmeasured: Mapping[tuple[str, Place], Requests]
    """Requests of ramp and drain, by arm and class of the block. They are in the servers' counters, but in no result."""
    blocks: Mapping[tuple[str, Place], Sequence[BlockRecord]]
    made_up: frozenset[tuple[str, str]] = frozenset()
    """Arms and classes for which an emulated endpoint made up the acceptance."""
    left_out: frozenset[tuple[str, str]] = frozenset()
    """Arms and classes that have no part in a mix, because evidence withholds their verdicts."""
    none: Requests = field(default_factory=lambda: table([], {}))

    @property
    def plan(self) -> Plan:
        return self.raw.plan

    @property
    def places(self) -> Iterator[Place]:
        """In the order of the tables: load by load, class by class."""
        return (Place(class_, load) for load, class_ in product(self.plan.loads, self.plan.classes))

    def baseline_of(self, arm: PlannedArm) -> PlannedArm:
        return self.plan.arm(self.plan.baselines[arm.name])

    @property
    def compared(self) -> list[tuple[PlannedArm, PlannedArm]]:
        """Each treatment with its baseline, the baseline first."""
        both = ((self.baseline_of(arm), arm) for arm in self.plan.arms)
        return [(base, arm) for base, arm in both if base is not arm]

    def of(self, arm: PlannedArm, place: Place) -> Requests:
        """All measured requests of a cell, failed ones too."""
        return self.requests.get((arm.name, place), self.none)

    def asked(self, arm: PlannedArm, load: Load) -> Requests:
        """The measured requests of all classes."""
        return joined([self.none, *(self.of(arm, Place(class_, load)) for class_ in self.plan.classes)])

    def blocks_of(self, arm: PlannedArm, place: Place) -> Sequence[BlockRecord]:
        """The blocks in which the requests of a cell were sent. In a mixed cell they are of all classes."""
        return self.blocks.get((arm.name, Place(self.loaded_with(place.class_), place.load)), ())

    def loaded(self, arm: PlannedArm, place: Place) -> Requests:
        """All measured requests to the arm in the blocks of a cell."""
        return self.asked(arm, place.load) if self.together else self.of(arm, place)

    def beside(self, arm: PlannedArm, place: Place) -> Requests:
        """Requests of ramp and drain in the blocks of a cell."""
        return self.unmeasured.get((arm.name, Place(self.loaded_with(place.class_), place.load)), self.none)

    def plain_of(self, arm: PlannedArm) -> PlannedArm | None:
        """An arm without speculation, preferably the baseline of `arm`; None if every arm speculates."""
        arms = (self.baseline_of(arm), *self.plan.arms)
        return next((arm for arm in arms if arm.max_tokens_per_step == 1), None)

    def plain_s(self, arm: PlannedArm, place: Place) -> float | None:
        """Seconds per step of an arm without speculation."""
        plain = self.plain_of(arm)
        return self.of(plain, place).tpot_s if plain else None

    def judged(self, arms: tuple[PlannedArm, PlannedArm], place: Place) -> bool:
        """Whether two arms can be compared there: neither has a made-up acceptance."""
        return not {(arm.name, place.class_) for arm in arms} & self.made_up

    def mixes(self, arm: PlannedArm) -> bool:
        """Whether the mix of all classes is known: no class of the arm has a made-up acceptance."""
        return not any((arm.name, class_) in self.made_up for class_ in self.plan.classes)

    def pairs(self, arms: tuple[PlannedArm, PlannedArm], place: Place) -> tuple[Requests, Requests]:
        """Pairs of answered requests of two arms with the same prompt and nonce, under the same start of the servers."""
        return self.of(arms[0], place).with_(self.of(arms[1], place))

    def loaded_with(self, class_: str) -> str:
        """The class of the blocks in which a class was asked: itself, or MIXED."""
        return MIXED if self.together else class_

    @cached_property
    def together(self) -> bool:
        return MIXED in self.plan.loaded_with

    def known(self, arm: PlannedArm, load: Load) -> dict[str, Requests]:
        """The measured requests by class, without classes that are left out or whose acceptance was made up."""
        out = self.made_up | self.left_out
        classes = (class_ for class_ in self.plan.classes if (arm.name, class_) not in out)
        return {class_: own for class_ in classes if len(own := self.of(arm, Place(class_, load)))}

    def footing(self, load: Load) -> Footing:
        by_class: dict[str, set[int]] = {}
        for (_, place), own in self.requests.items():
            if place.load == load:
                by_class.setdefault(place.class_, set()).update(own.sources.start.tolist())
        return Footing(held=self.raw.held, starts=max(1, min(map(len, by_class.values()), default=1)))


def cells_of(raw: RawRun, *, repeated: bool = False) -> Cells:
    """The cells of `raw`. With `repeated`, only the repetition of the first cell, which is not in any result.

    A request of a held load counts if its block ended (`RawRun.counts`). A replaced node counts as another start of the servers.
    """
    raw = raw.by_nodes
    plan = raw.plan
    queue_of = dict.fromkeys(plan.classes, MIXED) if MIXED in plan.loaded_with else {}
    blocks: dict[tuple[str, Place], list[BlockRecord]] = {}
    for block in raw.blocks:
        if (block.round == REPEATED) == repeated and (
            block.block is None or raw.ended.get(block.key) is block
        ):
            blocks.setdefault((block.arm, Place(block.class_, block.load)), []).append(block)
    records = [
        record
        for record in raw.requests
        if record.phase != "warmup" and (record.round == REPEATED) == repeated and raw.counts(record)
    ]
    ceilings = {arm.name: arm.max_tokens_per_step for arm in plan.arms}
    rows = table(records, ceilings, queue_of=queue_of, blocks=blocks)
    measured: dict[tuple[str, Place], list[int]] = {}
    beside: dict[tuple[str, Place], list[int]] = {}
    for row, record in enumerate(records):
        if record.phase == "measured":
            measured.setdefault((record.arm, Place(record.class_, record.load)), []).append(row)
        else:
            beside.setdefault(
                (record.arm, Place(queue_of.get(record.class_, record.class_), record.load)), []
            ).append(row)
    by_cell, by_queue = (
        {key: rows.at(np.array(own)) for key, own in grouped.items()} for grouped in (measured, beside)
    )
    made_up = frozenset((arm, name) for arm, names in raw.made_up.items() for name in names)
    return Cells(raw, by_cell, by_queue, blocks, made_up)


def joined(parts: Sequence[Requests]) -> Requests:
    """The rows of several tables."""
    return Requests(
        answers=[answer for part in parts for answer in part.answers],
        ok=np.concatenate([part.ok for part in parts]),
        pair=np.concatenate([part.pair for part in parts]),
        sources=statistics.joined([part.sources for part in parts]),
        metrics={name: np.concatenate([part.metrics[name] for part in parts]) for name in _METRICS},
        tokens=np.concatenate([part.tokens for part in parts]),
        span_s=np.concatenate([part.span_s for part in parts]),
        decoded=np.concatenate([part.decoded for part in parts]),
        tpot_error=np.concatenate([part.tpot_error for part in parts]),
    )


def table(
    records: Sequence[RequestRecord],
    ceilings: Mapping[str, int],
    *,
    queue_of: Mapping[str, str] = MappingProxyType({}),
    blocks: Mapping[tuple[str, Place], Sequence[BlockRecord]] = MappingProxyType({}),
) -> Requests:
    """The table of these requests. `ceilings` are the tokens that a step of each arm can yield, `queue_of` the classes of the blocks in which
    each class was asked, where that is not the class itself."""
    metrics = {name: np.full(len(records), np.nan) for name in _METRICS}
    tokens, span_s, decoded, tpot_error = (np.full(len(records), np.nan) for _ in range(4))
    for row, record in enumerate(records):
        ceiling = ceilings[record.arm]
        known = output_tokens(record, ceiling)
        after = decoding(record, known)
        for name, value in values_of(record, ceiling, known, after).items():
            metrics[name][row] = value
        tokens[row] = np.nan if known is None else known
        if after:
            span_s[row], decoded[row], tpot_error[row] = after.span_s, after.tokens, after.doubt
    return Requests(
        answers=records,
        ok=np.array([record.error is None for record in records], bool),
        pair=_codes((record.pair_id, record.start) for record in records),
        sources=Sources(
            class_=_codes(record.class_ for record in records),
            prompt=_codes((record.class_, record.prompt_id) for record in records),
            queue=_codes(queue_of.get(record.class_, record.class_) for record in records),
            block=_blocks(records, queue_of, blocks),
            start=np.array([record.start for record in records], int),
        ),
        metrics=metrics,
        tokens=tokens,
        span_s=span_s,
        decoded=decoded,
        tpot_error=tpot_error,
    )


def _codes(values: Iterable[Any]) -> Array:
    """A number for each value; equal values have the same."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], int)


def _blocks(
    records: Sequence[RequestRecord],
    queue_of: Mapping[str, str],
    blocks: Mapping[tuple[str, Place], Sequence[BlockRecord]],
) -> Array:
    """The number of the block of each request, equal for both arms. If the record has none, the block is found by its time. A load that was
    not held and had one block has UNKNOWN here."""
    begun = {key: _begun(own) for key, own in blocks.items()} if any(r.block is None for r in records) else {}
    numbers: dict[tuple[int, int, int], int] = {}
    found = np.full(len(records), UNKNOWN)
    for row, record in enumerate(records):
        if (number := record.block) is None:
            own = begun.get((record.arm, Place(queue_of.get(record.class_, record.class_), record.load)), [])
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
