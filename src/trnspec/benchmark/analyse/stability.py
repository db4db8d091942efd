"""The stability of a run: arms that became slower or faster, servers that restarted, time without a record.

Drift affects both requests of a pair, so it hardly changes a speed-up; it does change absolute times and costs. The first
cell, which is repeated at the end, shows it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, product
from operator import itemgetter
from typing import Any

from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.comparison import as_ratio, times_of
from trnspec.benchmark.analyse.stats import Estimate, Sample, clustered_mean, mean, summed
from trnspec.benchmark.measure.journal import RawRun
from trnspec.benchmark.metrics import TPOT

_GAP_S = 60.0
"""A longer time without a request in flight is a gap: between two blocks the client needs less than a second."""


def stability(raw: RawRun) -> dict[str, Any]:
    """`course` of a summary: `restarts`, `nodes` (replaced ones) and `gaps` in time order; `drift`: the first cell compared
    with its repetition, if both ran on the same nodes."""
    raw = raw.by_nodes
    nodes = [
        {"at": iso(change.at_unix_s), "arm": change.arm, "before": change.before, "after": change.after}
        for change in raw.node_changes
    ]
    return {"restarts": list(_restarts(raw)), "nodes": nodes, "gaps": list(_gaps(raw)), "drift": _drift(raw)}


def _drift(raw: RawRun) -> list[dict[str, Any]]:
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


def _restarts(raw: RawRun) -> Iterator[dict[str, Any]]:
    """Restarts of servers: a counter that fell began again from 0. Servers on another node are not restarts. For servers without
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
