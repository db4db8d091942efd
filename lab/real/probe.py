"""A few requests of the lab's own: do vLLM's counters and its stream agree about an answer?

A counter counts a whole step, but an answer may end within a step. So each prompt is sent twice: the first answer shows
where steps end, the second is limited to end there. Then both must agree exactly.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.measure.client import request_body
from benchmark.measure.endpoints import OF_DRAFTS, counters_in, metrics_url
from benchmark.measure.schedule import Pair
from benchmark.measure.stream import Output, StreamTally
from benchmark.plan import Plan
from core.findings import Refusal

TIMEOUT_S = 600
TRIES = 5
"""A busy machine merges chunks now and then; such an answer shows no steps and is asked again."""
_DRAFTS, _, _ACCEPTED = OF_DRAFTS


@dataclass(frozen=True, kw_only=True)
class ProbedAnswer:
    """One answer, and what the counters of speculation grew by; empty where there are none."""

    output: Output
    counted: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Tokens per step of one arm, from both sources, over all its answers."""

    arm: str
    answers: int
    steps_counted: int
    steps_streamed: int
    counted: float
    """1 + accepted drafts / steps, by the server's counters."""
    streamed: float
    """Tokens per chunk without each answer's first, by the client."""

    @property
    def difference(self) -> float:
        return abs(self.streamed / self.counted - 1)


def agreement(arm: str, url: str, bodies: Sequence[dict[str, Any]], *, per_step: int) -> Agreement:
    """Ask one speculating arm's server each of `bodies`; a step yields `per_step` tokens at most.

    Raises Refusal where no answer shows its steps.
    """
    shown = [one for body in bodies if (one := _whole_steps(url, body, per_step))]
    if not shown:
        raise Refusal(
            f"arm {arm}: no answer came with one step in each chunk; the machine may be too busy, run this again"
        )
    steps = sum(int(one.counted[_DRAFTS]) for one in shown)
    accepted = sum(one.counted[_ACCEPTED] for one in shown)
    streamed = [tokens for one in shown for tokens in (one.output.chunk_tokens or ())[1:]]
    return Agreement(
        arm=arm,
        answers=len(shown),
        steps_counted=steps,
        steps_streamed=len(streamed),
        counted=1 + accepted / steps,
        streamed=sum(streamed) / len(streamed),
    )


def ask(url: str, body: dict[str, Any]) -> ProbedAnswer:
    """Send one streamed chat request to the server at `url`, which ends in /v1. Raises Refusal."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    tally = StreamTally()
    try:
        before = _counters(url)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            for line in map(bytes.decode, answer):
                if line.startswith("data: "):
                    tally.take(line.removeprefix("data: ").rstrip("\n"), 0.0)
        grown = {name: value - before.get(name, 0.0) for name, value in _counters(url).items()}
    except OSError as error:
        raise Refusal(f"{url}: the probe's request failed ({error}); see the server's log") from error
    return ProbedAnswer(output=tally.output(), counted=grown)


def _counters(url: str) -> dict[str, float]:
    with urllib.request.urlopen(metrics_url(url), timeout=TIMEOUT_S) as answer:
        return dict(counters_in(answer.read().decode()) or {})


def bodies(plan: Plan) -> Iterator[dict[str, Any]]:
    """The first prompt of every class, as the benchmark asks it."""
    for name in plan.classes:
        prompt = next(prompt for prompt in plan.prompts if prompt.class_ == name)
        yield json.loads(request_body(plan, Pair(id=prompt.id, class_=name, prompt=prompt, nonce="0" * 6)))


def _whole_steps(url: str, body: dict[str, Any], per_step: int) -> ProbedAnswer | None:
    """An answer that ends where a step ends and has one step in each chunk; None if no answer does."""
    for _ in range(TRIES):
        first = ask(url, body).output.chunk_tokens
        if first is None or len(first) < 3 or first[0] != 1 or max(first) > per_step:
            continue
        second = ask(url, {**body, "max_tokens": sum(first[:-1])})
        if second.output.chunk_tokens == first[:-1]:
            return second
    return None
