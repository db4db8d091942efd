"""The records of a run by cell, and what an arm delivered in one: throughput, goodput under an SLO, cost of its tokens.

The time that counts is the one in which the arm's load was held: the requests sent in the steady window of a block, over the length
of that window. Of blocks that were not held, as in a replay, it is the time in which the arm had requests of the cell: the
other arms' turns and what lies between blocks are not in it, the slow end of each block is.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from benchmark.analyse.stats import Source
from benchmark.analyse.values import Blocks, Records, output_tokens, pooled, request_values
from benchmark.measure.journal import RawRun
from benchmark.measure.records import REPEATED, BlockRecord, RequestRecord
from benchmark.metrics import TPOT
from benchmark.plan import MIXED, Load, Plan, PlannedArm

CLOCK_S = 0.002
"""Starts are written down to the millisecond."""
Pairs = Sequence[tuple[RequestRecord, RequestRecord]]


class Place(NamedTuple):
    """Where arms meet: one class of prompts under one load."""

    class_: str
    load: Load

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Place:
        """Where a row of a summary belongs: a cell, a comparison, an explanation."""
        return cls(row.get("class", ""), Load(concurrency=row["concurrency"], rate_per_s=row["rate_per_s"]))

    def __str__(self) -> str:
        return f"{self.class_}, {self.load.in_words}"

    def to_dict(self) -> dict[str, Any]:
        return {"class": self.class_, **size_of(self.load)}


def size_of(load: Load) -> dict[str, Any]:
    return {"concurrency": load.concurrency, "rate_per_s": load.rate_per_s}


@dataclass(frozen=True, kw_only=True)
class Footing:
    """What a comparison rests on."""

    held: bool = True
    """Whether the load was held while it was measured, or was the recorded one."""
    starts: int = 1
    """How often the servers were started."""


@dataclass(frozen=True)
class Cells:
    """The measured part of a run, by arm and place."""

    plan: Plan
    requests: dict[tuple[str, Place], list[RequestRecord]]
    blocks: dict[tuple[str, Place], list[BlockRecord]]
    made_up: frozenset[tuple[str, str]] = frozenset()
    """Arms and classes whose acceptance an emulated endpoint made up."""
    beside: dict[tuple[str, Place], list[RequestRecord]] = field(default_factory=dict)
    """What built a load up and kept it up afterwards, by arm and what a block was made of: in no figure, but in the servers' counters."""
    held: bool = True
    """Whether loads were held while they were measured, or are those that were recorded, as in a replay."""

    @property
    def places(self) -> Iterator[Place]:
        """In the order of the tables: load by load, class by class."""
        return (Place(class_, load) for load, class_ in product(self.plan.loads, self.plan.classes))

    def baseline_of(self, arm: PlannedArm) -> PlannedArm:
        return self.plan.arm(self.plan.baselines[arm.name])

    @property
    def treatments(self) -> list[PlannedArm]:
        return [arm for arm in self.plan.arms if self.baseline_of(arm) is not arm]

    def per_usd(self, arm: PlannedArm, load: Load) -> float:
        """Output tokens a second and dollar an hour that it delivered; without all prices, as if they were equal."""
        queues = [Place(class_, load) for class_ in self.plan.loaded_with]
        records = [record for place in queues for record in self.loaded(arm, place)[0]]
        blocks = [block for place in queues for block in self.blocks_of(arm, place)]
        delivered = throughput(arm, records, blocks) or {}
        usd = arm.usd_per_hour if all(self.plan.prices.values()) else None
        return (delivered.get("output_tokens_per_s") or 0.0) / (usd or 1.0)

    def best_baseline(self, load: Load) -> PlannedArm:
        baselines = [self.plan.arm(name) for name in dict.fromkeys(self.plan.baselines.values())]
        return max(baselines, key=lambda arm: self.per_usd(arm, load)) if len(baselines) > 1 else baselines[0]

    def compared(self, load: Load) -> list[tuple[PlannedArm, PlannedArm]]:
        """Each treatment behind its own baseline, and behind the best one where that is another."""
        best = self.best_baseline(load)
        return [
            (self.plan.arm(name), arm)
            for arm in self.treatments
            for name in dict.fromkeys((self.plan.baselines[arm.name], best.name))
        ]

    def of(self, arm: PlannedArm, place: Place) -> list[RequestRecord]:
        """All measured requests of a cell, failed ones too."""
        return self.requests.get((arm.name, place), [])

    def answered(self, arm: PlannedArm, place: Place) -> list[RequestRecord]:
        return [record for record in self.of(arm, place) if record.error is None]

    def asked(self, arm: PlannedArm, load: Load) -> list[RequestRecord]:
        return [record for class_ in self.plan.classes for record in self.of(arm, Place(class_, load))]

    def blocks_of(self, arm: PlannedArm, place: Place) -> list[BlockRecord]:
        return self.blocks.get((arm.name, place), [])

    def loaded(self, arm: PlannedArm, place: Place) -> tuple[list[RequestRecord], list[BlockRecord]]:
        """All that the arm was asked in the blocks of a cell, and the blocks: of a replay, all classes together."""
        if not self._together:
            return self.of(arm, place), self.blocks_of(arm, place)
        return self.asked(arm, place.load), self.blocks_of(arm, Place(MIXED, place.load))

    def plain_of(self, arm: PlannedArm) -> PlannedArm | None:
        """An arm that decodes plainly, the baseline of `arm` where it does; None without such an arm."""
        arms = (self.baseline_of(arm), *self.plan.arms)
        return next((arm for arm in arms if arm.max_tokens_per_step == 1), None)

    def plain_s(self, arm: PlannedArm, place: Place) -> float | None:
        """Seconds of a step of such an arm."""
        plain = self.plain_of(arm)
        timed = plain and pooled(self.answered(plain, place), 1)
        return timed.tpot_s if timed else None

    def judged(self, arms: tuple[PlannedArm, PlannedArm], place: Place) -> bool:
        """Whether a difference between two arms there says anything."""
        return not {(arm.name, place.class_) for arm in arms} & self.made_up

    def mixes(self, arm: PlannedArm) -> bool:
        """Whether its classes can be taken together: a mix without one of them would not be what was asked."""
        return not any((arm.name, class_) in self.made_up for class_ in self.plan.classes)

    def pairs(self, arms: tuple[PlannedArm, PlannedArm], place: Place) -> Pairs:
        return pairs_of(*(self.of(arm, place) for arm in arms))

    def loaded_with(self, class_: str) -> str:
        """What the blocks are made of in which a class was asked: the class itself, or all of them."""
        return MIXED if self._together else class_

    @cached_property
    def _together(self) -> bool:
        return MIXED in self.plan.loaded_with

    def footing(self, load: Load) -> Footing:
        starts = defaultdict[str, set[int]](set)
        for (_, place), records in self.requests.items():
            if place.load == load:
                starts[place.class_].update(record.start for record in records)
        return Footing(held=self.held, starts=max(1, min(map(len, starts.values()), default=1)))

    def source(self, record: RequestRecord) -> Source:
        """Where the chance in a request comes from. A block without its number is found by the time; a load that was not held, and
        had one block, says nothing about blocks."""
        queue = self.loaded_with(record.class_)
        name: str | None = f"{record.start}/{record.round}/{record.block}"
        if record.block is None:
            blocks = self._begun.get((record.arm, Place(queue, record.load)), [])
            index = bisect_right([at_s for at_s, *_ in blocks], record.started_unix_s + CLOCK_S)
            _, until_s, name = blocks[index - 1] if index else (0.0, 0.0, "")
            if record.started_unix_s > until_s or (len(blocks) == 1 and record.concurrency is not None):
                name = None
        return Source(record.class_, record.prompt_id, queue, name, record.start)

    @cached_property
    def _begun(self) -> dict[tuple[str, Place], list[tuple[float, float, str]]]:
        """The blocks without a number, by arm and place: from when, until when, and which of their round they are."""
        found: dict[tuple[str, Place], list[tuple[float, float, str]]] = {}
        for key, blocks in self.blocks.items():
            numbers: Counter[tuple[int, int]] = Counter()
            for block in sorted(blocks, key=lambda block: block.started_unix_s):
                numbers[block.start, block.round] += 1
                name = f"{block.start}/{block.round}/{numbers[block.start, block.round]}"
                until_s = block.started_unix_s + block.duration_s + CLOCK_S
                found.setdefault(key, []).append((block.started_unix_s, until_s, name))
        return found


def sort_out(raw: RawRun, *, repeated: bool = False) -> Cells:
    """The cells of `raw`; `repeated`: of the first cell's repetition alone, which is in no figure.

    A request of a held load counts where its block ended (`RawRun.counts`). What a replaced node served is another start of the servers.
    """
    raw = raw.by_nodes
    made_up = frozenset((arm, name) for arm, names in raw.made_up.items() for name in names)
    cells = Cells(raw.plan, {}, {}, made_up, held=raw.held or raw.plan.replayed)
    for block in raw.blocks:
        if (block.round == REPEATED) == repeated and (
            block.block is None or raw.ended.get(block.key) is block
        ):
            cells.blocks.setdefault((block.arm, Place(block.class_, block.load)), []).append(block)
    for record in raw.requests:
        if record.phase == "warmup" or (record.round == REPEATED) != repeated or not raw.counts(record):
            continue
        measured = record.phase == "measured"
        place = Place(record.class_ if measured else cells.loaded_with(record.class_), record.load)
        (cells.requests if measured else cells.beside).setdefault((record.arm, place), []).append(record)
    return cells


def pairs_of(baseline: Records, treatment: Records) -> Pairs:
    """Records of the two arms that belong together and were both answered, under the same start of the servers."""
    by_pair = {(record.pair_id, record.start): record for record in treatment if record.error is None}
    pairs = ((record, by_pair.get((record.pair_id, record.start))) for record in baseline)
    return [(record, other) for record, other in pairs if record.error is None and other is not None]


def token_source(records: Iterable[RequestRecord]) -> str | None:
    """The one source of token counts, or how many requests had which."""
    counts = Counter(record.token_source for record in records if record.token_source)
    if len(counts) < 2:
        return next(iter(counts), None)
    return "mixed: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=str))


def throughput(arm: PlannedArm, records: Records, blocks: Blocks) -> dict[str, Any] | None:
    """Requests and tokens per second of loaded time; None where nothing was answered."""
    counted, loaded_s = _loaded(records, blocks)
    answered = [record for record in counted if record.error is None]
    if not answered or loaded_s <= 0:
        return None
    tokens = [output_tokens(record, arm.max_tokens_per_step) for record in answered]
    known = [count for count in tokens if count is not None]
    return {
        "requests_per_s": len(answered) / loaded_s,
        "output_tokens_per_s": sum(known) / loaded_s if len(known) == len(tokens) else None,
        "loaded_s": loaded_s,
        "mean_in_flight": sum(record.e2e_s or 0.0 for record in answered) / loaded_s,
        "client_lag_s": max((block.client_lag_s for block in blocks), default=None),
    }


def goodput(
    slo: Mapping[str, float] | None, arm: PlannedArm, records: Records, blocks: Blocks
) -> dict[str, Any] | None:
    """Requests that kept every limit, as a share of all and per second; None without an SLO or a request.

    An answer of one token has no time per output token and keeps that limit; where tokens cannot be counted
    nothing is said.
    """
    most = arm.max_tokens_per_step
    if not slo or not records:
        return None
    if TPOT.name in slo and any(r.error is None and output_tokens(r, most) is None for r in records):
        return None

    def kept(record: RequestRecord) -> bool:
        values = request_values(record, most)
        return bool(values) and all(values.get(name, 0.0) <= limit for name, limit in slo.items())

    counted, loaded_s = _loaded(records, blocks)
    return {
        "slo": dict(slo),
        "share": sum(map(kept, records)) / len(records),
        "per_s": sum(map(kept, counted)) / loaded_s if loaded_s > 0 else None,
    }


def cost(arm: PlannedArm, delivered: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a million output tokens cost at this load; None without a price or a count of tokens."""
    per_s = delivered["output_tokens_per_s"] if delivered else None
    if arm.usd_per_hour is None or not per_s:
        return None
    return {
        "usd_per_million_output_tokens": arm.usd_per_hour / (per_s * 3600) * 1e6,
        "usd_per_hour": arm.usd_per_hour,
        "output_tokens_per_s_of_arm": per_s,
    }


def _loaded(records: Records, blocks: Blocks) -> tuple[Records, float]:
    """The requests that are counted and the seconds that they took.

    Blocks that were interrupted are not recorded as such: where there are any, their requests do not count.
    """
    if not blocks:
        return records, covered([(r.started_unix_s, r.started_unix_s + (r.e2e_s or 0.0)) for r in records])
    if all(block.steady_from_s is not None for block in blocks):
        return records, math.fsum(_delivered_s(block, records) for block in blocks)
    spans = sorted(map(_steady, blocks))
    starts = [begin - CLOCK_S for begin, _ in spans]
    inside = [
        record
        for record in records
        if (index := bisect_right(starts, record.started_unix_s))
        and record.started_unix_s <= spans[index - 1][1] + CLOCK_S
    ]
    return inside, math.fsum(end - begin for begin, end in spans)


def _steady(block: BlockRecord) -> tuple[float, float]:
    """From when to when what was sent in a block counts: all of it, where its load was not held."""
    until_s = block.duration_s if block.steady_until_s is None else block.steady_until_s
    return block.started_unix_s + (block.steady_from_s or 0.0), block.started_unix_s + until_s


def _delivered_s(block: BlockRecord, records: Records) -> float:
    """How long a block's requests took: the steady window, in which as many are sent as are answered. Where they arrive faster than
    they are answered, from the first answer's end to the last's."""
    begin, end = _steady(block)
    if block.rate_per_s is None:
        return end - begin
    own = (r for r in records if (r.round, r.start, r.block) == (block.round, block.start, block.block))
    ends = [r.started_unix_s + r.e2e_s for r in own if r.e2e_s is not None]
    return max(end - begin, max(ends) - min(ends)) if ends else end - begin


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that at least one of the spans covers."""
    seconds, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        seconds += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return seconds
