"""What a folder holds of a run that is started again: what need not be asked once more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmark.errors import ResultsError
from benchmark.measure import journal
from benchmark.measure.extent import loaded_s, requests_per_round
from benchmark.measure.journal import LeftOut
from benchmark.measure.records import BlockRecord, Provenance, RunRecord
from benchmark.measure.schedule import Block, Pair, Turn
from benchmark.plan import Plan


@dataclass
class Earlier:
    """Read from a journal, without keeping its requests."""

    sittings: list[RunRecord] = field(default_factory=list)
    done: set[tuple[str, str]] = field(default_factory=set)
    """Pair and arm of each recorded request."""
    in_round: dict[int, int] = field(default_factory=dict)
    """Measured requests by round."""
    blocks: list[BlockRecord] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    """Lines of the journal that cannot be used: their requests are made again."""

    def finished(self, plan: Plan, round_: int) -> bool:
        """Whether nothing of a round is left to do."""
        return self.in_round.get(round_, 0) >= requests_per_round(plan)

    def begun(self, round_: int) -> bool:
        """Whether a round has requests already."""
        return round_ in self.in_round

    def loaded_s(self, plan: Plan) -> float:
        """How long the arms were loaded before."""
        return loaded_s(plan, self.blocks)

    def left_of(self, turn: Turn) -> Turn:
        """The turn without what is recorded; nothing where all of it is."""
        left = (replace(block, pairs=self._left_in(block)) for block in turn)
        return tuple(block for block in left if block.pairs)

    def repriced(self, plan: Plan) -> bool:
        """Whether an arm's price is not what the last sitting's plan says."""
        return self.sittings[-1].plan.prices != plan.prices

    def check_provenance(self, now: Provenance) -> None:
        """Raises ResultsError where new requests would mix with others of another kind."""
        if self.sittings and self.sittings[0].provenance != now:
            raise ResultsError(
                f"run {self.sittings[0].run}: its requests are {self.sittings[0].provenance}, the arms are now "
                f"{now}; choose another --out"
            )

    def _left_in(self, block: Block) -> tuple[Pair, ...]:
        return tuple(pair for pair in block.pairs if (pair.id, block.arm) not in self.done)


def earlier(plan: Plan, out: Path) -> Earlier:
    """What `out` holds. Raises ResultsError where it belongs to another plan."""
    found = Earlier()
    if not journal.exists(out):
        return found
    for record in journal.records(out, found.left_out):
        if isinstance(record, RunRecord):
            found.sittings.append(record)
        elif isinstance(record, BlockRecord):
            found.blocks.append(record)
        elif record.phase == "measured":
            found.done.add((record.pair_id, record.arm))
            found.in_round[record.round] = found.in_round.get(record.round, 0) + 1
    if not found.sittings or found.sittings[0].plan.sha256() != plan.sha256():
        whose = found.sittings[0].run if found.sittings else "nobody"
        raise ResultsError(
            f"{out}: holds run {whose} of another plan or other options; choose another --out, or repeat the "
            "command that began it"
        )
    return found
