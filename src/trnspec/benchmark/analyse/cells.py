"""The cells of a run: its requests (`trnspec.benchmark.analyse.request_table`) and blocks by arm, class and load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from trnspec.benchmark.analyse.request_table import CellKey, Requests, joined, table
from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.benchmark.errors import ResultsError
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import REPEATED, BlockRecord, RequestRecord
from trnspec.benchmark.plan import MIXED, Load, Plan, PlannedArm


@dataclass(frozen=True, kw_only=True)
class MeasuringConditions:
    """The conditions of a comparison."""

    held: bool = True
    """Whether the load was held constant during measurement."""
    starts: int = 1
    """The number of starts of the servers."""


@dataclass(frozen=True, eq=False)
class RequestsByCell:
    """The requests and blocks of a run by arm and place."""

    raw: RawRun
    """With a start of the servers for each node (`RawRun.by_nodes`)."""
    requests: Mapping[tuple[str, CellKey], Requests]
    """Measured requests."""
    unmeasured: Mapping[tuple[str, CellKey], Requests]
    """Requests of ramp and drain, by arm and class of the block. They are in the servers' counters, but in no result."""
    blocks: Mapping[tuple[str, CellKey], Sequence[BlockRecord]]
    made_up: frozenset[tuple[str, str]] = frozenset()
    """Arms and classes for which an emulated endpoint made up the acceptance."""
    left_out: frozenset[tuple[str, str]] = frozenset()
    """Arms and classes that have no part in a mix, because evidence withholds their verdicts."""
    shares: Mapping[str, float] | None = None
    """The user's shares of the output tokens in a mix, by class; None: equal ones."""
    queues: Mapping[str, str] = field(default_factory=dict)
    """The class of the blocks in which a class was asked, where that is not the class itself."""
    split: Plan | None = None
    """The plan whose classes are parts of those of the run; None if they are the same."""
    none: Requests = field(default_factory=lambda: table([], {}))

    @property
    def plan(self) -> Plan:
        return self.split or self.raw.plan

    @property
    def places(self) -> Iterator[CellKey]:
        """In the order of the tables: load by load, class by class."""
        return (CellKey(class_, load) for load, class_ in product(self.plan.loads, self.plan.classes))

    def baseline_of(self, arm: PlannedArm) -> PlannedArm:
        return self.plan.arm(self.plan.baselines[arm.name])

    @property
    def compared(self) -> list[tuple[PlannedArm, PlannedArm]]:
        """Each treatment with its baseline, the baseline first."""
        both = ((self.baseline_of(arm), arm) for arm in self.plan.arms)
        return [(base, arm) for base, arm in both if base is not arm]

    def of(self, arm: PlannedArm, place: CellKey) -> Requests:
        """All measured requests of a cell, failed ones too."""
        return self.requests.get((arm.name, place), self.none)

    def of_arm(self, name: str) -> list[Requests]:
        """All measured requests of an arm, by cell."""
        return [own for (arm, _), own in self.requests.items() if arm == name]

    def asked(self, arm: PlannedArm, load: Load) -> Requests:
        """The measured requests of all classes."""
        return joined([self.none, *(self.of(arm, CellKey(class_, load)) for class_ in self.plan.classes)])

    def blocks_of(self, arm: PlannedArm, place: CellKey) -> Sequence[BlockRecord]:
        """The blocks in which the requests of a cell were sent. In a mixed cell they are of all classes."""
        return self.blocks.get((arm.name, CellKey(self.loaded_with(place.class_), place.load)), ())

    def loaded(self, arm: PlannedArm, place: CellKey) -> Requests:
        """All measured requests to the arm in the blocks of a cell."""
        queue = self.loaded_with(place.class_)
        together = (name for name in self.plan.classes if self.loaded_with(name) == queue)
        return joined([self.none, *(self.of(arm, CellKey(name, place.load)) for name in together)])

    def ramp_and_drain(self, arm: PlannedArm, place: CellKey) -> Requests:
        """Requests of ramp and drain in the blocks of a cell."""
        return self.unmeasured.get((arm.name, CellKey(self.loaded_with(place.class_), place.load)), self.none)

    def plain_s(self, arm: PlannedArm, place: CellKey) -> float | None:
        """Seconds per step of an arm without speculation, preferably the baseline of `arm`; None if every arm speculates."""
        arms = (self.baseline_of(arm), *self.plan.arms)
        plain = next((arm for arm in arms if arm.max_tokens_per_step == 1), None)
        return self.of(plain, place).tpot_s if plain else None

    def comparable(self, arms: tuple[PlannedArm, PlannedArm], place: CellKey) -> bool:
        """Whether two arms can be compared there: neither has a made-up acceptance."""
        return not {(arm.name, place.class_) for arm in arms} & self.made_up

    def mixes(self, arm: PlannedArm) -> bool:
        """Whether the mix of all classes is known: no class of the arm has a made-up acceptance."""
        return not any((arm.name, class_) in self.made_up for class_ in self.plan.classes)

    def pairs(self, arms: tuple[PlannedArm, PlannedArm], place: CellKey) -> tuple[Requests, Requests]:
        """Pairs of answered requests of two arms with the same prompt and nonce, under the same start of the servers."""
        return self.of(arms[0], place).paired_with(self.of(arms[1], place))

    def loaded_with(self, class_: str) -> str:
        """The class of the blocks in which a class was asked: itself, or MIXED."""
        return self.queues.get(class_, class_)

    def known(self, arm: PlannedArm, load: Load) -> dict[str, Requests]:
        """The measured requests by class, without classes that are left out or whose acceptance was made up."""
        out = self.made_up | self.left_out
        classes = (class_ for class_ in self.plan.classes if (arm.name, class_) not in out)
        return {class_: own for class_ in classes if len(own := self.of(arm, CellKey(class_, load)))}

    def conditions(self, load: Load) -> MeasuringConditions:
        by_class: dict[str, set[int]] = {}
        for (_, place), own in self.requests.items():
            if place.load == load:
                by_class.setdefault(place.class_, set()).update(own.cluster_ids.start.tolist())
        return MeasuringConditions(
            held=self.raw.held, starts=max(1, min(map(len, by_class.values()), default=1))
        )


def cells_of(
    raw: RawRun,
    *,
    repeated: bool = False,
    by_length: bool = False,
    shares: Mapping[str, float] | None = None,
) -> RequestsByCell:
    """The cells of `raw`. With `repeated`, only the repetition of the first cell, which is not in any result. With `by_length`, each class
    with enough prompts is two, of shorter and of longer prompts. `shares` are the user's, by class (default: the plan's).

    Raises ResultsError for shares of unknown classes.

    A request of a held load counts if its block ended (`RawRun.counts`). A replaced node counts as another start of the servers.
    """
    raw = raw.by_nodes
    plan = raw.plan
    queue_of = dict.fromkeys(plan.classes, MIXED) if MIXED in plan.loaded_with else {}
    blocks: dict[tuple[str, CellKey], list[BlockRecord]] = {}
    for block in raw.blocks:
        if (block.round == REPEATED) == repeated and (
            block.block is None or raw.ended.get(block.key) is block
        ):
            blocks.setdefault((block.arm, CellKey(block.class_, block.load)), []).append(block)
    records = [
        record
        for record in raw.requests
        if record.phase != "warmup" and (record.round == REPEATED) == repeated and raw.counts(record)
    ]
    made_up = {(arm, name) for arm, names in raw.made_up.items() for name in names}
    split = None
    if by_length:
        part_of = _parts_by_length(records)
        queue_of |= {part: queue_of.get(name, name) for (name, _), part in part_of.items()}
        made_up |= {(arm, p) for (name, _), p in part_of.items() for arm, known in made_up if known == name}
        records = [replace(r, class_=part_of.get((r.class_, r.prompt_id), r.class_)) for r in records]
        split = plan.in_classes(part_of)
    shares = shares or (plan.mix or None if split is None else None)
    if unknown := [name for name in shares or () if name not in (split or plan).classes]:
        known = ", ".join((split or plan).classes)
        raise ResultsError(f"--mix: {unknown[0]!r} is not a class of the run; its classes are {known}")
    ceilings = {arm.name: arm.max_tokens_per_step for arm in plan.arms}
    rows = table(records, ceilings, queue_of=queue_of, blocks=blocks)
    measured: dict[tuple[str, CellKey], list[int]] = {}
    beside: dict[tuple[str, CellKey], list[int]] = {}
    for row, record in enumerate(records):
        if record.phase == "measured":
            measured.setdefault((record.arm, CellKey(record.class_, record.load)), []).append(row)
        else:
            queue = queue_of.get(record.class_, record.class_)
            beside.setdefault((record.arm, CellKey(queue, record.load)), []).append(row)
    by_cell = {key: rows.at(np.array(own)) for key, own in measured.items()}
    by_queue = {key: rows.at(np.array(own)) for key, own in beside.items()}
    return RequestsByCell(
        raw, by_cell, by_queue, blocks, frozenset(made_up), shares=shares, queues=queue_of, split=split
    )


def _parts_by_length(records: Sequence[RequestRecord]) -> dict[tuple[str, str], str]:
    """The part of its class for each prompt: up to the median number of tokens, or above. A class whose parts would have fewer than
    MIN_PROMPTS prompts, or whose lengths are not known, is not split."""
    tokens: dict[str, dict[str, int]] = {}
    for record in records:
        if record.prompt_tokens is not None:
            tokens.setdefault(record.class_, {}).setdefault(record.prompt_id, record.prompt_tokens)
    parts = {}
    for class_, own in tokens.items():
        middle = sorted(own.values())[(len(own) - 1) // 2]
        longer = sum(length > middle for length in own.values())
        if min(longer, len(own) - longer) >= MIN_PROMPTS:
            for prompt, length in own.items():
                way = "up to" if length <= middle else "above"
                parts[class_, prompt] = f"{class_} {way} {middle} tokens"
    return parts
