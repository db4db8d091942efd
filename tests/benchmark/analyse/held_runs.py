"""Runs of the client in simulated time against the emulated H200 engine: its schedule, its held loads, its records.

What `benchmark run` does over HTTP is done here by leaps of the engine's batch: the same blocks in the same order, the same
requests, started and refilled as `HeldLoad` says. Only the network and the clock are missing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any

from benchmark.analyse.frontier import next_cell
from benchmark.measure.journal import RawRun
from benchmark.measure.records import REPEATED, BlockRecord, Phase, RequestRecord
from benchmark.measure.schedule import Block, HeldLoad, Pair, measured_turns, warmup_turns
from benchmark.plan import Plan
from lab.emulator.batches import AdmittedSequence
from lab.emulator.h200 import conditional, drawn_factor
from tests.benchmark import records
from tests.measure.steady_state import TRANSIT_S, Asked, LeapingBatch, Workload, drawn_yields, engine

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


def run_of(arms: dict[str, Server], work: Workload, *, prompts: int, **changes: Any) -> RawRun:
    """Before its first request. The first arm is the baseline."""
    described = [
        {"name": name, "url": server.url, "speculative_tokens": server.k, "max_tokens_per_step": server.k + 1}
        for name, server in arms.items()
    ]
    asked = [{"id": f"chat-{i}", "class": "chat", "prompt": f"Question {i}"} for i in range(prompts)]
    content = {"warmup": 4, "max_tokens": work.answer_tokens + work.differ, "prompts": asked}
    baseline = next(iter(arms))
    return records.held(records.raw_run(arms=described, baseline=baseline, **content | changes))


@dataclass(eq=False, slots=True)
class _Sent(Asked):
    """A request under way."""

    pair: Pair
    phase: Phase
    sent_s: float


@dataclass(kw_only=True)
class SimulatedRun:
    """One run, as far as it has come."""

    empty: RawRun
    arms: dict[str, Server]
    work: Workload
    dice: random.Random
    requests: list[RequestRecord] = field(default_factory=list)
    blocks: list[BlockRecord] = field(default_factory=list)
    run_s: float = 0.0
    _engines: dict[tuple[str, int], LeapingBatch[_Sent]] = field(default_factory=dict)
    """By address and start."""
    _answers_s: dict[str, float] = field(default_factory=dict)
    """By arm, and by arm and load, what an answer took."""
    _rates: dict[tuple[str, int], Sequence[float]] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.empty.plan

    @property
    def raw(self) -> RawRun:
        """What the journal would hold."""
        return replace(self.empty, requests=tuple(self.requests), blocks=tuple(self.blocks))

    @cached_property
    def difficulty(self) -> dict[str, float]:
        """By prompt: they are a sample of all prompts."""
        return {prompt.id: self.dice.gauss(0, 1) for prompt in self.plan.prompts}

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Tokens of the answers, by prompt."""
        return {prompt.id: self.work.drawn_tokens(self.dice) for prompt in self.plan.prompts}

    def listed(self) -> RawRun:
        """All loads of the plan."""
        for start in range(1, self.plan.starts + 1):
            self._warm_up(start)
            for round_ in range(1, self.plan.rounds + 1):
                self._carry_out(measured_turns(self.plan, round_, start=start))
        return self.raw

    def searched(self) -> RawRun:
        """Cell after cell as the search chooses, without the repetition that shows drift, of which there is none."""
        warm = 0
        while (cell := next_cell(self.raw)) is not None:
            load, round_, before, start = cell
            if round_ == REPEATED:
                break
            if start != warm:
                self._warm_up(start)
                warm = start
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
            self._measure(block)

    def _measure(self, block: Block) -> None:
        assert block.supply
        at_load, began_s = f"{block.arm}/{block.load}", self.run_s
        answer_s = self._answers_s.get(at_load, self._answers_s.get(block.arm))
        held = HeldLoad(concurrency=block.load.concurrency, counted=block.supply.counted, answer_s=answer_s)
        pairs = {"measured": block.supply.measured()}
        unmeasured = block.supply.unmeasured()

        def send(now_s: float) -> tuple[Phase, Pair] | None:
            phase = held.send(now_s)
            return None if phase is None else (phase, next(pairs.get(phase, unmeasured)))

        def ended(sent: _Sent, record: RequestRecord) -> None:
            held.ended(sent.phase, took_s=record.e2e_s or 0.0, ok=True)
            self.requests.append(record)

        self._play(block, held.starts_s, send, ended)
        self._answers_s[at_load] = held.median_s or 0.0
        window = {"steady_from_s": held.steady_from_s, "steady_until_s": held.steady_until_s}
        where = {**_where(block), "class_": block.class_}
        self.blocks.append(records.block(began_s, self.run_s - began_s, arm=block.arm, **where, **window))

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
        began_s, run_s, due = server.now_s, self.run_s, 0

        def ask(at_s: float) -> None:
            if (chosen := send(at_s - began_s)) is None:
                return
            phase, pair = chosen
            prompt = pair.prompt.id
            yields = drawn_yields(self.dice, self._rates_of(block.arm, prompt), self.lengths[prompt] - 1)
            server.submit(_Sent(self.work.prompt_tokens, yields, at_s + TRANSIT_S, pair, phase, at_s))

        def ask_due() -> float:
            """Ask what is due by now; when the next slot starts."""
            nonlocal due
            while due < len(starts_s) and began_s + starts_s[due] <= server.now_s:
                due += 1
                ask(began_s + starts_s[due - 1])
            return began_s + starts_s[due] if due < len(starts_s) else math.inf

        while True:
            until_s = ask_due()
            if places := server.leap(until_s):
                ask_due()
                for place in places:
                    ended(place.member, _record(block, server, place, run_s - began_s))
                    ask(server.now_s)
            elif math.isinf(until_s):
                break
            else:
                server.now_s = max(server.now_s, until_s)
        self.run_s += server.now_s - began_s

    def _engine(self, block: Block) -> LeapingBatch[_Sent]:
        arm = self.arms[block.arm]
        key = arm.url, block.start
        if key not in self._engines:
            dice = random.Random(self.dice.random())
            self._engines[key] = engine(dice, arm.k, arm.factors[block.start - 1])  # type: ignore[assignment]
        return self._engines[key]

    def _rates_of(self, arm: str, prompt: str) -> Sequence[float]:
        k = self.arms[arm].k
        if k and (prompt, k) not in self._rates:
            self._rates[prompt, k] = conditional(self.work.shares, k, self.difficulty[prompt])
        return self._rates[prompt, k] if k else ()


def _where(block: Block) -> dict[str, Any]:
    own = {"concurrency": block.load.concurrency, "round": block.round, "block": block.number}
    return {**own, "start": block.start}


def _record(
    block: Block, server: LeapingBatch[_Sent], place: AdmittedSequence[_Sent], to_run_s: float
) -> RequestRecord:
    sent, begun = place.member, server.ends_from
    chunk_s = [end_s - sent.sent_s for end_s in server.ends_s[place.first - begun : place.last + 1 - begun]]
    pair, at_s = sent.pair, records.WALL + to_run_s + sent.sent_s
    names: dict[str, Any] = {
        "class_": pair.class_,
        "prompt_id": pair.prompt.id,
        "nonce": pair.nonce,
        "pair_id": pair.id,
    }
    known: dict[str, Any] = {"chunk_tokens": (1, *sent.yields), "phase": sent.phase, "started_unix_s": at_s}
    return records.answered(block.arm, chunk_s=tuple(chunk_s), **names, **known, **_where(block))
