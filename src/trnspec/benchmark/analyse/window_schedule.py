"""The window for each measured load, in the form that an engine takes.

vLLM chooses the window by the number of running requests: `num_speculative_tokens_per_batch_size` of `--speculative-config` is a list of
[first, last, window], both ends included, which begins at 1. Between two ranges, and above the last, the window before goes on; none is
above `num_speculative_tokens` (vLLM 0.24, 0.29 and 0.32: vllm/v1/spec_decode/dynamic/utils.py).

For each load the fastest arm over the mix decides. Where it is not shown to be faster than an arm with a smaller window, or than the
baseline, the smaller window is taken, and the load is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.decision import at_loads
from trnspec.benchmark.analyse.result import Comparison, Result
from trnspec.benchmark.analyse.result_parts import WindowAtLoad
from trnspec.benchmark.analyse.sentences import rendered
from trnspec.benchmark.analyse.speed_up import FASTER, SLOWER
from trnspec.benchmark.analyse.window_advice import advise
from trnspec.benchmark.errors import ResultsError
from trnspec.core.screen import wrapped
from trnspec.core.words import count, span

VERSIONS = "vLLM 0.24 and later"
_TAX = (
    "A schedule has a price of its own (vllm-project/vllm#49548 reports 7 to 22 % where the window is 0): serve it as one "
    "more arm and measure it at these loads, before you use it."
)


def windows_by_load(result: Result) -> tuple[WindowAtLoad, ...]:
    """The window for each number of concurrent requests; empty for fewer than two, or without an arm that drafts."""
    plain = {arm.name for arm in result.run.arms if not arm.speculative_tokens}
    by_load: dict[int, list[Comparison]] = {}
    for one in result.mix:
        if one.concurrency and one.window and one.baseline in plain:
            by_load.setdefault(one.concurrency, []).append(one)
    chosen = (_chosen(result, load, by_load[load]) for load in sorted(by_load))
    return tuple(chosen) if len(by_load) > 1 and not result.run.aa else ()


def _chosen(result: Result, load: int, rows: Sequence[Comparison]) -> WindowAtLoad:
    judged = [one for one in rows if one.ratio and one.verdict in FASTER]
    if not judged:
        untold = [one.treatment for one in rows if one.verdict not in ("same", *SLOWER)]
        why = f"cannot tell whether {untold[0]} is faster" if untold else ""
        return WindowAtLoad(concurrency=load, window=0, cannot_tell=why)
    best = max(judged, key=lambda one: one.ratio or 0)
    others = {
        other.arm: other.verdict
        for own in result.best
        if (own.concurrency, own.class_, own.arm) == (load, None, best.treatment)
        for other in own.over
    }
    alike = [one for one in judged if others.get(one.treatment) not in (None, *FASTER)]
    least = min((best, *alike), key=lambda one: one.window)
    untold = least is not best and others[least.treatment] != "same"
    why = f"cannot tell whether {best.treatment} is faster than {least.treatment}" if untold else ""
    return WindowAtLoad(
        concurrency=load,
        window=least.window,
        arm=least.treatment,
        ratio=least.ratio,
        ci_low=least.ci_low,
        ci_high=least.ci_high,
        cannot_tell=why,
    )


def speculative_config(windows: Sequence[WindowAtLoad]) -> dict[str, Any] | None:
    """The keys of vLLM's `--speculative-config`; None where no load has a window. Between two measured loads the smaller of their windows is
    taken."""
    if not any(one.window for one in windows):
        return None
    ranges = [[1, windows[0].concurrency, windows[0].window]]
    for last, this in pairwise(windows):
        if this.window == last.window:
            ranges[-1][1] = this.concurrency
            continue
        first = last.concurrency + 1 if this.window < last.window else this.concurrency
        ranges[-1][1] = first - 1
        ranges.append([first, this.concurrency, this.window])
    most = max(one.window for one in windows)
    return {"num_speculative_tokens": most, "num_speculative_tokens_per_batch_size": ranges}


def window_for(windows: Sequence[WindowAtLoad], load: int) -> str:
    """One sentence for an engine with one window: that of the load, or of the next larger one that was measured."""
    if not windows:
        return (
            "No window for a load: measure two loads or more (--concurrency 1,4,16) with an arm that drafts."
        )
    at = next((one for one in windows if one.concurrency >= load), None)
    if at is None:
        return f"{load} concurrent requests are more than the {windows[-1].concurrency} that were measured."
    near = "" if at.concurrency == load else f" (measured with {at.concurrency})"
    return f"For {count(load, 'concurrent request')}{near}: {_window(at)}."


def _window(one: WindowAtLoad) -> str:
    told = count(one.window, "draft token") if one.window else "no drafts"
    if one.ratio:
        ends = f", {span(one.ci_low, one.ci_high, digits=2)}" if one.ci_low and one.ci_high else ""
        told += f", {one.arm} ({one.ratio:.2f} times as fast{ends})"
    return f"{told}; {one.cannot_tell}" if one.cannot_tell else told


def schedule_lines(result: Result) -> Iterator[str]:
    """The windows by load with their figures, and what vLLM takes; nothing without drafts or with one load."""
    config = speculative_config(result.windows)
    if config is None:
        return
    yield "Window for each number of concurrent requests:"
    yield from (f"  {one.concurrency:>4}: {_window(one)}" for one in result.windows)
    if len({one.window for one in result.windows}) > 1:
        yield f"For {VERSIONS}, if these arms have one draft, add to its --speculative-config:"
        yield f"  {json.dumps(config)[1:-1]}"
        yield from wrapped(_TAX)


def next_windows(cells: RequestsByCell, result: Result) -> Iterator[str]:
    """For each arm that drafts the window to measure next, at the load of the answer; or what is missing to name one."""
    try:
        advice = advise(cells)
    except ResultsError as error:
        yield from wrapped(f"Next window: unknown. {str(error)[:1].upper()}{str(error)[1:]}.")
        return
    load = at_loads(result)[result.here].load
    for row in {
        row["arm"]: row
        for row in (*advice["cells"], *advice["mixes"])  # a mix replaces its classes
        if (row["concurrency"], row["rate_per_s"]) == (load.concurrency, load.rate_per_s)
    }.values():
        windows, own = {one["k"]: one for one in row["by_k"]}, cells.plan.arm(row["arm"]).speculative_tokens
        where = f" at {load.in_words}" if len(result.windows) > 1 else ""
        yield from wrapped(rendered("windows", kind="next", **row, rows=windows, own=own, where=where))
