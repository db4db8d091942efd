"""How much of a plan there is to do, and whether a journal holds all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmark.measure.journal import RawRun
from benchmark.measure.records import BlockRecord
from benchmark.plan import Plan


@dataclass(frozen=True)
class Extent:
    """Measured requests that a run comes to."""

    requests_planned: int
    """In all rounds; where the plan has a duration, in those that were begun."""
    complete: bool


def extent(plan: Plan, raw: RawRun) -> Extent:
    """What `raw` was to hold, and whether it does."""
    measured = [record.round for record in raw.requests if record.phase == "measured"]
    rounds = plan.rounds if plan.duration_s is None else max(measured, default=1)
    planned = rounds * requests_per_round(plan)
    long_enough = plan.duration_s is None or loaded_s(plan, raw.blocks) >= plan.duration_s
    return Extent(planned, len(measured) == planned and long_enough)


def requests_per_round(plan: Plan) -> int:
    """Measured requests in one pass over all cells."""
    return len(plan.arms) * len(plan.classes) * len(plan.loads) * plan.requests


def loaded_s(plan: Plan, blocks: Iterable[BlockRecord]) -> float:
    """How long the arms were loaded, across interruptions: what a plan's duration is compared with."""
    return loading_s(plan, (block.duration_s for block in blocks))


def loading_s(plan: Plan, durations_s: Iterable[float]) -> float:
    """The time that blocks of such durations took: those of simultaneous arms count once."""
    total = sum(durations_s)
    return total / len(plan.arms) if plan.simultaneous else total
