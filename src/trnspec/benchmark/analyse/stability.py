"""The stability of a run: arms that became slower or faster, servers that restarted, time without a record.

Drift affects both requests of a pair, so it hardly changes a speed-up; it does change absolute times and costs. The first
cell, which is repeated at the end, shows it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise, product
from operator import itemgetter
from statistics import fmean
from typing import Any

from trnspec.benchmark.analyse.cells import RequestsByCell, cells_of
from trnspec.benchmark.analyse.request_table import Requests, joined
from trnspec.benchmark.analyse.result import Course
from trnspec.benchmark.analyse.speed_up import as_ratio
from trnspec.benchmark.analyse.statistics import UNKNOWN, Estimate, summed, weighted_mean
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.metrics import TPOT

_GAP_S = 60.0
"""A longer time without a request in flight is a gap: between two blocks the client needs less than a second."""


def stability(cells: RequestsByCell) -> Course:
    """`course` of a result, in time order; the first cell is compared with its repetition if both ran on the same nodes."""
    raw = cells.raw
    nodes = [
        {"at": iso(one.at_unix_s), "arm": one.arm, "before": one.before, "after": one.after}
        for one in raw.node_changes
    ]
    drift = list(_drift(cells, cells_of(raw, repeated=True)))
    known = {"restarts": list(_restarts(raw)), "nodes": nodes, "gaps": list(_gaps(raw)), "drift": drift}
    return Course.model_validate(known)


def _drift(before: RequestsByCell, after: RequestsByCell) -> Iterator[dict[str, Any]]:
    """Each arm in the first cell compared with the repetition at the end, under the same start of the servers; above 1 the arm
    became faster."""
    for (_, place), again in list(after.requests.items())[:1]:
        for arm in before.plan.arms:
            sides = []
            for cells in (before, after):
                known = joined([cells.none, *cells.known(arm, place.load).values()])
                same_start = known.cluster_ids.start == again.cluster_ids.start[0]
                sides.append(known.at(same_start & (known.metrics[TPOT.name] > 0)))
            if moved := _moved(*sides):
                yield {"arm": arm.name, "metric": TPOT.name, **as_ratio(moved)}


def _moved(before: Requests, after: Requests) -> Estimate | None:
    """The log of the speed-up of `after` over `before`, over their common prompts. The interval is over prompts or, if wider, over blocks
    after the effect of the prompts is removed. None without a common prompt."""
    sides = [list(_logs(own)) for own in (before, after)]
    by_prompt = [_grouped((prompt, log_s) for prompt, _, log_s in side) for side in sides]
    means = [
        {prompt: fmean(logs) for prompt, logs in own.items() if prompt in by_prompt[1 - i]}
        for i, own in enumerate(by_prompt)
    ]
    if not means[0]:
        return None
    over_prompts = weighted_mean([old - means[1][prompt] for prompt, old in means[0].items()])
    parts = []
    for side, mean in zip(sides, means, strict=True):
        known = (one for one in side if one[0] in mean and one[1] is not None)
        blocks = _grouped((block, log_s - mean[prompt]) for prompt, block, log_s in known).values()
        if len(blocks) > 1:
            parts.append(weighted_mean([*map(fmean, blocks)], [*map(len, blocks)]))
    over_blocks = summed(over_prompts.mean, parts)
    if len(parts) < 2 or over_prompts.error is None or (over_blocks.error or 0.0) <= over_prompts.error:
        return over_prompts
    return replace(over_blocks, n=over_prompts.n, clusters=over_prompts.clusters)


def _logs(requests: Requests) -> Iterator[tuple[Hashable, Hashable, float]]:
    """Prompt, block (None: unknown) and log of the time per token of each answer."""
    queues, blocks = requests.cluster_ids.queue.tolist(), requests.cluster_ids.block.tolist()
    for one, queue, block, tpot_s in zip(
        requests.answers, queues, blocks, requests.metrics[TPOT.name], strict=True
    ):
        yield (one.class_, one.prompt_id), None if block == UNKNOWN else (queue, block), math.log(tpot_s)


def _grouped(values: Iterable[tuple[Hashable, float]]) -> dict[Hashable, list[float]]:
    groups: dict[Hashable, list[float]] = {}
    for group, value in values:
        groups.setdefault(group, []).append(value)
    return groups


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
    spans = [(one.started_unix_s, one.started_unix_s + (one.e2e_s or 0.0)) for one in raw.requests]
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
