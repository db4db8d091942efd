"""A run as its journal holds it: which blocks ended, which requests count, and on which nodes they were served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from trnspec.benchmark.measure.records import (
    REPEATED,
    BlockKey,
    BlockRecord,
    QuestionRecord,
    RepeatRecord,
    RequestRecord,
    RunRecord,
)
from trnspec.benchmark.measure.schedule import measured_blocks
from trnspec.benchmark.plan import MIXED, Plan

_NODE_GONE_ERRORS = ("connect_refused", "connect_failed", "no_done", "reset", "timeout")
"""Errors of requests to a server whose node was removed."""


@dataclass(frozen=True)
class NodeChange:
    """Between two sessions the server of an arm moved to another node."""

    session: int
    """The first session on the new node."""
    at_unix_s: float
    """The start of that session."""
    arm: str
    before: str
    after: str


@dataclass(frozen=True)
class RawRun:
    """The records of a journal, in the order in which they were written."""

    sessions: tuple[RunRecord, ...]
    requests: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...] = ()
    unusable_lines: str = ""
    """A sentence about lines that cannot be used; empty if there are none."""
    repeats: tuple[RepeatRecord, ...] = ()
    """The second answers of the baseline."""
    sense: tuple[QuestionRecord, ...] = ()
    """The simple questions to each arm before the load."""

    @property
    def plan(self) -> Plan:
        """The plan of the last session. Between sessions only addresses and prices may change."""
        return self.sessions[-1].plan

    def with_plan(self, plan: Plan) -> RawRun:
        """The run with this plan in its last session."""
        return replace(self, sessions=(*self.sessions[:-1], replace(self.sessions[-1], plan=plan)))

    @property
    def held(self) -> bool:
        """Whether loads were held constant during measurement."""
        return self.sessions[0].held

    @cached_property
    def node_changes(self) -> tuple[NodeChange, ...]:
        """Replaced nodes, in their order. A session without nodes counts as having those of the session before."""
        known, changes = dict[str, str](), list[NodeChange]()
        for session in self.sessions:
            for arm, node in (session.nodes or {}).items():
                # In a later round of arms, a new arm on a node of earlier arms is not a change.
                before = known.get(arm) or (
                    node if node in known.values() else next(iter(known.values()), node)
                )
                if before != node:
                    at_unix_s = session.started_unix_s
                    changes.append(NodeChange(session.session, at_unix_s, arm, before, node))
            known |= session.nodes or {}
        return tuple(changes)

    def start_of(self, session: int) -> int:
        """The number of the start of the servers in a session, from 1: a replaced node counts as another start."""
        return 1 + len({change.session for change in self.node_changes if change.session <= session})

    @cached_property
    def ended(self) -> dict[BlockKey, BlockRecord]:
        """The blocks that ended; of a repeated block, the last one. A block whose last requests failed because the node was removed does not
        count as ended."""
        cut = self._cut
        return {
            block.key: block for block in self.blocks if (self.start_of(block.session), block.key) not in cut
        }

    @cached_property
    def _cut(self) -> set[tuple[int, BlockKey]]:
        """Blocks with a failure after which their arm answered nothing until its node was replaced."""
        cut, answered = set[tuple[int, BlockKey]](), set[tuple[int, str]]()
        last = self.start_of(self.sessions[-1].session)
        for record in reversed(self.requests) if self.node_changes else ():
            start = self.start_of(record.session)
            if start == last or (start, record.arm) in answered:
                continue
            if record.error not in _NODE_GONE_ERRORS:
                answered.add((start, record.arm))
                continue
            cut |= {(start, key) for key in _blocks_of(record)}
        return cut

    def on(self, nodes: Mapping[str, str] | None) -> RawRun:
        """The run with a further session with these nodes."""
        last = self.sessions[-1]
        return replace(self, sessions=(*self.sessions, replace(last, session=last.session + 1, nodes=nodes)))

    @cached_property
    def by_nodes(self) -> RawRun:
        """The run with a start of the servers for each node. A replaced node counts as another start, so no result pools over the
        replacement."""
        if not self.node_changes:
            return self
        requests = tuple(replace(one, start=self.start_of(one.session)) for one in self.requests)
        blocks = tuple(replace(one, start=self.start_of(one.session)) for one in self.blocks)
        return replace(self, requests=requests, blocks=blocks)

    def counts(self, record: RequestRecord) -> bool:
        """Whether the block of a request ended in its session. An interrupted set is measured again with the same number."""
        if record.block is None:
            return True
        ended = filter(None, map(self.ended.get, _blocks_of(record)))
        return any(block.session == record.session for block in ended)

    @cached_property
    def measured(self) -> tuple[RequestRecord, ...]:
        """The measured requests that count, including failed ones."""
        return tuple(one for one in self.requests if one.phase == "measured" and self.counts(one))

    @property
    def made_up(self) -> dict[str, tuple[str, ...]]:
        """The classes for which an emulated endpoint made up the acceptance in any session, by arm."""
        by_arm: dict[str, tuple[str, ...]] = {}
        for session in self.sessions:
            for arm, classes in (session.made_up or {}).items():
                by_arm[arm] = tuple(dict.fromkeys((*by_arm.get(arm, ()), *classes)))
        return by_arm

    @property
    def cautions(self) -> tuple[str, ...]:
        """Cautions of emulated endpoints about their own timings, each once."""
        return tuple(dict.fromkeys(text for session in self.sessions for text in session.cautions or ()))


def _blocks_of(record: RequestRecord) -> list[BlockKey]:
    """The block of a request: of its class, or of all classes together."""
    own = (record.load, record.round, record.block)
    return [(record.arm, class_, *own) for class_ in (record.class_, MIXED)]


def extent(raw: RawRun) -> tuple[int, bool]:
    """The minimum number of measured requests that were planned, and whether the run is complete."""
    plan = raw.plan
    if raw.held:
        wanted = [*measured_blocks(plan), *measured_blocks(plan, REPEATED)]
        return sum(block.counted for block in wanted), all(block.key in raw.ended for block in wanted)
    planned = len(plan.arms) * len(plan.loads) * plan.requests * len(plan.classes)
    return planned, sum(record.phase == "measured" for record in raw.requests) == planned


def answers_of(arm: str, requests: Iterable[RequestRecord]) -> dict[str, RequestRecord]:
    """The measured answers of an arm by pair."""
    mine = (record for record in requests if record.arm == arm and record.phase == "measured")
    return {record.pair_id: record for record in mine if record.error is None and record.text is not None}


def same_text(ours: Mapping[str, RequestRecord], theirs: Mapping[str, RequestRecord]) -> list[bool]:
    """For each request that two arms answered, whether both answers are the same. Only answers to the same nonce under the same start of
    the servers are compared; another node is another start too (`RawRun.by_nodes`)."""
    both = ((ours[pair], other) for pair, other in theirs.items() if pair in ours)
    return [
        one.text == other.text for one, other in both if (one.nonce, one.start) == (other.nonce, other.start)
    ]
