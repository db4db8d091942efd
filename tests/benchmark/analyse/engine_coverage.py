"""Do intervals hold the truth on an engine that is hard to measure? The client's own schedule, records and analysis against the
emulated H200 engine, in simulated time.

Fixed loads: of 95 % intervals for the speed-up 93 to 97 % must contain what is true in steady state: with one start of the servers of that
start, with several of the mean over starts. A/A: at most 5 % of comparisons of an arm with itself may be called faster or slower.
Searches: what is said of the crossing (its interval, or that there is none) must be true. Windows: so must be the range that `advise`
gives for each window. A figure passes where the binomial interval of its count meets its limits.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise, repeat
from typing import Any, TypeVar

from benchmark.analyse.acceptance.advice import advise
from benchmark.analyse.acceptance.windows import AdviceOptions
from benchmark.analyse.frontier import crossovers
from benchmark.analyse.stats import percentile, wilson
from benchmark.analyse.summary import summarise
from tests.benchmark.analyse.held_runs import PLAIN, SimulatedRun, plan_of, servers
from tests.benchmark.analyse.noise import shown
from tests.measure.steady_state import Workload, log_speed_up

_Kind = TypeVar("_Kind")
_Found = TypeVar("_Found")
COVERAGE = (0.93, 0.97)
FALSE_ALARMS = (0.0, 0.05)
SHARES = {1: (0.454,), 3: (0.62, 0.42, 0.27), 7: (0.62, 0.42, 0.27, 0.17, 0.11, 0.07, 0.05)}
"""By window: share of steps in which each draft is accepted (quoted, as the engine's steps are)."""
PROMPTS = 16
REQUESTS = 64
SEARCHED = (1, 64)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of runs of a fixed load."""

    k: int
    at_once: int
    starts: int = 1
    same: bool = False
    """A/A: one server under two names."""

    def __str__(self) -> str:
        what = "A/A" if self.same else "load"
        starts = f"{self.starts} start{'s' * (self.starts > 1)}"
        return f"{what}, k = {self.k}, {self.at_once} at once, {starts}"


KINDS = (
    *(Kind(k=1, at_once=n) for n in (1, 4, 24, 64)),
    Kind(k=3, at_once=4),
    *(Kind(k=7, at_once=n) for n in (4, 24)),
    *(Kind(k=1, at_once=n, starts=2) for n in (4, 24)),
    *(Kind(k=k, at_once=4, starts=4) for k in (1, 7)),
    *(Kind(k=k, at_once=n, same=True) for k, n in ((0, 16), (1, 4), (1, 24), (7, 4))),
    Kind(k=1, at_once=4, starts=2, same=True),
)


def main() -> int:
    """Print the figures; 1 when one is beyond its limits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    about = "simulated runs of each kind; limits mean something from 1000 on (default 1000)"
    parser.add_argument("--runs", type=int, default=1000, help=about)
    parser.add_argument("--seed", type=int, default=1)
    parts = {"loads": loads, "searches": searches, "windows": windows}
    parser.add_argument("--only", choices=tuple(parts), help="one part of it")
    options = parser.parse_args()
    print(f"emulated H200 engine in simulated time, {options.runs} runs of each kind, seed {options.seed}")
    chosen = [part for name, part in parts.items() if options.only in (None, name)]
    return shown(chain.from_iterable(part(options.runs, options.seed) for part in chosen))


def loads(runs: int, seed: int) -> Iterator[tuple[str, bool]]:
    """Lines about fixed loads, each with whether it is within its limits."""
    yield f"{'':36}{'truth':>6} {'holds':>6} {'binomial':>15} {'half width':>10} {'error':>7}  verdicts", True
    for kind in KINDS:
        rows = _each(fixed, kind, kind, f"{seed}", runs)
        verdicts = Counter(row["verdict"] for row, _ in rows)
        words = ", ".join(f"{name} {count / runs:.1%}" for name, count in verdicts.most_common())
        limits, count = FALSE_ALARMS, verdicts["faster"] + verdicts["slower"]
        if not kind.same:
            limits = COVERAGE
            count = sum(math.log(row["ci_low"]) <= truth <= math.log(row["ci_high"]) for row, truth in rows)
        halves = sorted(math.log(row["ci_high"] / row["ci_low"]) / 2 for row, _ in rows)
        error = math.fsum(math.log(row["ratio"]) - truth for row, truth in rows) / runs
        figures = f"{_share(count, runs)} {percentile(halves, 50):10.1%} {error:+7.2%}"
        line = f"{kind!s:36}{math.exp(truth_of(kind)):6.3f} {figures}  {words}"
        yield line, _meets(count, runs, limits)


def _each(
    run: Callable[[_Kind, str], _Found], kind: _Kind, name: object, seed: str, runs: int
) -> list[_Found]:
    """So many runs of a kind, each with its seed, on all processors."""
    began, seeds = time.monotonic(), (f"{seed}/{name}/{number}" for number in range(runs))
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(run, repeat(kind), seeds, chunksize=5))
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return rows


def _share(count: int, runs: int) -> str:
    low, high = wilson(count, runs)
    return f"{count / max(runs, 1):6.1%} {f'{low:.1%} to {high:.1%}':>15}"


def _meets(count: int, runs: int, limits: tuple[float, float]) -> bool:
    low, high = wilson(count, runs)
    return low <= limits[1] and high >= limits[0]


def truth_of(kind: Kind) -> float:
    """The logarithm of the speed-up, mean over starts."""
    return 0.0 if kind.same else log_speed_up(kind.at_once, kind.k, work_of(kind.k))


def work_of(k: int) -> Workload:
    return Workload(shares=SHARES[max(k, 1)])


def fixed(kind: Kind, seed: str) -> tuple[Mapping[str, Any], float]:
    """What a run of a fixed load says of the time per token, and what is true of its start, or of all starts."""
    dice = random.Random(seed)
    arms = servers(dice, {PLAIN: kind.k if kind.same else 0, "spec": kind.k}, kind.starts)
    if kind.same:
        arms["spec"] = arms[PLAIN]
    truth = truth_of(kind)
    if kind.starts == 1:
        truth += math.log(arms[PLAIN].factors[0] / arms["spec"].factors[0])
    work = work_of(kind.k)
    plan = plan_of(
        arms,
        work,
        prompts=PROMPTS,
        concurrency=[kind.at_once],
        requests=REQUESTS,
        seed=dice.randrange(1 << 40),
        starts=kind.starts,
    )
    raw = SimulatedRun(plan=plan, arms=arms, work=work, dice=dice).listed()
    (said,) = (one for one in summarise(raw)["comparisons"] if one["metric"] == "tpot_s")
    return said, truth


@cache
def _curve(k: int) -> Sequence[tuple[float, float]]:
    """The truth by load, close enough for straight lines."""
    at = (1, 2, 4, 8, 12, 16, 18, 20, 22, 24, 28, 32, 40, 48, 64)
    return [(float(n), log_speed_up(n, k, work_of(k))) for n in at]


def crossing_of(k: int, shift: float) -> float | None:
    """Up to which load drafting pays where the curve is moved by `shift`; None where it does not cross in the range."""
    points = [(n, value + shift) for n, value in _curve(k)]
    for (low, above), (high, below) in pairwise(points):
        if above > 0 >= below:
            return low + (high - low) * above / (above - below)
    return None


def searches(runs: int, seed: int) -> Iterator[tuple[str, bool]]:
    """A line for each kind of search, with whether what is said is true often enough."""
    yield f"\nsearch from {SEARCHED[0]} to {SEARCHED[1]} at once", True
    yield f"{'':36}{'truth':>6} {'holds':>6} {'binomial':>15} {'said':>6} {'cells':>6}  found", True
    for kind in SEARCHES:
        done = _each(searched, kind, kind, f"{seed}/search", runs)
        said = [(found, truth) for found, truth, _ in done if found["found"] in CLAIMS]
        true = sum(_true(found, truth) for found, truth in said)
        # An arm and itself have no crossing, and neither is faster: whatever is said of them is wrong.
        count, of, limits = (len(said), runs, FALSE_ALARMS) if kind.same else (true, len(said), COVERAGE)
        codes = Counter(found["found"] for found, _, _ in done)
        words = ", ".join(f"{name} {number / runs:.1%}" for name, number in codes.most_common())
        truth = None if kind.same else crossing_of(kind.k, kind.shift)
        cells = sum(number for _, _, number in done) / runs
        line = f"{kind!s:36}{truth or math.nan:6.1f} {_share(count, of)} {len(said) / runs:6.1%} {cells:6.1f}  {words}"
        yield line, _meets(count, of, limits)


@dataclass(frozen=True, kw_only=True)
class Search:
    """One kind of searches."""

    k: int
    starts: int = 1
    shift: float = 0.0
    """By how much the drafting server is faster than in the table, as a logarithm: moves the crossing."""
    same: bool = False
    """A/A: one server under two names."""

    def __str__(self) -> str:
        if self.same:
            return f"A/A search, k = {self.k}"
        moved = f", {math.exp(self.shift):.2f} times as fast" if self.shift else ""
        return f"search, k = {self.k}{moved}, {self.starts} start{'s' * (self.starts > 1)}"


SEARCHES = (Search(k=1), Search(k=1, shift=0.08), Search(k=1, starts=4), Search(k=1, same=True))
CLAIMS = ("crossing", "always", "never")


def _true(found: Mapping[str, Any], truth: float | str) -> bool:
    if found["found"] != "crossing" or isinstance(truth, str):
        return bool(found["found"] == truth)
    return bool(found["low"] <= truth <= found["high"])


def searched(kind: Search, seed: str) -> tuple[Mapping[str, Any], float | str, int]:
    """What a search says of the crossing, what is true, and how many cells it took."""
    dice = random.Random(seed)
    arms = servers(dice, {PLAIN: 0, "spec": kind.k}, kind.starts)
    faster = [factor / math.exp(kind.shift) for factor in arms["spec"].factors]
    arms["spec"] = replace(arms["spec"], factors=faster)
    if kind.same:
        arms[PLAIN] = arms["spec"]
    shift = kind.shift
    if kind.starts == 1:
        shift = math.log(arms[PLAIN].factors[0] / arms["spec"].factors[0])
    work = work_of(kind.k)
    plan = plan_of(
        arms,
        work,
        prompts=PROMPTS,
        concurrency=[],
        search={"low": SEARCHED[0], "high": SEARCHED[1]},
        requests=REQUESTS,
        seed=dice.randrange(1 << 40),
        starts=kind.starts,
    )
    raw = SimulatedRun(plan=plan, arms=arms, work=work, dice=dice).searched()
    found = [one for one in crossovers(raw) if one["class"] is None]
    truth = crossing_of(kind.k, shift)
    said = truth if truth is not None else "always" if _curve(kind.k)[0][1] + shift > 0 else "never"
    return (found[0] if found else {"found": "nothing said"}), said, len(raw.visits)


WINDOWS_AT = 4


def windows(runs: int, seed: int) -> Iterator[tuple[str, bool]]:
    """Lines about advice from a run at k = 7, without and with the step of another window."""
    yield f"\nadvice for each window, {WINDOWS_AT} at once, from k = 7", True
    yield f"{'':24}{'truth':>6} {'holds':>6} {'binomial':>15} {'from':>6} {'to':>6}", True
    truth = {k: log_speed_up(WINDOWS_AT, k, work_of(7)) for k in range(1, 8)}
    best = max((0, *truth), key=lambda k: truth.get(k, 0.0))
    for beside in ((), (1,), (1, 3)):
        found = _each(advised, beside, beside, f"{seed}/windows", runs)
        name = f"timed {', '.join(f'k = {k}' for k in (*beside, 7))}"
        for k in truth:
            ranges = [(math.log(rows[k]["low"]), math.log(rows[k]["high"])) for rows, _, _ in found]
            shifts = [shift for _, _, shift in found]
            count = sum(
                low <= truth[k] + shift <= high for (low, high), shift in zip(ranges, shifts, strict=True)
            )
            ends = " ".join(
                f"{math.exp(percentile(sorted(side), 50)):6.2f}" for side in zip(*ranges, strict=True)
            )
            # What is not known widens a range: it may hold the truth too often, but for windows that were timed.
            limits = COVERAGE if k in (*beside, 7) else (COVERAGE[0], 1.0)
            line = f"{name:16}, k = {k}{math.exp(truth[k]):6.3f} {_share(count, runs)} {ends}"
            yield line, _meets(count, runs, limits)
        chosen = sum(best in choice for _, choice, _ in found)
        line = f"{name:16}, best {_share(chosen, runs)}: k = {best} is the one advised, or one of those that may be"
        yield line, _meets(chosen, runs, (COVERAGE[0], 1.0))


def advised(beside: Sequence[int], seed: str) -> tuple[Mapping[int, Mapping[str, Any]], Sequence[int], float]:
    """What `advise` says of each window, those of which one may be best, and what the start of the servers adds to the
    truth: all drafting arms are of one start, since it speaks of windows that nobody has started."""
    dice = random.Random(seed)
    names = {PLAIN: 0, "k7": 7} | {f"k{k}": k for k in beside}
    arms = servers(dice, names, 1)
    arms |= {f"k{k}": replace(arms[f"k{k}"], factors=arms["k7"].factors) for k in beside}
    work = work_of(7)
    seed_ = dice.randrange(1 << 40)
    plan = plan_of(arms, work, prompts=PROMPTS, concurrency=[WINDOWS_AT], requests=REQUESTS, seed=seed_)
    raw = SimulatedRun(plan=plan, arms=arms, work=work, dice=dice).listed()
    said = advise(raw, AdviceOptions(timed_with=[f"k{k}" for k in beside]))
    (cell,) = (one for one in said["cells"] if one["arm"] == "k7")
    choice = cell["not_told_apart"] or [cell["recommended_k"]]
    shift = math.log(arms[PLAIN].factors[0] / arms["k7"].factors[0])
    return {row["k"]: row for row in cell["by_k"]}, choice, shift


if __name__ == "__main__":
    sys.exit(main())
