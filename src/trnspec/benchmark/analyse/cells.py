"""The records of a run by cell, and what an arm delivered in a cell: throughput, goodput under an SLO, cost of its tokens.

Throughput is the requests sent in the steady windows of the blocks, divided by the length of these windows. If the load was
not held, the time is that in which the arm had requests of the cell in flight. It includes the slow end of each
block, but not the turns of the other arms or the time between blocks.
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

from trnspec.benchmark.analyse.stats import Source, wilson
from trnspec.benchmark.analyse.values import Blocks, Records, output_tokens, pooled, request_values
from trnspec.benchmark.measure.journal import RawRun
from trnspec.benchmark.measure.records import REPEATED, BlockRecord, RequestRecord
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import MIXED, Load, Plan, PlannedArm

CLOCK_S = 0.002
"""Start times are recorded in milliseconds."""
Pairs = Sequence[tuple[RequestRecord, RequestRecord]]


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
        return {"class": self.class_, **size_of(self.load)}


def size_of(load: Load) -> dict[str, Any]:
    return {"concurrency": load.concurrency, "rate_per_s": load.rate_per_s}


@dataclass(frozen=True, kw_only=True)
class Footing:
    """The conditions of a comparison."""

    held: bool = True
    """Whether the load was held constant during measurement."""
    starts: int = 1
    """The number of starts of the servers."""


@dataclass(frozen=True)
class Cells:
    """The measured part of a run, by arm and place."""

    plan: Plan
    requests: dict[tuple[str, Place], list[RequestRecord]]
    blocks: dict[tuple[str, Place], list[BlockRecord]]
    made_up: frozenset[tuple[str, str]] = frozenset()
    """Arms and classes for which an emulated endpoint made up the acceptance."""
    unmeasured: dict[tuple[str, Place], list[RequestRecord]] = field(default_factory=dict)
    """Requests of ramp and drain, by arm and class of the block. They are in the servers' counters, but in no result."""
    held: bool = True
    """Whether loads were held constant during measurement."""

    @property
    def places(self) -> Iterator[Place]:
        """In the order of the tables: load by load, class by class."""
        return (Place(class_, load) for load, class_ in product(self.plan.loads, self.plan.classes))

    def baseline_of(self, arm: PlannedArm) -> PlannedArm:
        return self.plan.arm(self.plan.baselines[arm.name])

    @property
    def treatments(self) -> list[PlannedArm]:
        return [arm for arm in self.plan.arms if self.baseline_of(arm) is not arm]

    @property
    def compared(self) -> list[tuple[PlannedArm, PlannedArm]]:
        """Each treatment with its baseline, the baseline first."""
        return [(self.baseline_of(arm), arm) for arm in self.treatments]

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
        """All requests to the arm in the blocks of a cell, and the blocks. In a mixed cell they are of all classes."""
        if not self._together:
            return self.of(arm, place), self.blocks_of(arm, place)
        return self.asked(arm, place.load), self.blocks_of(arm, Place(MIXED, place.load))

    def plain_of(self, arm: PlannedArm) -> PlannedArm | None:
        """An arm without speculation, preferably the baseline of `arm`; None if every arm speculates."""
        arms = (self.baseline_of(arm), *self.plan.arms)
        return next((arm for arm in arms if arm.max_tokens_per_step == 1), None)

    def plain_s(self, arm: PlannedArm, place: Place) -> float | None:
        """Seconds per step of an arm without speculation."""
        plain = self.plain_of(arm)
        timed = plain and pooled(self.answered(plain, place), 1)
        return timed.tpot_s if timed else None

    def judged(self, arms: tuple[PlannedArm, PlannedArm], place: Place) -> bool:
        """Whether two arms can be compared there: neither has a made-up acceptance."""
        return not {(arm.name, place.class_) for arm in arms} & self.made_up

    def mixes(self, arm: PlannedArm) -> bool:
        """Whether the mix of all classes is known: no class of the arm has a made-up acceptance."""
        return not any((arm.name, class_) in self.made_up for class_ in self.plan.classes)

    def pairs(self, arms: tuple[PlannedArm, PlannedArm], place: Place) -> Pairs:
        return pairs_of(*(self.of(arm, place) for arm in arms))

    def loaded_with(self, class_: str) -> str:
        """The class of the blocks in which a class was asked: itself, or MIXED."""
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
        """The source of random variation of a request. If the record has no block number, the block is found by its time. A load
        that was not held and had one block has no block here."""
        queue = self.loaded_with(record.class_)
        name: str | None = f"{record.start}/{record.round}/{record.block}"
        if record.block is None:
            blocks = self._begun.get((record.arm, Place(queue, record.load)), [])
            index = bisect_right([at_s for at_s, *_ in blocks], record.started_unix_s + CLOCK_S)
            _, until_s, name = blocks[index - 1] if index else (0.0, 0.0, "")
            if record.started_unix_s > until_s or len(blocks) == 1:
                name = None
        return Source(record.class_, record.prompt_id, queue, name, record.start)

    @cached_property
    def _begun(self) -> dict[tuple[str, Place], list[tuple[float, float, str]]]:
        """Blocks without a number, by arm and place: start, end, and their number within the round."""
        spans: dict[tuple[str, Place], list[tuple[float, float, str]]] = {}
        for key, blocks in self.blocks.items():
            numbers: Counter[tuple[int, int]] = Counter()
            for block in sorted(blocks, key=lambda block: block.started_unix_s):
                numbers[block.start, block.round] += 1
                name = f"{block.start}/{block.round}/{numbers[block.start, block.round]}"
                until_s = block.started_unix_s + block.duration_s + CLOCK_S
                spans.setdefault(key, []).append((block.started_unix_s, until_s, name))
        return spans


def cells_of(raw: RawRun, *, repeated: bool = False) -> Cells:
    """The cells of `raw`. With `repeated`, only the repetition of the first cell, which is not in any result.

    A request of a held load counts if its block ended (`RawRun.counts`). A replaced node counts as another start of the servers.
    """
    raw = raw.by_nodes
    made_up = frozenset((arm, name) for arm, names in raw.made_up.items() for name in names)
    cells = Cells(raw.plan, {}, {}, made_up, held=raw.held)
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
        (cells.requests if measured else cells.unmeasured).setdefault((record.arm, place), []).append(record)
    return cells


def pairs_of(baseline: Records, treatment: Records) -> Pairs:
    """Pairs of answered requests of two arms with the same prompt and nonce, under the same start of the servers."""
    by_pair = {(record.pair_id, record.start): record for record in treatment if record.error is None}
    pairs = ((record, by_pair.get((record.pair_id, record.start))) for record in baseline)
    return [(record, other) for record, other in pairs if record.error is None and other is not None]


def token_source(records: Iterable[RequestRecord]) -> str | None:
    """The source of token counts or, if there are several, the number of requests for each."""
    counts = Counter(record.token_source for record in records if record.token_source)
    if len(counts) < 2:
        return next(iter(counts), None)
    return "mixed: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=str))


def throughput(arm: PlannedArm, records: Records, blocks: Blocks) -> dict[str, Any] | None:
    """Requests and tokens per second of loaded time; None if nothing was answered."""
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

    An answer of one token has no time per output token and keeps that limit. A failed request keeps no limit. If tokens
    cannot be counted, the result is None.
    """
    if not slo or (within := _within(slo, arm, records)) is None:
        return None
    counted, loaded_s = _loaded(records, blocks)
    per_s = (_within(slo, arm, counted) or 0) / loaded_s if loaded_s > 0 else None
    return {"slo": dict(slo), "share": within / len(records), "per_s": per_s}


def limits_kept(cells: Cells) -> Iterator[dict[str, Any]]:
    """`limits_kept` of a summary: the share of an arm's requests within each limit of the SLO and, of several, within all of them (`metric`
    null), by load, over all classes.

    The interval is Wilson's over prompts. A prompt counts once, however often it was asked, with the share of its requests that kept the
    limit: requests of one prompt are similar, and say little about other prompts. Such shares vary at most as much as a yes or no of the
    same mean, so the interval is rather too wide than too narrow. It says nothing about other blocks of time.
    """
    slo = cells.plan.slo or {}
    limits: list[tuple[str | None, Mapping[str, float]]] = [(name, {name: slo[name]}) for name in slo]
    limits += [(None, slo)] * (len(slo) > 1)
    for load, arm in product(cells.plan.loads, filter(cells.mixes, cells.plan.arms)):
        records = cells.asked(arm, load)
        prompts = len({record.prompt_id for record in records})
        for metric, limit in limits:
            if (within := _within(limit, arm, records)) is not None:
                share = within / len(records)
                low, high = wilson(share * prompts, prompts)
                row = {"arm": arm.name, **size_of(load), "metric": metric, "limit_s": metric and slo[metric]}
                row |= {"n": len(records), "within": within, "prompts": prompts, "share": share}
                yield row | {"low": low, "high": high}


def _within(slo: Mapping[str, float], arm: PlannedArm, records: Records) -> int | None:
    """How many requests kept every limit; None without a request, or if a limit of the time per output token needs tokens that cannot be
    counted."""
    maximum = arm.max_tokens_per_step
    unknown = (record.error is None and output_tokens(record, maximum) is None for record in records)
    if not records or (TPOT.name in slo and any(unknown)):
        return None
    known = (request_values(record, maximum) for record in records)
    return sum(bool(values) and all(values.get(name, 0.0) <= slo[name] for name in slo) for values in known)


def cost(arm: PlannedArm, delivered: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The cost per million output tokens at this load; None without a price or a count of tokens."""
    per_s = delivered["output_tokens_per_s"] if delivered else None
    if arm.usd_per_hour is None or not per_s:
        return None
    return {
        "usd_per_million_output_tokens": arm.usd_per_hour / (per_s * 3600) * 1e6,
        "usd_per_hour": arm.usd_per_hour,
        "output_tokens_per_s_of_arm": per_s,
    }


def _loaded(records: Records, blocks: Blocks) -> tuple[Records, float]:
    """The requests that count, and their loaded time in seconds.

    An interrupted block has no record. If there are block records, requests outside of them do not count.
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
    """Begin and end of the steady window of a block; the whole block if its load was not held."""
    until_s = block.duration_s if block.steady_until_s is None else block.steady_until_s
    return block.started_unix_s + (block.steady_from_s or 0.0), block.started_unix_s + until_s


def _delivered_s(block: BlockRecord, records: Records) -> float:
    """The loaded time of a block in seconds: its steady window. If requests arrive faster than they are answered, it is the time from the
    end of the first answer to the end of the last."""
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
