"""Runs of the client in simulated time against the emulated H200 engine: its schedule, its held loads, its records.

What `benchmark run` does over HTTP is done here by leaps of the engine's batch: the same blocks in the same order, the same
requests, started and refilled as `HeldLoad` says. Only the network and the clock are missing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from benchmark.analyse.frontier import next_cell
from benchmark.measure.journal import RawRun
from benchmark.measure.records import REPEATED, BlockRecord, Phase, RequestRecord, RunRecord
from benchmark.measure.schedule import Block, HeldLoad, Pair, measured_turns, warmup_turns
from benchmark.plan import Plan, from_dict
from lab.emulator.batches import AdmittedSequence
from lab.emulator.h200 import conditional, drawn_factor
from tests.benchmark.conftest import plan_content
from tests.measure.steady_state import TRANSIT_S, Asked, LeapingBatch, Workload, drawn_yields, engine

WALL = 1_790_000_040.0
STAGGER_S = 0.001
"""Between the first requests of a warm-up."""
PLAIN = "plain"


@dataclass(frozen=True, kw_only=True)
class Server:
    """An arm: a window, and how much slower than the mean each of its starts is."""

    k: int
    factors: Sequence[float]
    url: str
    """Arms with the same one share a server, as in a comparison of A with A."""


def servers(dice: random.Random, windows: dict[str, int], starts: int) -> dict[str, Server]:
    """A server for each arm, with factors drawn for each of its starts."""
    return {
        name: Server(k=k, factors=[drawn_factor(dice) for _ in range(starts)], url=f"http://{name}/v1")
        for name, k in windows.items()
    }


@dataclass(eq=False, slots=True)
class _Sent(Asked):
    """A request under way."""

    pair: Pair
    phase: Phase
    sent_s: float


def plan_of(arms: dict[str, Server], work: Workload, *, prompts: int, **changes: Any) -> Plan:
    """The first arm is the baseline."""
    described = [
        {"name": name, "url": server.url, "speculative_tokens": server.k, "max_tokens_per_step": server.k + 1}
        for name, server in arms.items()
    ]
    asked = [{"id": f"chat-{i}", "class": "chat", "prompt": f"Question {i}"} for i in range(prompts)]
    content = {"warmup": 4, "max_tokens": work.answer_tokens + work.differ, "prompts": asked}
    return from_dict(plan_content(arms=described, baseline=next(iter(arms)), **content | changes))


@dataclass(kw_only=True)
class SimulatedRun:
    """One run, as far as it has come."""

    plan: Plan
    arms: dict[str, Server]
    work: Workload
    dice: random.Random
    requests: list[RequestRecord] = field(default_factory=list)
    blocks: list[BlockRecord] = field(default_factory=list)
    wall_s: float = WALL
    _engines: dict[tuple[str, int], LeapingBatch[_Sent]] = field(default_factory=dict)
    """By address and start."""
    _answers_s: dict[str, float] = field(default_factory=dict)
    """By arm, and by arm and load, what an answer took."""
    _rates: dict[tuple[str, int], Sequence[float]] = field(default_factory=dict)

    @property
    def raw(self) -> RawRun:
        """What the journal would hold."""
        return RawRun((self.opening,), tuple(self.requests), tuple(self.blocks))

    @cached_property
    def opening(self) -> RunRecord:
        return RunRecord(
            run="r1",
            sitting=1,
            started_unix_s=WALL,
            provenance="measured",
            plan=self.plan,
            plan_sha256=self.plan.sha256(),
            owned_by=dict.fromkeys(self.arms, "simulated"),
            timeout_s=300.0,
            client="0",
            python="3.11",
            held=True,
        )

    @cached_property
    def difficulty(self) -> dict[str, float]:
        """By prompt: they are a sample of all prompts."""
        return {prompt.id: self.dice.gauss(0, 1) for prompt in self.plan.prompts}

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Tokens of the answers, by prompt."""
        return {prompt.id: self.work.drawn_tokens(self.dice) for prompt in self.plan.prompts}

    def listed(self, *, repeated: bool = False) -> RawRun:
        """All loads of the plan, and at the end its first cell again where that is of interest."""
        for start in range(1, self.plan.starts + 1):
            self._warm_up(start)
            for round_ in range(1, self.plan.rounds + 1):
                self._carry_out(measured_turns(self.plan, round_, start=start))
        if repeated:
            self._carry_out(measured_turns(self.plan, REPEATED, start=self.plan.starts))
        return self.raw

    def searched(self, *, choose: Callable[[RawRun], Any] = next_cell) -> RawRun:
        """Cell after cell as the search chooses."""
        met = 0
        while (cell := choose(self.raw)) is not None:
            load, round_, before, start = cell
            if start != met:
                self._warm_up(start)
                met = start
            if round_ == REPEATED:  # shows drift, of which there is none
                break
            self._carry_out(measured_turns(self.plan.cell(load), round_, before, start=start))
        return self.raw

    def _warm_up(self, start: int) -> None:
        for (block,) in warmup_turns(self.plan, 1, start=start):
            pairs, took_s = iter(block.pairs), list[float]()

            def send(_: float, pairs: Iterator[Pair] = pairs) -> tuple[Phase, Pair] | None:
                pair = next(pairs, None)
                return ("warmup", pair) if pair else None

            def ended(_: _Sent, record: RequestRecord, took_s: list[float] = took_s) -> None:
                took_s.append(record.e2e_s or 0.0)

            slots = min(block.load.concurrency or 1, len(block.pairs))
            self._play(block, [STAGGER_S * slot for slot in range(slots)], send, ended)
            self._answers_s[block.arm] = median(took_s)

    def _carry_out(self, turns: Iterable[tuple[Block, ...]]) -> None:
        for (block,) in turns:
            assert block.supply
            at_load = f"{block.arm}/{block.load}"
            held = HeldLoad(
                at_once=block.load.concurrency,
                counted=block.supply.counted,
                answer_s=self._answers_s.get(at_load, self._answers_s.get(block.arm)),
            )
            measured, beside = block.supply.measured(), block.supply.beside()

            def send(
                now_s: float,
                held: HeldLoad = held,
                measured: Iterator[Pair] = measured,
                beside: Iterator[Pair] = beside,
            ) -> tuple[Phase, Pair] | None:
                if (phase := held.send(now_s)) is None:
                    return None
                return phase, next(measured if phase == "measured" else beside)

            def ended(sent: _Sent, record: RequestRecord, held: HeldLoad = held) -> None:
                held.ended(sent.phase, took_s=record.e2e_s or 0.0, ok=True)
                self.requests.append(record)

            began_s = self.wall_s
            self._play(block, held.starts_s, send, ended)
            self._answers_s[at_load] = held.median_s or 0.0
            self.blocks.append(
                BlockRecord(
                    run="r1",
                    arm=block.arm,
                    class_=block.class_,
                    concurrency=block.load.concurrency,
                    rate_per_s=None,
                    round=block.round,
                    started_unix_s=began_s,
                    duration_s=self.wall_s - began_s,
                    client_lag_s=0.001,
                    block=block.number,
                    start=block.start,
                    steady_from_s=held.steady_from_s,
                    steady_until_s=held.steady_until_s,
                )
            )

    def _play(
        self,
        block: Block,
        starts_s: Sequence[float],
        send: Callable[[float], tuple[Phase, Pair] | None],
        ended: Callable[[_Sent, RequestRecord], None],
    ) -> None:
        """One block against its arm's engine: a slot sends when it starts, and when an answer to it has ended."""
        server = self._engine(block)
        server.forget()
        began_s, wall_s, due = server.now_s, self.wall_s, 0

        def ask(at_s: float) -> None:
            if (chosen := send(at_s - began_s)) is None:
                return
            phase, pair = chosen
            prompt = pair.prompt.id
            yields = drawn_yields(self.dice, self._rates_of(block.arm, prompt), self.lengths[prompt] - 1)
            server.submit(_Sent(self.work.prompt_tokens, yields, at_s + TRANSIT_S, pair, phase, at_s))

        while True:
            while due < len(starts_s) and began_s + starts_s[due] <= server.now_s:
                ask(began_s + starts_s[due])
                due += 1
            until_s = began_s + starts_s[due] if due < len(starts_s) else math.inf
            places = server.leap(until_s)
            if not places:
                if due == len(starts_s):
                    break
                server.now_s = max(server.now_s, until_s)
                continue
            while due < len(starts_s) and began_s + starts_s[due] <= server.now_s:
                ask(began_s + starts_s[due])
                due += 1
            for place in places:
                record = _record(block, server, place, wall_s - began_s)
                ended(place.member, record)
                ask(server.now_s)
        self.wall_s += server.now_s - began_s

    def _engine(self, block: Block) -> LeapingBatch[_Sent]:
        arm = self.arms[block.arm]
        key = arm.url, block.start
        if key not in self._engines:
            dice = random.Random(self.dice.random())
            self._engines[key] = engine(dice, arm.k, arm.factors[block.start - 1])  # type: ignore[assignment]
        return self._engines[key]

    def _rates_of(self, arm: str, prompt: str) -> Sequence[float]:
        k = self.arms[arm].k
        if not k:
            return ()
        if (prompt, k) not in self._rates:
            self._rates[prompt, k] = conditional(self.work.shares, k, self.difficulty[prompt])
        return self._rates[prompt, k]


def _record(
    block: Block, server: LeapingBatch[_Sent], place: AdmittedSequence[_Sent], to_wall_s: float
) -> RequestRecord:
    sent, begun = place.member, server.ends_from
    chunk_s = [end_s - sent.sent_s for end_s in server.ends_s[place.first - begun : place.last + 1 - begun]]
    pair = sent.pair
    return RequestRecord(
        run="r1",
        arm=block.arm,
        class_=pair.class_,
        concurrency=block.load.concurrency,
        prompt_id=pair.prompt.id,
        nonce=pair.nonce,
        pair_id=pair.id,
        phase=sent.phase,
        started_unix_s=to_wall_s + sent.sent_s,
        ttft_s=chunk_s[0],
        e2e_s=chunk_s[-1],
        chunk_s=chunk_s,
        chunk_tokens=(1, *sent.yields),
        stream_chunks=len(chunk_s),
        prompt_tokens=sent.prompt_tokens,
        completion_tokens=1 + sum(sent.yields),
        finish_reason="stop",
        token_source="usage-per-chunk",
        round=block.round,
        block=block.number,
        start=block.start,
    )
