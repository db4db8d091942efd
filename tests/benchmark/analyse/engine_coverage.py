"""Do intervals hold the truth on an engine that is hard to measure? The client's own schedule, records and analysis against the
emulated H200 engine, in simulated time.

Fixed loads: of 95 % intervals for the speed-up 93 to 97 % must contain what is true in steady state: with one start of the servers of that
start, with several of the mean over starts. A/A: at most 5 % of comparisons of an arm with itself may be called faster or slower.
Searches: what is said of the crossing (its interval, or that there is none) must be true. Windows: so must be the range that `advise`
gives for each window. A figure passes where the binomial interval of its count meets its limits.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, repeat
from typing import Any, TypeVar

from benchmark.analyse.acceptance.advice import advise
from benchmark.analyse.acceptance.windows import AdviceOptions
from benchmark.analyse.frontier import crossovers
from benchmark.analyse.stats import percentile, wilson
from benchmark.analyse.summary import summarise
from tests.benchmark.analyse.held_runs import PLAIN, SimulatedRun, run_of, servers
from tests.benchmark.analyse.noise import COVERAGE, FALSE_ALARMS, Figures, figures, meets
from tests.measure.steady_state import Workload, log_speed_up

_Kind = TypeVar("_Kind")
_Found = TypeVar("_Found")
AT_LEAST = (COVERAGE[0], 1.0)
SHARES = {1: (0.454,), 3: (0.62, 0.42, 0.27), 7: (0.62, 0.42, 0.27, 0.17, 0.11, 0.07, 0.05)}
"""By window: share of steps in which each draft is accepted (quoted, as the engine's steps are)."""
SEARCHED = (1, 64)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of runs."""

    k: int
    concurrency: int | None = None
    """None: searched."""
    starts: int = 1
    shift: float = 0.0
    """By how much the drafting server is faster than in the table, as a logarithm: moves the crossing."""
    same: bool = False
    """A/A: one server under two names."""

    def __str__(self) -> str:
        moved = f", {math.exp(self.shift):.2f} times as fast" if self.shift else ""
        at = f"{self.concurrency} at once" if self.concurrency else "searched"
        return f"{'A/A' if self.same else 'load'}, k = {self.k}{moved}, {at}, starts: {self.starts}"


KINDS = (
    *(Kind(k=1, concurrency=n) for n in (1, 4, 24, 64)),
    Kind(k=3, concurrency=4),
    *(Kind(k=7, concurrency=n) for n in (4, 24)),
    *(Kind(k=1, concurrency=n, starts=2) for n in (4, 24)),
    *(Kind(k=k, concurrency=4, starts=4) for k in (1, 7)),
    *(Kind(k=k, concurrency=n, same=True) for k, n in ((0, 16), (1, 4), (1, 24), (7, 4))),
    Kind(k=1, concurrency=4, starts=2, same=True),
)
SEARCHES = (Kind(k=1), Kind(k=1, shift=0.08), Kind(k=1, starts=4), Kind(k=1, same=True))
CLAIMS = ("crossing", "always", "never")
WINDOWS_AT = 4


def work_of(k: int) -> Workload:
    return Workload(shares=SHARES[max(k, 1)])


def simulated(kind: Kind, seed: str, beside: Sequence[int] = ()) -> tuple[SimulatedRun, float]:
    """Such a run before its first request, and by how much its one start of the servers, or all of several, moves the logarithm of
    the speed-up. Arms with the windows `beside` are of one start with the drafting arm, since advice speaks of windows that nobody
    has started."""
    dice, work = random.Random(seed), work_of(kind.k)
    windows = {PLAIN: kind.k if kind.same else 0, "spec": kind.k, **{f"k{k}": k for k in beside}}
    arms = servers(dice, windows, kind.starts)
    arms["spec"] = replace(arms["spec"], factors=[f / math.exp(kind.shift) for f in arms["spec"].factors])
    arms |= {f"k{k}": replace(arms[f"k{k}"], factors=arms["spec"].factors) for k in beside}
    if kind.same:
        arms[PLAIN] = arms["spec"]
    moved = kind.shift
    if kind.starts == 1:
        moved = math.log(arms[PLAIN].factors[0] / arms["spec"].factors[0])
    sizes: dict[str, Any] = {"requests": 64, "starts": kind.starts, "seed": dice.randrange(1 << 40)}
    loads: dict[str, Any] = {"concurrency": [kind.concurrency]}
    if kind.concurrency is None:
        loads = {"concurrency": [], "search": {"low": SEARCHED[0], "high": SEARCHED[1]}}
    empty = run_of(arms, work, prompts=16, **sizes, **loads)
    return SimulatedRun(empty=empty, arms=arms, work=work, dice=dice), moved


def _each(run: Callable[[_Kind, str], _Found], kind: _Kind, seed: str, runs: int) -> list[_Found]:
    """So many runs of a kind, each with its seed, on all processors."""
    seeds = (f"{seed}/{kind}/{number}" for number in range(runs))
    with ProcessPoolExecutor() as pool:
        return list(pool.map(run, repeat(kind), seeds, chunksize=5))


def _share(count: int, runs: int) -> str:
    low, high = wilson(count, runs)
    return f"{count / max(runs, 1):6.1%} {f'{low:.1%} to {high:.1%}':>15}"


def _words(codes: Counter[str], runs: int) -> str:
    return ", ".join(f"{name} {count / runs:.1%}" for name, count in codes.most_common())


def truth_of(kind: Kind) -> float:
    """The logarithm of the speed-up, mean over starts."""
    return 0.0 if kind.same else log_speed_up(kind.concurrency or 1, kind.k, work_of(kind.k))


def fixed(kind: Kind, seed: str) -> tuple[Mapping[str, Any], float]:
    """What a run of a fixed load says of the time per token, and what is true of its start, or of all starts."""
    run, moved = simulated(kind, seed)
    (said,) = (one for one in summarise(run.listed())["comparisons"] if one["metric"] == "tpot_s")
    return said, truth_of(kind) + moved


def loads(runs: int, seed: int) -> Figures:
    """Lines about fixed loads."""
    yield f"{'':36}{'truth':>6} {'holds':>6} {'binomial':>15} {'half width':>10} {'error':>7}  verdicts", True
    for kind in KINDS:
        rows = _each(fixed, kind, f"{seed}", runs)
        verdicts = Counter(row["verdict"] for row, _ in rows)
        limits, count = FALSE_ALARMS, verdicts["faster"] + verdicts["slower"]
        if not kind.same:
            limits = COVERAGE
            count = sum(math.log(row["ci_low"]) <= truth <= math.log(row["ci_high"]) for row, truth in rows)
        halves = sorted(math.log(row["ci_high"] / row["ci_low"]) / 2 for row, _ in rows)
        error = math.fsum(math.log(row["ratio"]) - truth for row, truth in rows) / runs
        numbers = f"{_share(count, runs)} {percentile(halves, 50):10.1%} {error:+7.2%}"
        line = f"{kind!s:36}{math.exp(truth_of(kind)):6.3f} {numbers}  {_words(verdicts, runs)}"
        yield line, meets(count, runs, limits)


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


def searched(kind: Kind, seed: str) -> tuple[Mapping[str, Any], float | str, int]:
    """What a search says of the crossing, what is true, and how many cells it took."""
    run, moved = simulated(kind, seed)
    raw, said = run.searched(), crossing_of(kind.k, moved)
    found = [one for one in crossovers(raw) if one["class"] is None] or [{"found": "nothing said"}]
    return found[0], said or ("always" if _curve(kind.k)[0][1] + moved > 0 else "never"), len(raw.visits)


def searches(runs: int, seed: int) -> Figures:
    """A line for each kind of search, with whether what is said is true often enough."""
    yield f"\nsearch from {SEARCHED[0]} to {SEARCHED[1]} at once", True
    yield f"{'':36}{'truth':>6} {'holds':>6} {'binomial':>15} {'said':>6} {'cells':>6}  found", True
    for kind in SEARCHES:
        done = _each(searched, kind, f"{seed}/search", runs)
        said = [(found, truth) for found, truth, _ in done if found["found"] in CLAIMS]
        true = sum(
            found["low"] <= truth <= found["high"]
            if found["found"] == "crossing" and isinstance(truth, float)
            else found["found"] == truth
            for found, truth in said
        )
        # An arm and itself have no crossing, and neither is faster: whatever is said of them is wrong.
        count, of, limits = (len(said), runs, FALSE_ALARMS) if kind.same else (true, len(said), COVERAGE)
        words = _words(Counter(found["found"] for found, _, _ in done), runs)
        truth = None if kind.same else crossing_of(kind.k, kind.shift)
        numbers = f"{_share(count, of)} {len(said) / runs:6.1%} {sum(n for *_, n in done) / runs:6.1f}"
        yield f"{kind!s:36}{truth or math.nan:6.1f} {numbers}  {words}", meets(count, of, limits)


def advised(beside: Sequence[int], seed: str) -> tuple[Mapping[int, Mapping[str, Any]], Sequence[int], float]:
    """What `advise` says of each window, those of which one may be best, and what the start of the servers adds to the truth."""
    run, moved = simulated(Kind(k=7, concurrency=WINDOWS_AT), seed, beside)
    said = advise(run.listed(), AdviceOptions(timed_with=[f"k{k}" for k in beside]))
    (cell,) = (one for one in said["cells"] if one["arm"] == "spec")
    choice = cell["not_told_apart"] or [cell["recommended_k"]]
    return {row["k"]: row for row in cell["by_k"]}, choice, moved


def windows(runs: int, seed: int) -> Figures:
    """Lines about advice from a run at k = 7, without and with the step of another window."""
    yield f"\nadvice for each window, {WINDOWS_AT} at once, from k = 7", True
    yield f"{'':24}{'truth':>6} {'holds':>6} {'binomial':>15} {'from':>6} {'to':>6}", True
    truth = {k: log_speed_up(WINDOWS_AT, k, work_of(7)) for k in range(1, 8)}
    best = max((0, *truth), key=lambda k: truth.get(k, 0.0))
    for beside in ((), (1,), (1, 3)):
        found = _each(advised, beside, f"{seed}/windows", runs)
        name = f"timed {', '.join(f'k = {k}' for k in (*beside, 7))}"
        for k in truth:
            lows, highs = (sorted(rows[k][end] for rows, *_ in found) for end in ("low", "high"))
            count = sum(
                math.log(rows[k]["low"]) <= truth[k] + moved <= math.log(rows[k]["high"])
                for rows, _, moved in found
            )
            # What is not known widens a range: it may hold the truth too often, but for windows that were timed.
            limits = COVERAGE if k in (*beside, 7) else AT_LEAST
            ends = f"{percentile(lows, 50):6.2f} {percentile(highs, 50):6.2f}"
            line = f"{name:16}, k = {k}{math.exp(truth[k]):6.3f} {_share(count, runs)} {ends}"
            yield line, meets(count, runs, limits)
        chosen = sum(best in choice for _, choice, _ in found)
        line = f"{name:16}, best {_share(chosen, runs)}: k = {best} is the one advised, or one of those that may be"
        yield line, meets(chosen, runs, AT_LEAST)


if __name__ == "__main__":
    sys.exit(figures(__doc__, {"loads": loads, "searches": searches, "windows": windows}, 1000))
