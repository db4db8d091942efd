"""The stability of a run: arms that became slower or faster, servers that restarted, time without a record.

Drift affects both requests of a pair, so it hardly changes a speed-up; it does change absolute times, costs and objectives. The trend of
an arm compares the last third of the loading time under a start of the servers with the first third, over prompts that were asked in both
at the same load. So a change of class, load or start, or a gap, does not count as drift. In a search only the first cell, which is
repeated at the end, shows drift.
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

from benchmark.analyse.cells import CLOCK_S, Cells, cells_of
from benchmark.analyse.comparison import adjust, as_ratio, times_of
from benchmark.analyse.stats import Estimate, Sample, Source, clustered_mean, mean, summed
from benchmark.analyse.values import request_values
from benchmark.measure.journal import RawRun
from benchmark.metrics import TPOT
from benchmark.plan import PlannedArm

_GAP_S = 60.0
"""A longer time without a request in flight is a gap: between two blocks the client needs less than a second."""


def stability(raw: RawRun) -> dict[str, Any]:
    """`course` of a summary: `trends` by arm; `restarts`, `nodes` (replaced ones) and `gaps` in time order; `drift`: the first cell compared
    with its repetition, if both ran on the same nodes."""
    raw = raw.by_nodes
    nodes = [
        {"at": iso(change.at_unix_s), "arm": change.arm, "before": change.before, "after": change.after}
        for change in raw.node_changes
    ]
    happened = {"restarts": list(_restarts(raw)), "nodes": nodes, "gaps": list(_gaps(raw))}
    return {"trends": [] if raw.plan.search else _trends(raw), **happened, "drift": drift(raw)}


def drift(raw: RawRun) -> list[dict[str, Any]]:
    """Each arm in the first cell compared with the repetition at the end, under the same start of the servers; above 1 the arm
    became faster."""
    before, after = cells_of(raw), cells_of(raw, repeated=True)
    again = [(place.load, record.start) for (_, place), own in after.requests.items() for record in own]
    rows = []
    for arm in raw.plan.arms if again else ():
        load, start = again[0]
        old, new = (
            [
                sample
                for by_pair in times_of(cells, arm, load).values()
                for sample in by_pair.values()
                if sample[0].start == start
            ]
            for cells in (before, after)
        )
        if moved := _moved(old, new):
            rows.append({"arm": arm.name, "metric": TPOT.name, **as_ratio(moved)})
    return rows


def _moved(before: Sample, after: Sample) -> Estimate | None:
    """The log of the speed-up of `after` over `before`, over their common prompts. The interval is over prompts or, if wider, over blocks
    after the effect of the prompts is removed. None without a common prompt."""
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
    cells, clock, hours = cells_of(raw), dict[float, tuple[int, float]](), defaultdict[int, float](float)
    for block in sorted(raw.blocks, key=lambda block: block.started_unix_s):
        clock[block.started_unix_s] = block.start, hours[block.start]
        hours[block.start] += raw.plan.loading_s([block.duration_s]) / 3600
    third = {at_s: int(3 * hour / hours[start]) for at_s, (start, hour) in clock.items() if hours[start]}
    rows = []
    for arm in raw.plan.arms:
        sides = _thirds(cells, arm, third)
        first, middle, last = ({(source.queue, source.block) for source, _ in side} for side in sides)
        # One block does not show how blocks vary.
        if min(len(first), len(last)) > 1 and (moved := _moved(sides[0], sides[2])):
            size = {"metric": TPOT.name, "hours": max(hours.values()), "blocks": len(first | middle | last)}
            rows.append({"arm": arm.name, **size, **as_ratio(moved)})
    adjust(rows)
    keys = ("arm", "metric", "hours", "blocks", "ratio", "ci_low", "ci_high", "p_value", "p_holm")
    return [
        {key: row[key] for key in keys} | {"verdict": row["verdict_holm"] or row["verdict"]} for row in rows
    ]


def _thirds(cells: Cells, arm: PlannedArm, third: Mapping[float, int]) -> tuple[Sample, Sample, Sample]:
    """Log times per token of an arm, by third of the loading time under their start. Prompt names include load and start."""
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
    """Restarts of servers: a counter that fell began again from 0. Starts that the run asked for are not restarts. For servers without
    counters restarts are not detected."""
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
    """Times between the first and the last request without a request in flight. A run of several rounds of arms has none here."""
    if len({session.run for session in raw.sessions}) > 1:
        return
    spans = [
        (record.started_unix_s, record.started_unix_s + (record.e2e_s or 0.0)) for record in raw.requests
    ]
    spans += [(block.started_unix_s, block.started_unix_s + block.duration_s) for block in raw.blocks]
    reached = math.inf
    for start, end in sorted(spans):
        if start - reached > _GAP_S:
            resumed = any(reached < session.started_unix_s <= start for session in raw.sessions)
            yield {"from": iso(reached), "to": iso(start), "seconds": start - reached, "resumed": resumed}
        reached = end if math.isinf(reached) else max(reached, end)


def iso(unix_s: float) -> str:
    """The time in UTC, in seconds."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
