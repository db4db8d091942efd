"""What happened while a run was on: arms that became slower or faster, servers that started again, time without a record.

Pairs share what drifts, so a speed-up hardly feels it; absolute times, costs and objectives do.

A trend is told by the seasonal Kendall test (Hirsch, Slack and Smith 1982, Water Resources Research 18), its size by the
median of the slopes between all pairs of values of a season (Sen 1968, Journal of the American Statistical Association
63). A season is one class under one load and one start of the servers; its values are the blocks of requests to an arm, each
the mean log TPOT of its answers less that of their prompts. So neither a class, nor a load, nor a start, nor a prompt looks
like time, and what the requests of a block share counts once. Time is that of loading since the start, so that a gap does not
count as drift. The test says that a level moved and not why; a search tells drift by its first cell alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, product
from operator import itemgetter
from typing import Any

from benchmark.analyse.cells import Cells, sort_out
from benchmark.analyse.comparison import STARTS_DIFFER, Verdict, beyond, said, within
from benchmark.analyse.mix import Times, times_of
from benchmark.analyse.stats import Estimate, clustered_mean, holm, seasonal_kendall, summed
from benchmark.analyse.values import request_values
from benchmark.measure.journal import RawRun
from benchmark.measure.records import RequestRecord
from benchmark.metrics import TPOT
from benchmark.plan import Arm
from core.words import count

_CLOCK_S = 0.002
"""Starts are written down to the millisecond."""
_GAP_S = 60.0
"""Without any request under way: between two blocks a client needs less than a second."""
_SURE = 0.01
"""Holm's p-value below which a trend is called one. Stricter than elsewhere, since noise of neighbouring blocks may be alike,
which the test does not know."""
_MOST_VALUES = 200
"""Of a season; more of them are averaged, neighbour with neighbour."""


def course(raw: RawRun) -> dict[str, Any]:
    """`trends` by arm, `restarts` and `gaps` in their order, and `drift`: the first cell against its repetition."""
    happened = {"restarts": list(_restarts(raw)), "gaps": list(_gaps(raw))}
    return {"trends": _trends(raw), **happened, "drift": drift(raw)}


def drift(raw: RawRun) -> list[dict[str, Any]]:
    """Each arm in the first cell, of several starts in that of the last one, against itself when that was repeated at the end: above
    1 it had become faster."""
    before, after = sort_out(raw), sort_out(raw, repeated=True)
    again = [(place.load, one.start) for (_, place), own in after.requests.items() for one in own]
    found = []
    for arm in raw.plan.arms if again else ():
        load, start = again[0]
        sides = [
            {
                class_: {pair: one for pair, one in own.items() if one[0].start == start}
                for class_, own in times.items()
            }
            for times in (times_of(cells, arm, load) for cells in (before, after))
        ]
        if (known := _moved(*sides)) is not None:
            found.append({"arm": arm.name, "metric": TPOT.name, **said(known)})
    return found


def _moved(before: Times, after: Times) -> Estimate | None:
    """The log of how much faster `after` is, over prompts that both have; its interval is over prompts or, where that is wider, over
    blocks less what their prompts make out."""
    logs: dict[tuple[str, str], list[list[float]]] = {}
    for side, times in enumerate((before, after)):
        for source, log_s in (one for own in times.values() for one in own.values()):
            logs.setdefault((source.class_, source.prompt), [[], []])[side].append(log_s)
    both = {key: [math.fsum(own) / len(own) for own in sides] for key, sides in logs.items() if all(sides)}
    if not both:
        return None
    by_prompt = clustered_mean({"/".join(key): [old - new] for key, (old, new) in both.items()})
    blocks: list[dict[str, list[float]]] = [{}, {}]
    for side, times in enumerate((before, after)):
        for source, log_s in (one for own in times.values() for one in own.values()):
            if source.block is not None and (source.class_, source.prompt) in both:
                own_mean = both[source.class_, source.prompt][side]
                name = f"{source.queue}/{source.block}"
                blocks[side].setdefault(name, []).append(log_s - own_mean)
    parts = [clustered_mean(own) for own in blocks if len(own) > 1]
    over_blocks = summed(by_prompt.mean, parts) if len(parts) == 2 else None
    wider = (
        over_blocks
        and by_prompt.error is not None
        and over_blocks.error
        and over_blocks.error > by_prompt.error
    )
    if not over_blocks or not wider:
        return by_prompt
    return replace(over_blocks, n=by_prompt.n, clusters=by_prompt.clusters)


def steadiness(raw: RawRun) -> Iterator[str]:
    """What to beware of where loads were not held while they were measured."""
    if not raw.held and not raw.plan.replayed:
        low, high = STARTS_DIFFER
        yield (
            "its loads were not held while they were measured (it has no marks of that): full and draining waves are mixed, so "
            f"a ratio from {low:.2f} to {high:.2f} has no verdict"
        )


def sentences(found: Mapping[str, Any]) -> Iterator[str]:
    """One for each kind of thing that happened."""
    for one in found.get("drift", ()):
        if one["verdict"] in ("faster", "slower"):
            yield (
                f"drift: {one['arm']} was {one['ratio']:.3f} times as fast when the first cell was repeated at the end "
                f"[{one['ci_low']:.3f}, {one['ci_high']:.3f}]; no interval contains that"
            )
    moved = [one for one in found["trends"] if one["verdict"] in ("slower", "faster")]
    if moved:
        said = (
            f"{one['arm']} was {one['ratio']:.2f} times as fast at the end as at the beginning "
            f"[{one['ci_low']:.2f}, {one['ci_high']:.2f}], p = {one['p_holm']:.2g}"
            for one in moved
        )
        hours = _long(moved[0]["hours"] * 3600)
        over = f"drift within a start of the servers, over {hours} of loading (seasonal Kendall test)"
        yield f"{over}: {'; '.join(said)}; the pairs of a speed-up share it, absolute times do not"
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for one in found["restarts"]:
        by_arm.setdefault(one["arm"], []).append(one)
    if by_arm:
        said = (
            f"{arm} {count(len(own), 'time')}, first between {own[0]['after']} and {own[0]['before']}"
            for arm, own in by_arm.items()
        )
        yield f"counters began again, so a server restarted or several share an address: {'; '.join(said)}"
    if gaps := found["gaps"]:
        longest = max(gaps, key=lambda gap: gap["seconds"])
        resumed = sum(gap["resumed"] for gap in gaps)
        yield (
            f"nothing was measured for {_long(sum(gap['seconds'] for gap in gaps))} in {count(len(gaps), 'gap')}, "
            f"the longest from {longest['from']} to {longest['to']}; after {resumed} of them the run was taken up again"
        )


def _long(seconds: float) -> str:
    for unit_s, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _trends(raw: RawRun) -> list[dict[str, Any]]:
    if raw.plan.search:
        return []
    cells, found, clock = sort_out(raw), list[dict[str, Any]](), dict[float, float]()
    loaded_s: defaultdict[int, float] = defaultdict(float)
    for block in sorted(raw.blocks, key=lambda block: block.started_unix_s):
        clock[block.started_unix_s] = loaded_s[block.start] / 3600
        loaded_s[block.start] += raw.plan.loading_s([block.duration_s])
    for arm in raw.plan.arms:
        seasons = list(_seasons(cells, arm, clock))
        if (trend := seasonal_kendall(seasons)) is None:
            continue
        times = [hour for season in seasons for hour, _ in season]
        hours = max(times) - min(times)
        slopes = {"ratio": trend.slope, "ci_low": trend.high, "ci_high": trend.low}
        ratios = {name: math.exp(-hours * slope) for name, slope in slopes.items()}
        size = {"metric": TPOT.name, "hours": hours, "blocks": len(times)}
        found.append({"arm": arm.name, **size, **ratios, "p_value": trend.p_value})
    for one, adjusted in zip(found, holm([one["p_value"] for one in found]), strict=True):
        ends = math.log(one["ci_low"]), math.log(one["ci_high"])
        moved = beyond(*ends) if adjusted is not None and adjusted < _SURE else 0
        still: Verdict = "equivalent" if within(*ends) else "not shown"
        one |= {"p_holm": adjusted, "verdict": {1: "faster", -1: "slower"}.get(moved, still)}
    return found


def _seasons(cells: Cells, arm: Arm, clock: Mapping[float, float]) -> Iterator[list[tuple[float, float]]]:
    """By class, load and start of the servers: hour of loading and value of each block in order. A prompt that was asked once under
    a start says nothing about time."""
    for (name, place), records in cells.requests.items():
        if name != arm.name or (name, place.class_) in cells.made_up:
            continue
        begun = sorted(block.started_unix_s for block in cells.loaded(arm, place)[1])
        by_start: dict[int, list[RequestRecord]] = {}
        for record in records:
            by_start.setdefault(record.start, []).append(record)
        yield from (_season(own, arm, begun, clock) for own in by_start.values())


def _season(
    records: Sequence[RequestRecord], arm: Arm, begun: Sequence[float], clock: Mapping[float, float]
) -> list[tuple[float, float]]:
    by_prompt: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        value = request_values(record, arm.max_tokens_per_step).get(TPOT.name)
        if value and (block := bisect_right(begun, record.started_unix_s + _CLOCK_S)):
            by_prompt.setdefault(record.prompt_id, []).append((block - 1, math.log(value)))
    moves: dict[int, list[float]] = {}
    for values in by_prompt.values():
        mean = math.fsum(value for _, value in values) / len(values)
        for block, value in values if len(values) > 1 else ():
            moves.setdefault(block, []).append(value - mean)
    season = [(clock[begun[block]], math.fsum(own) / len(own)) for block, own in sorted(moves.items())]
    size = -(-len(season) // _MOST_VALUES)
    portions = (season[at : at + size] for at in range(0, len(season), size or 1))
    return [(math.fsum(t for t, _ in p) / len(p), math.fsum(v for _, v in p) / len(p)) for p in portions]


def _restarts(raw: RawRun) -> Iterator[dict[str, Any]]:
    """Counters of a server only grow; where one fell, it counts from 0 again: not between two starts that the run asked for. Nothing
    is known of servers without counters."""
    starts = sorted({block.start for block in raw.blocks})
    for arm, start in product(raw.plan.arms, starts):
        own = [block for block in raw.blocks if (block.arm, block.start) == (arm.name, start)]
        read = [(block.started_unix_s, block.counters_before) for block in own]
        read += [(block.started_unix_s + block.duration_s, block.counters_after) for block in own]
        known = sorted(((at_s, counters) for at_s, counters in read if counters), key=itemgetter(0))
        for (last_s, last), (at_s, counters) in pairwise(known):
            if any(value < last.get(name, 0.0) for name, value in counters.items()):
                yield {"arm": arm.name, "after": iso(last_s), "before": iso(at_s)}


def _gaps(raw: RawRun) -> Iterator[dict[str, Any]]:
    """Time between the first and the last request in which none was under way; rounds of arms are runs with hours between."""
    if len({sitting.run for sitting in raw.sittings}) > 1:
        return
    spans = [(one.started_unix_s, one.started_unix_s + (one.e2e_s or 0.0)) for one in raw.requests]
    spans += [(one.started_unix_s, one.started_unix_s + one.duration_s) for one in raw.blocks]
    reached = math.inf
    for start, end in sorted(spans):
        if start - reached > _GAP_S:
            resumed = any(reached < sitting.started_unix_s <= start for sitting in raw.sittings)
            yield {"from": iso(reached), "to": iso(start), "seconds": start - reached, "resumed": resumed}
        reached = end if math.isinf(reached) else max(reached, end)


def iso(unix_s: float) -> str:
    """The moment in UTC, to the second."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
