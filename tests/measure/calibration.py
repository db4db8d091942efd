"""Do the benchmark's intervals hold the truth? The client's own schedule, records and analysis against an engine that batches, in
simulated time. Prints a line for each kind of run; exit 1 when one is beyond its limits.

Fixed loads, one start of the servers. Of 95 % intervals for the speed-up 93 to 97 % must contain what is true in steady state; of
comparisons of a server with itself at most 5 % may be called faster or slower, be it a little. A figure passes where the binomial interval of its
count meets its limits, so limits mean something from 1,000 runs on.

What `benchmark run` does over HTTP is done here step by step of a batch: the same blocks in the same order, the same requests, started
and refilled as `SteadyLoad` says. Only the network and the clock are missing. The times of a step are shaped like those of a GPU
(*quoted*: measured on one H200 in November 2026, tests/data/h200): flat for plain decoding, rising with the load for drafting,
with skewed pauses. The rest is assumed: acceptance differs from prompt to prompt, answers differ in length.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import repeat
from statistics import median
from typing import Any

from tests.benchmark import records
from tests.benchmark.records import summary_of
from trnspec.benchmark.analyse.speed_up import FASTER, SLOWER
from trnspec.benchmark.analyse.statistics import wilson
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.measure.records import Phase, RequestRecord
from trnspec.benchmark.measure.schedule import Block, Pair, SteadyLoad, measured_blocks, warmup_blocks

PLAIN_S, DRAFTED_S = (0.0185, 0.00003), (0.0227, 0.00022)
"""A step with one sequence, and what each further one adds: without drafts, and with one draft."""
FURTHER_DRAFT_S = 0.0098
PREFILL_S = 0.003
SKEWED = (0.6448, 0.2402, 0.884)
"""A drafting step takes 0.6448 + 0.2402 exp(0.884 z) of its mean, z normal; a plain one varies by 2 %."""
ACCEPTED = {1: (0.454,), 3: (0.62, 0.68, 0.64), 7: (0.62, 0.68, 0.64, 0.63, 0.65, 0.64, 0.71)}
"""By window: probability that draft 1, 2, ... is accepted where those before it were."""
PROMPT_SPREAD = 0.2
"""Standard deviation of the log odds of acceptance from prompt to prompt."""
PROMPTS, REQUESTS, TOKENS, DIFFER = 16, 64, 64, 16
PLAIN, DRAFTED = "plain", "spec"
COVERAGE, FALSE_ALARMS = (0.93, 0.97), (0.0, 0.05)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of runs; `same`: one server under two names."""

    k: int
    concurrency: int
    same: bool = False

    def __str__(self) -> str:
        what = "A/A, plain" if self.same and not self.k else f"{'A/A, ' if self.same else ''}k = {self.k}"
        return f"{what}, {self.concurrency} concurrent requests"


KINDS = (
    *(Kind(k=1, concurrency=n) for n in (1, 4, 16)),
    *(Kind(k=k, concurrency=4) for k in (3, 7)),
    *(Kind(k=k, concurrency=n, same=True) for k, n in ((0, 16), (1, 4), (7, 4))),
)


@dataclass(eq=False, slots=True)
class Sent:
    """A request under way: tokens of each decode step, and when its steps ended."""

    yields: list[int]
    sent_s: float
    pair: Pair | None = None
    phase: Phase = "warmup"
    ends_s: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Server:
    """One start of an engine that decodes all running sequences in each step, and prefills in it those that have arrived."""

    k: int
    dice: random.Random
    now_s: float = 0.0
    running: list[Sent] = field(default_factory=list)
    arrived: list[Sent] = field(default_factory=list)

    def step(self) -> list[Sent]:
        """Do one step; returns the requests that it ends."""
        joining, self.arrived = self.arrived, []
        one_s, further_s = DRAFTED_S if self.k else PLAIN_S
        mean_s = one_s + further_s * len(self.running) + FURTHER_DRAFT_S * max(self.k - 1, 0)
        least, skewed, skew = SKEWED
        pause = least + skewed * math.exp(self.dice.gauss(0, skew)) if self.k else self.dice.gauss(1, 0.02)
        self.now_s += mean_s * pause * bool(self.running) + PREFILL_S * len(joining)
        self.running += joining
        for one in self.running:
            one.ends_s.append(self.now_s)
        ended = [one for one in self.running if len(one.ends_s) > len(one.yields)]
        self.running = [one for one in self.running if len(one.ends_s) <= len(one.yields)]
        return ended


@dataclass(frozen=True)
class Text:
    """A prompt: how much easier than others it is to draft for, and tokens of its answer."""

    ease: float
    tokens: int

    @classmethod
    def drawn(cls, dice: random.Random) -> Text:
        return cls(dice.gauss(0, PROMPT_SPREAD), dice.randint(TOKENS - DIFFER, TOKENS + DIFFER))

    def yields(self, k: int, dice: random.Random) -> list[int]:
        """Tokens of each step after the first token; the last step is cut where the answer ends."""
        left, found = self.tokens - 1, list[int]()
        rates = [1 / (1 + (1 / rate - 1) * math.exp(-self.ease)) for rate in ACCEPTED.get(k, ())]
        while left > 0:
            accepted = next((at for at, rate in enumerate(rates) if dice.random() >= rate), len(rates))
            found.append(min(1 + accepted, left))
            left -= found[-1]
        return found


@cache
def mean_log_tpot(k: int, concurrency: int) -> float:
    """Steady state: the mean logarithm of the time per token after the first, over requests with a new prompt each."""
    dice = random.Random(f"truth/{k}/{concurrency}")
    server, logs = Server(k=k, dice=dice), list[float]()

    def ask() -> None:
        server.arrived.append(Sent(Text.drawn(dice).yields(k, dice), server.now_s))

    for _ in range(concurrency):
        ask()
        for _ in range(TOKENS // concurrency):
            for _ in server.step():
                ask()
    while len(logs) < 20_000:
        for one in server.step():
            logs.append(math.log((one.ends_s[-1] - one.ends_s[0]) / sum(one.yields)))
            ask()
    return math.fsum(logs[1000:]) / len(logs[1000:])


def truth_of(kind: Kind) -> float:
    """The logarithm of the speed-up."""
    return 0.0 if kind.same else mean_log_tpot(0, kind.concurrency) - mean_log_tpot(kind.k, kind.concurrency)


class Run:
    """One run of the client, as far as it has come."""

    def __init__(self, kind: Kind, seed: str) -> None:
        self.dice = random.Random(seed)
        windows = {PLAIN: kind.k if kind.same else 0, DRAFTED: kind.k}
        arms = [
            {"name": name, "url": f"http://{name}/v1", "speculative_tokens": k, "max_tokens_per_step": k + 1}
            for name, k in windows.items()
        ]
        asked = [{"id": f"chat-{i}", "class": "chat", "prompt": f"Question {i}"} for i in range(PROMPTS)]
        self.empty = records.held(
            records.raw_run(
                arms=arms, baseline=PLAIN, prompts=asked, concurrency=[kind.concurrency], requests=REQUESTS,
                warmup=4, max_tokens=TOKENS + DIFFER, seed=self.dice.randrange(1 << 40),
            )
        )  # fmt: skip
        self.servers = {name: Server(k=k, dice=self.dice) for name, k in windows.items()}
        self.texts = {prompt["id"]: Text.drawn(self.dice) for prompt in asked}
        self.requests: list[RequestRecord] = []
        self.blocks: list[Any] = []
        self.answer_s: dict[str, float] = {}
        self.run_s = 0.0

    def whole(self) -> RawRun:
        """What the journal of the whole run holds."""
        for block in warmup_blocks(self.empty.plan, 1):
            pairs, took_s = iter(block.pairs), list[float]()

            def next_of(_: float, pairs: Iterator[Pair] = pairs) -> tuple[Phase, Pair] | None:
                pair = next(pairs, None)
                return ("warmup", pair) if pair else None

            def ended(one: Sent, record: RequestRecord, took_s: list[float] = took_s) -> None:
                took_s.append(record.e2e_s or 0.0)

            slots = min(block.load.concurrency or 1, len(block.pairs))
            self._play(block, [0.001 * slot for slot in range(slots)], next_of, ended)
            self.answer_s[block.arm] = median(took_s)
        for block in measured_blocks(self.empty.plan, 1):
            self._measure(block)
        return replace(self.empty, requests=tuple(self.requests), blocks=tuple(self.blocks))

    def _measure(self, block: Block) -> None:
        held = SteadyLoad(
            concurrency=block.load.concurrency,
            counted=block.counted,
            answer_s=self.answer_s[block.arm],
        )
        pairs, unmeasured, began_s = (
            {"measured": block.measured()},
            block.unmeasured(),
            self.run_s,
        )

        def send(now_s: float) -> tuple[Phase, Pair] | None:
            phase = held.send(now_s)
            return None if phase is None else (phase, next(pairs.get(phase, unmeasured)))

        def ended(one: Sent, record: RequestRecord) -> None:
            held.ended(one.phase, took_s=record.e2e_s or 0.0, ok=True)
            self.requests.append(record)

        self._play(block, held.starts_s, send, ended)
        self.answer_s[block.arm] = held.median_s or self.answer_s[block.arm]
        window = {"steady_from_s": held.steady_from_s, "steady_until_s": held.steady_until_s}
        where = {**_where(block), "class_": block.class_}
        self.blocks.append(records.block(began_s, self.run_s - began_s, arm=block.arm, **where, **window))

    def _play(
        self,
        block: Block,
        starts_s: Sequence[float],
        send: Callable[[float], tuple[Phase, Pair] | None],
        ended: Callable[[Sent, RequestRecord], None],
    ) -> None:
        """One block: a slot sends when it starts, and when an answer to it has ended."""
        server, due = self.servers[block.arm], [*reversed(starts_s)]
        began_s, run_s = server.now_s, self.run_s

        def ask() -> None:
            if chosen := send(server.now_s - began_s):
                phase, pair = chosen
                yields = self.texts[pair.prompt.id].yields(server.k, self.dice)
                server.arrived.append(Sent(yields, server.now_s, pair, phase))

        while due or server.running or server.arrived:
            if due and not (server.running or server.arrived):
                server.now_s = max(server.now_s, began_s + due[-1])
            while due and began_s + due[-1] <= server.now_s:
                due.pop()
                ask()
            for one in server.step():
                ended(one, _record(block, one, run_s - began_s))
                ask()
        self.run_s += server.now_s - began_s


def _where(block: Block) -> dict[str, Any]:
    return {"concurrency": block.load.concurrency, "round": block.round, "block": block.number}


def _record(block: Block, one: Sent, to_run_s: float) -> RequestRecord:
    assert one.pair
    pair, at_s = one.pair, records.WALL + to_run_s + one.sent_s
    names: dict[str, Any] = {
        "class_": pair.prompt.class_name,
        "prompt_id": pair.prompt.id,
        "pair_id": pair.id,
    }
    known: dict[str, Any] = {"nonce": pair.nonce, "phase": one.phase, "started_unix_s": at_s}
    chunk_s = tuple(end_s - one.sent_s for end_s in one.ends_s)
    tokens = (1, *one.yields)
    return records.answered(
        block.arm, chunk_s=chunk_s, chunk_tokens=tokens, **names, **known, **_where(block)
    )


def said_of(kind: Kind, seed: str) -> dict[str, Any]:
    """What one run says of the time per token."""
    (said,) = (one for one in summary_of(Run(kind, seed).whole())["comparisons"] if one["metric"] == "tpot_s")
    return dict(said)


def line_of(kind: Kind, rows: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """What many runs of a kind say, and whether it is within the limits."""
    runs, truth = len(rows), truth_of(kind)
    verdicts = Counter(row["verdict"] for row in rows)
    limits, hits = FALSE_ALARMS, sum(verdicts[one] for one in (*FASTER, *SLOWER))
    if not kind.same:
        limits = COVERAGE
        hits = sum(math.log(row["ci_low"]) <= truth <= math.log(row["ci_high"]) for row in rows)
    low, high = wilson(hits, runs)
    halves = sorted(math.log(row["ci_high"] / row["ci_low"]) / 2 for row in rows)
    error = math.fsum(math.log(row["ratio"]) - truth for row in rows) / runs
    numbers = f"{math.exp(truth):6.3f} {hits / runs:7.1%} {f'{low:.1%} to {high:.1%}':>16}"
    words = ", ".join(f"{name} {number / runs:.1%}" for name, number in verdicts.most_common())
    line = f"{kind!s:38}{numbers} {median(halves):10.1%} {error:+7.2%}  {words}"
    return line, low <= limits[1] and high >= limits[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Coverage of the benchmark's intervals, and A/A, on simulated runs."
    )
    parser.add_argument("--runs", type=int, default=1000, help="of each kind (default 1000)")
    parser.add_argument("--seed", type=int, default=1)
    options, failed = parser.parse_args(), False
    print(f"simulated, {options.runs} runs of each kind, seed {options.seed}")
    print(f"{'':38}{'truth':>6} {'share':>7} {'binomial':>16} {'half width':>10} {'error':>7}  verdicts")
    with ProcessPoolExecutor() as pool:
        for kind in KINDS:
            seeds = (f"{options.seed}/{kind}/{number}" for number in range(options.runs))
            line, fine = line_of(kind, list(pool.map(said_of, repeat(kind), seeds, chunksize=5)))
            print(line if fine else f"{line}  <-- beyond the limit", flush=True)
            failed = failed or not fine
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
