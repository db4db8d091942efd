"""What a run of the lab must show, and what it leaves behind: `summary.json` with all arms, and `lab.json` with the claims.

All is judged from the results but one claim, whether vLLM's counters and its stream agree about an answer, for which a few
requests are sent. A counter counts a whole step, but an answer may end within a step. So each prompt is sent twice: the first
answer shows where steps end, the second is limited to end there. Then both must agree exactly.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Literal

from benchmark.measure.client import request_body
from benchmark.measure.endpoints import OF_DRAFTS, counters_in, metrics_url
from benchmark.measure.schedule import Pair
from benchmark.measure.stream import Output, StreamTally
from benchmark.plan import Plan
from core.findings import Refusal
from core.words import count

TINY = "measured on this CPU, tiny models"
FILE_NAME = "lab.json"
TOKENS_PER_STEP = 5.0
"""Out of 8, in at least one structured class."""
SPEED_UP = 1.5
"""Below the interval of that class."""
OPEN_ENDED = "open-ended"
OPEN_ENDED_SPEED_UP = 1.1
EQUAL = 0.99
EQUAL_PAIRS = 100
EQUAL_PAIRS_SHORT = 40
AGREEMENT = 0.01
ADVICE = 0.10
ADVISED = (3, 5, 7)
NOT_BROKEN = 0.3
"""A speed-up below which something is wrong, however busy the machine."""
Scope = Literal["whole", "short", "machinery"]
"""A `short` run judges nothing that a busy machine decides; the `machinery` alone is judged where the models are not the
lab's, so that their acceptance is not known."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The arms that share the better draft, by window."""

    baseline: str
    arms: Mapping[int, str]

    @property
    def main(self) -> str:
        """The arm of the published window of 7, or the nearest there is."""
        return self.arms[min(self.arms, key=lambda k: (abs(k - 7), k))]

    @property
    def widest(self) -> str:
        """The arm that advice is taken from."""
        return self.arms[max(self.arms)]

    @property
    def narrowest(self) -> str:
        """The arm whose step times join it."""
        return self.arms[min(self.arms)]


@dataclass(frozen=True)
class Claim:
    text: str
    met: bool
    found: str


@dataclass(frozen=True, kw_only=True)
class Results:
    summary: Mapping[str, Any]
    advice: Mapping[str, Any] | None
    sweep: Sweep
    others: tuple[str, ...]
    """Speculating arms with another draft."""
    agreements: tuple[Agreement, ...]
    claims: tuple[Claim, ...]
    machine: Mapping[str, Any]

    @property
    def label(self) -> str:
        """What kind of numbers these are."""
        return str(self.machine["label"])


def judge(
    summary: Mapping[str, Any],
    sweep: Sweep,
    agreements: Sequence[Agreement],
    advice: Mapping[str, Any] | None,
    *,
    scope: Scope,
) -> Iterator[Claim]:
    yield _answered(summary)
    speed_ups = _speed_ups(summary, sweep, sweep.main)
    lengths: dict[str, float] = {}
    if scope != "machinery":
        cells = {cell["class"]: cell for cell in summary["cells"] if cell["arm"] == sweep.main}
        lengths = {
            name: cell["acceptance_length"] or 0.0 for name, cell in cells.items() if name != OPEN_ENDED
        }
        lengths = dict(sorted(lengths.items(), key=lambda item: -item[1]))
        yield Claim(
            f"a structured class yields at least {TOKENS_PER_STEP:g} tokens per step of 8 at most",
            max(lengths.values(), default=0.0) >= TOKENS_PER_STEP,
            ", ".join(f"{name} {length:.2f}" for name, length in lengths.items()),
        )
        equalities = [cell["output_equality"] for cell in cells.values() if cell["output_equality"]]
        yield _equal(equalities, sweep.main, EQUAL_PAIRS_SHORT if scope == "short" else EQUAL_PAIRS)
    yield Claim(
        f"vLLM's counters and the streamed chunks give the same tokens per step within {AGREEMENT:.0%}",
        bool(agreements) and max(one.difference for one in agreements) <= AGREEMENT,
        ", ".join(
            f"{one.arm} {one.counted:.3f} and {one.streamed:.3f} in {one.steps_counted} steps"
            for one in agreements
        ),
    )
    if scope == "short":
        ratios = {name: comparison["ratio"] for name, comparison in speed_ups.items()}
        yield Claim(
            f"the best class is not slower than {NOT_BROKEN:g} of plain decoding",
            max(ratios.values(), default=0.0) > NOT_BROKEN,
            ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()),
        )
    if scope == "whole":
        lows = {name: speed_ups[name]["ci_low"] or 0.0 for name in lengths if name in speed_ups}
        yield Claim(
            f"such a class is faster by more than {SPEED_UP:g} at the lower bound of its interval",
            any(low > SPEED_UP and lengths[name] >= TOKENS_PER_STEP for name, low in lows.items()),
            ", ".join(f"{name} {low:.2f}" for name, low in lows.items()),
        )
        found = speed_ups.get(OPEN_ENDED, {"ci_low": None})
        low = found["ci_low"]
        yield Claim(
            f"open-ended prompts gain nothing: their interval includes or lies below {OPEN_ENDED_SPEED_UP:g}",
            low is not None and low <= OPEN_ENDED_SPEED_UP,
            "not measured" if low is None else f"{low:.2f} to {found['ci_high']:.2f}",
        )
        yield from _advised(summary, sweep, advice)


def _speed_ups(summary: Mapping[str, Any], sweep: Sweep, arm: str) -> dict[str, Mapping[str, Any]]:
    """The comparison of the arm's time per output token with the baseline's, by class."""
    return {
        found["class"]: found
        for found in summary["comparisons"]
        if (found["baseline"], found["treatment"], found["metric"]) == (sweep.baseline, arm, "tpot_s")
        and found["ratio"]
    }


def _answered(summary: Mapping[str, Any]) -> Claim:
    wrong = [f"{cell['arm']} {cell['class']}" for cell in summary["cells"] if cell["errors"] or not cell["n"]]
    found = (
        f"{count(len(summary['run']['arms']), 'arm')}, {sum(cell['n'] for cell in summary['cells'])} answers"
    )
    text = f"{found}, errors in {', '.join(wrong) or 'none'}"
    return Claim("every arm answers every request", summary["run"]["complete"] and not wrong, text)


def _equal(equalities: Sequence[Mapping[str, Any]], arm: str, minimum: int) -> Claim:
    pairs, equal = (sum(one.get(key) or 0 for one in equalities) for key in ("n_pairs", "equal"))
    return Claim(
        f"greedy answers are the same with and without a draft: {EQUAL:.0%} of at least {minimum} pairs",
        pairs >= minimum and equal >= EQUAL * pairs,
        f"{equal} of {pairs} pairs with {arm}",
    )


def _advised(summary: Mapping[str, Any], sweep: Sweep, advice: Mapping[str, Any] | None) -> Iterator[Claim]:
    """Speed-ups as geometric means over the classes that have both."""
    for k in ADVISED:
        text = f"advice from {sweep.widest} predicts k = {k} within {ADVICE:.0%}, mean over classes"
        if advice is None or k not in sweep.arms:
            yield Claim(text, False, "not measured")
            continue
        seen = _speed_ups(summary, sweep, sweep.arms[k])
        predicted = {
            cell["class"]: next(row["speed_up"] for row in cell["by_k"] if row["k"] == k)
            for cell in advice["cells"]
            if cell["arm"] == sweep.widest and cell["class"] in seen
        }
        advised = geometric_mean(predicted.values())
        measured = geometric_mean(seen[name]["ratio"] for name in predicted)
        difference = advised / measured - 1
        found = f"advised {advised:.2f}, measured {measured:.2f}: {difference:+.1%}"
        yield Claim(text, abs(difference) <= ADVICE, found)


def labelled(folder: Path, machine: Mapping[str, Any]) -> dict[str, Any]:
    """The summary in `folder`, which from now on says what it was measured on."""
    path = folder / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    summary["run"] |= {"label": machine["label"], "machine": dict(machine)}
    summary["served_by"] = f"{machine['engine']} on {machine['cpu']}"
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def save(results: Results, folder: Path) -> None:
    content = {
        "schema": 1,
        "label": results.label,
        "machine": dict(results.machine),
        "sweep": {"baseline": results.sweep.baseline, "arms": results.sweep.arms},
        "others": results.others,
        "agreements": [{**asdict(one), "difference": round(one.difference, 6)} for one in results.agreements],
        "claims": [asdict(claim) for claim in results.claims],
        "advice": results.advice,
    }
    (folder / FILE_NAME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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
