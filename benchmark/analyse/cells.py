"""The records of a run by cell, and what is said about one cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from benchmark.analyse.acceptance import INVENTED, Known, acceptance, known
from benchmark.analyse.comparison import Pairs, pairs_of
from benchmark.analyse.drafts import server_counts
from benchmark.analyse.equality import output_equality
from benchmark.analyse.load import cost, goodput, throughput
from benchmark.analyse.stats import distribution
from benchmark.analyse.values import gaps, output_tokens, pooled, request_values, tokens_per_chunk
from benchmark.measure.journal import RawRun
from benchmark.measure.records import BlockRecord, RequestRecord
from benchmark.metrics import (
    ACCEPTANCE_LENGTH,
    INTER_CHUNK_LATENCY,
    METRICS,
    TOKENS_PER_CHUNK,
    TOKENS_PER_STEP,
)
from benchmark.plan import Arm, Load, Plan


class Place(NamedTuple):
    """Where arms meet: one class of prompts under one load."""

    class_: str
    load: Load

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Place:
        """Where a cell, a comparison or an explanation belongs."""
        load = Load(concurrency=found["concurrency"], rate_per_s=found["rate_per_s"])
        return cls(found["class"], load)

    def __str__(self) -> str:
        return f"{self.class_}, {self.load.in_words}"

    def to_dict(self) -> dict[str, Any]:
        """As cells, comparisons and explanations have it."""
        return {
            "class": self.class_,
            "concurrency": self.load.concurrency,
            "rate_per_s": self.load.rate_per_s,
        }


@dataclass(frozen=True)
class Cells:
    """The measured part of a run, by arm and place."""

    plan: Plan
    requests: dict[tuple[str, Place], list[RequestRecord]]
    blocks: dict[tuple[str, Place], list[BlockRecord]]
    made_up: frozenset[tuple[str, str]] = frozenset()
    """Arms and classes whose acceptance an emulated endpoint made up."""

    @property
    def places(self) -> Iterator[Place]:
        """In the order of the tables: load by load, class by class."""
        return (Place(class_, load) for load, class_ in product(self.plan.loads, self.plan.classes))

    @property
    def baseline(self) -> Arm:
        return self.plan.arm(self.plan.baseline)

    @property
    def treatments(self) -> list[Arm]:
        return [arm for arm in self.plan.arms if arm.name != self.plan.baseline]

    def of(self, arm: Arm, place: Place) -> list[RequestRecord]:
        """All measured requests of a cell, failed ones too."""
        return self.requests.get((arm.name, place), [])

    def answered(self, arm: Arm, place: Place) -> list[RequestRecord]:
        return [record for record in self.of(arm, place) if record.error is None]

    def blocks_of(self, arm: Arm, place: Place) -> list[BlockRecord]:
        return self.blocks.get((arm.name, place), [])

    def plain_s(self, place: Place) -> float | None:
        """Seconds of a step of an arm that decodes plainly, the baseline where it does; None without such an arm."""
        arms = (self.baseline, *self.plan.arms)
        plain = next((arm for arm in arms if arm.max_tokens_per_step == 1), None)
        timed = plain and pooled(self.answered(plain, place), 1)
        return timed.tpot_s if timed else None

    def steps(self, arm: Arm, place: Place) -> Known:
        """What is known of an arm's decode steps."""
        if (arm.name, place.class_) in self.made_up:
            return INVENTED
        return known(arm, self.of(arm, place), self.blocks_of(arm, place), self.plain_s(place))

    def judged(self, arm: Arm, place: Place) -> bool:
        """Whether a difference between the baseline and `arm` there says anything."""
        return not {(one.name, place.class_) for one in (self.baseline, arm)} & self.made_up

    def pairs(self, arm: Arm, place: Place) -> Pairs:
        """Answered pairs of the baseline and `arm`."""
        return pairs_of(self.of(self.baseline, place), self.of(arm, place))


def sort_out(plan: Plan, raw: RawRun) -> Cells:
    """The cells of `raw`."""
    made_up = frozenset((arm, name) for arm, names in raw.made_up.items() for name in names)
    cells = Cells(plan, {}, {}, made_up)
    for record in raw.requests:
        if record.phase == "measured":
            cells.requests.setdefault((record.arm, _place(record)), []).append(record)
    for block in raw.blocks:
        cells.blocks.setdefault((block.arm, _place(block)), []).append(block)
    return cells


def describe(cells: Cells, arm: Arm, place: Place) -> dict[str, Any]:
    """One cell of the summary."""
    plan, records, blocks = cells.plan, cells.of(arm, place), cells.blocks_of(arm, place)
    answered = cells.answered(arm, place)
    errors = Counter(record.error for record in records if record.error)
    steps = acceptance(arm, records, cells.steps(arm, place))
    delivered = throughput(arm, records, blocks)
    lengths = [float(r.completion_tokens) for r in answered if r.completion_tokens]
    compared = arm.name != plan.baseline
    return {
        "arm": arm.name,
        **place.to_dict(),
        "n": len(answered),
        "errors": errors.total(),
        "error_rate": errors.total() / len(records) if records else None,
        "error_names": dict(errors.most_common()),
        **_distributions(answered, arm, by_chunk=steps["caution"] is None),
        ACCEPTANCE_LENGTH.name: steps["tokens_per_step"],
        "completion_tokens": distribution(lengths),
        "cached_tokens": sum(r.cached_tokens or 0 for r in answered),
        "finish_reasons": dict(Counter(str(r.finish_reason) for r in answered)),
        "forced_length": sum(r.forced_length for r in answered),
        "token_source": token_source(answered),
        "acceptance": steps,
        "output_equality": output_equality(plan.baseline, cells.pairs(arm, place)) if compared else None,
        "throughput": delivered,
        "goodput": goodput(plan.slo, arm, records, blocks),
        "cost": cost(arm, delivered),
    }


def token_source(records: Iterable[RequestRecord]) -> str | None:
    """The one source of token counts, or how many requests had which."""
    counts = Counter(record.token_source for record in records if record.token_source)
    if len(counts) < 2:
        return next(iter(counts), None)
    return "mixed: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=str))


def _place(record: RequestRecord | BlockRecord) -> Place:
    if record.rate_per_s is not None:
        return Place(record.class_, Load(rate_per_s=record.rate_per_s))
    return Place(record.class_, Load(concurrency=record.concurrency))


def _distributions(answered: Sequence[RequestRecord], arm: Arm, *, by_chunk: bool) -> dict[str, Any]:
    """Each metric that has values of its own: over requests, or over chunks for the inter-chunk latency.

    `by_chunk`: whether chunks may stand for steps.
    """
    values = [request_values(record, arm.max_tokens_per_step) for record in answered]
    if not by_chunk:
        for record, of_one in zip(answered, values, strict=True):
            if server_counts(record) is None:
                of_one.pop(TOKENS_PER_STEP.name, None)
    found = {
        metric.name: distribution([of_one[metric.name] for of_one in values if metric.name in of_one])
        for metric in METRICS
        if metric.scope == "request" and metric.published and metric.unit != "requests"
    }
    chunks = [tokens_per_chunk(record, output_tokens(record, arm.max_tokens_per_step)) for record in answered]
    found[TOKENS_PER_CHUNK.name] = distribution([mean for mean in chunks if mean is not None])
    found[INTER_CHUNK_LATENCY.name] = distribution([gap for record in answered for gap in gaps(record)])
    return found
