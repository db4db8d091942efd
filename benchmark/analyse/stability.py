"""What happened while a run was on: arms that became slower or faster, servers that started again, time without a record.

Pairs share what drifts, so a speed-up hardly feels it; absolute times, costs and objectives do. An arm's trend compares the last third of
the time of loading under a start of the servers with its first third, over prompts that were asked in both at the same load. So neither
a class, nor a load, nor a start, nor a gap looks like drift. A search shows drift by its first cell alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, product
from operator import itemgetter
from typing import Any

from benchmark.analyse.cells import CLOCK_S, Cells, sort_out
from benchmark.analyse.comparison import adjust, as_ratio, times_of
from benchmark.analyse.stats import Estimate, Sample, Source, clustered_mean, mean, summed
from benchmark.analyse.values import request_values
from benchmark.measure.journal import RawRun
from benchmark.metrics import TPOT
from benchmark.plan import PlannedArm

_GAP_S = 60.0
"""Without any request under way: between two blocks a client needs less than a second."""


def stability(raw: RawRun) -> dict[str, Any]:
    """`trends` by arm, `restarts`, `nodes` (replaced ones) and `gaps` in their order, and `drift`: the first cell against its
    repetition, where both are of the same nodes."""
    raw = raw.by_nodes
    nodes = [
        {"at": iso(change.at_unix_s), "arm": change.arm, "before": change.before, "after": change.after}
        for change in raw.node_changes
    ]
    happened = {"restarts": list(_restarts(raw)), "nodes": nodes, "gaps": list(_gaps(raw))}
    return {"trends": [] if raw.plan.search else _trends(raw), **happened, "drift": drift(raw)}


def drift(raw: RawRun) -> list[dict[str, Any]]:
    """Each arm in the first cell, of several starts in that of the last one, against itself when that was repeated at the end: above
    1 it had become faster."""
    before, after = sort_out(raw), sort_out(raw, repeated=True)
    again = [(place.load, record.start) for (_, place), own in after.requests.items() for record in own]
    rows = []
    for arm in raw.plan.arms if again else ():
        load, start = again[0]
        old, new = (
            [
                known
                for own in times_of(cells, arm, load).values()
                for known in own.values()
                if known[0].start == start
            ]
            for cells in (before, after)
        )
        if moved := _moved(old, new):
            rows.append({"arm": arm.name, "metric": TPOT.name, **as_ratio(moved)})
    return rows


def _moved(before: Sample, after: Sample) -> Estimate | None:
    """The log of how much faster `after` is, over prompts that both have; its interval is over prompts or, where that is wider, over
    blocks less the effect of their prompts. None without a common prompt."""
    logs: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for side, sample in enumerate((before, after)):
        for source, log_s in sample:
            logs[f"{source.class_}/{source.prompt}"][side].append(log_s)
    means = {name: tuple(map(mean, sides)) for name, sides in logs.items() if all(sides)}
    if not means:
        return None
    over_prompts = clustered_mean({name: [old - new] for name, (old, new) in means.items()})
    blocks: tuple[defaultdict[str, list[float]], ...] = (defaultdict(list), defaultdict(list))
    for side, sample in enumerate((before, after)):
        for source, log_s in sample:
            if source.block is not None and (own := means.get(f"{source.class_}/{source.prompt}")):
                blocks[side][f"{source.queue}/{source.block}"].append(log_s - own[side])
    parts = [clustered_mean(own) for own in blocks if len(own) > 1]
    over_blocks = summed(over_prompts.mean, parts)
    if len(parts) < 2 or over_prompts.error is None or (over_blocks.error or 0.0) <= over_prompts.error:
        return over_prompts
    return replace(over_blocks, n=over_prompts.n, clusters=over_prompts.clusters)


def _trends(raw: RawRun) -> list[dict[str, Any]]:
    cells, clock, hours = sort_out(raw), dict[float, tuple[int, float]](), defaultdict[int, float](float)
    for block in sorted(raw.blocks, key=lambda block: block.started_unix_s):
        clock[block.started_unix_s] = block.start, hours[block.start]
        hours[block.start] += raw.plan.loading_s([block.duration_s]) / 3600
    third = {at_s: int(3 * hour / hours[start]) for at_s, (start, hour) in clock.items() if hours[start]}
    rows = []
    for arm in raw.plan.arms:
        sides = _thirds(cells, arm, third)
        first, middle, last = ({(source.queue, source.block) for source, _ in side} for side in sides)
        # One block says nothing about what blocks do.
        if min(len(first), len(last)) > 1 and (moved := _moved(sides[0], sides[2])):
            size = {"metric": TPOT.name, "hours": max(hours.values()), "blocks": len(first | middle | last)}
            rows.append({"arm": arm.name, **size, **as_ratio(moved)})
    adjust(rows)
    keys = ("arm", "metric", "hours", "blocks", "ratio", "ci_low", "ci_high", "p_value", "p_holm")
    return [
        {key: row[key] for key in keys} | {"verdict": row["verdict_holm"] or row["verdict"]} for row in rows
    ]


def _thirds(cells: Cells, arm: PlannedArm, third: Mapping[float, int]) -> tuple[Sample, Sample, Sample]:
    """An arm's log times per token, by third of the loading under their start. Prompts are those of a load and a start."""
    sides: tuple[list[tuple[Source, float]], ...] = ([], [], [])
    for (name, place), records in cells.requests.items():
        if name != arm.name or (name, place.class_) in cells.made_up:
            continue
        begun = sorted(block.started_unix_s for block in cells.loaded(arm, place)[1])
        for record in records:
            value = request_values(record, arm.max_tokens_per_step).get(TPOT.name)
            block = bisect_right(begun, record.started_unix_s + CLOCK_S)
            if value and block and begun[block - 1] in third:
                source = cells.source(record)
                prompt, queue = (f"{place.load}/{record.start}/{of}" for of in (source.prompt, source.queue))
                own = source._replace(prompt=prompt, queue=queue)
                sides[third[begun[block - 1]]].append((own, math.log(value)))
    first, middle, last = sides
    return first, middle, last


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
    spans = [
        (record.started_unix_s, record.started_unix_s + (record.e2e_s or 0.0)) for record in raw.requests
    ]
    spans += [(block.started_unix_s, block.started_unix_s + block.duration_s) for block in raw.blocks]
    reached = math.inf
    for start, end in sorted(spans):
        if start - reached > _GAP_S:
            resumed = any(reached < sitting.started_unix_s <= start for sitting in raw.sittings)
            yield {"from": iso(reached), "to": iso(start), "seconds": start - reached, "resumed": resumed}
        reached = end if math.isinf(reached) else max(reached, end)


def iso(unix_s: float) -> str:
    """The moment in UTC, to the second."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
