"""The output of an arm in a cell: requests and tokens per second, requests within the limits of the SLO, the cost of its tokens.

Throughput is the requests sent in the steady windows of the blocks, divided by the length of these windows. If the load was
not held, the time is that in which the arm had requests of the cell in flight. It includes the slow end of each
block, but not the turns of the other arms or the time between blocks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.request_table import CLOCK_S, Requests
from trnspec.benchmark.analyse.statistics import Array, wilson
from trnspec.benchmark.measure.records import BlockRecord, RequestRecord
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import PlannedArm

Blocks = Sequence[BlockRecord]


def token_source(records: Iterable[RequestRecord]) -> str | None:
    """The source of token counts or, if there are several, the number of requests for each."""
    counts = Counter(record.token_source for record in records if record.token_source)
    if len(counts) < 2:
        return next(iter(counts), None)
    return "mixed: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=str))


def throughput(requests: Requests, blocks: Blocks) -> dict[str, Any] | None:
    """Requests and tokens per second of loaded time; None if nothing was answered."""
    counted, loaded_s = _loaded(requests, blocks)
    answered = counted.answered
    if not len(answered) or loaded_s <= 0:
        return None
    tokens = float(answered.tokens.sum())  # NaN where those of one answer are not known
    return {
        "requests_per_s": len(answered) / loaded_s,
        "output_tokens_per_s": None if math.isnan(tokens) else tokens / loaded_s,
        "loaded_s": loaded_s,
        "client_lag_s": max((block.client_lag_s for block in blocks), default=None),
    }


def goodput(slo: Mapping[str, float] | None, requests: Requests, blocks: Blocks) -> dict[str, Any] | None:
    """Requests that kept every limit, as a share of all and per second; None without an SLO or a request.

    An answer of one token has no time per output token and keeps that limit. A failed request keeps no limit. If tokens
    cannot be counted, the result is None.
    """
    if not slo or (within := _within(slo, requests)) is None:
        return None
    counted, loaded_s = _loaded(requests, blocks)
    kept = _within(slo, counted)
    per_s = (0 if kept is None else int(kept.sum())) / loaded_s if loaded_s > 0 else None
    return {"slo": dict(slo), "share": int(within.sum()) / len(requests), "per_s": per_s}


def limits_kept(cells: RequestsByCell) -> Iterator[dict[str, Any]]:
    """`limits_kept` of a summary: the share of an arm's requests within each limit of the SLO and, of several, within all of them (`metric`
    null), by load, over all classes.

    The interval is Wilson's over prompts. A prompt counts once, however often it was asked, with the share of its requests that kept the
    limit: requests of one prompt are similar, and say little about other prompts. Such shares vary at most as much as a yes or no of the
    same mean, so the interval is rather too wide than too narrow. It says nothing about other blocks of time.
    """
    slo = cells.plan.slo or {}
    limits: list[tuple[str | None, Mapping[str, float]]] = [(name, {name: slo[name]}) for name in slo]
    limits += [(None, slo)] * (len(slo) > 1)
    for load, arm in product(cells.plan.loads, filter(cells.mixes, cells.plan.arms)):
        requests = cells.asked(arm, load)
        for metric, limit in limits:
            if (kept := _within(limit, requests)) is not None:
                n, within, prompts = len(requests), int(kept.sum()), requests.prompts
                low, high = wilson(within / n * prompts, prompts)
                row = {"arm": arm.name, **vars(load), "metric": metric, "limit_s": metric and slo[metric]}
                row |= {"n": n, "within": within, "prompts": prompts, "share": within / n}
                yield row | {"low": low, "high": high}


def _within(slo: Mapping[str, float], requests: Requests) -> Array | None:
    """Which requests kept every limit; None without a request, or if a limit of the time per output token needs tokens that cannot be
    counted."""
    if not len(requests) or (TPOT.name in slo and np.isnan(requests.answered.tokens).any()):
        return None
    kept = requests.ok.copy()
    for name, limit in slo.items():
        kept &= ~(requests.metrics[name] > limit)  # an unknown value is not above it
    return kept


def cost(arm: PlannedArm, delivered: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The cost per million output tokens at this load; None without a price or a count of tokens."""
    per_s = delivered["output_tokens_per_s"] if delivered else None
    if arm.usd_per_hour is None or not per_s:
        return None
    return {
        "usd_per_million_output_tokens": arm.usd_per_hour / (per_s * 3600) * 1e6,
        "usd_per_hour": arm.usd_per_hour,
    }


def _loaded(requests: Requests, blocks: Blocks) -> tuple[Requests, float]:
    """The requests that count, and their loaded time in seconds.

    An interrupted block has no record. If there are block records, requests outside of them do not count.
    """
    if not blocks:
        return requests, covered(
            [(r.started_unix_s, r.started_unix_s + (r.e2e_s or 0.0)) for r in requests.answers]
        )
    if all(block.steady_from_s is not None for block in blocks):
        return requests, math.fsum(_delivered_s(block, requests.answers) for block in blocks)
    spans = sorted(map(_steady, blocks))
    starts = [begin - CLOCK_S for begin, _ in spans]
    inside = [
        bool(index := bisect_right(starts, record.started_unix_s))
        and record.started_unix_s <= spans[index - 1][1] + CLOCK_S
        for record in requests.answers
    ]
    return requests.at(np.array(inside, bool)), math.fsum(end - begin for begin, end in spans)


def _steady(block: BlockRecord) -> tuple[float, float]:
    """Begin and end of the steady window of a block; the whole block if its load was not held."""
    until_s = block.duration_s if block.steady_until_s is None else block.steady_until_s
    return block.started_unix_s + (block.steady_from_s or 0.0), block.started_unix_s + until_s


def _delivered_s(block: BlockRecord, records: Iterable[RequestRecord]) -> float:
    """The loaded time of a block in seconds: its steady window. If requests arrive faster than they are answered, it is the time from the
    end of the first answer to the end of the last."""
    begin, end = _steady(block)
    if block.rate_per_s is None:
        return end - begin
    own = (r for r in records if (r.round, r.start, r.block) == (block.round, block.start, block.block))
    ends = [r.started_unix_s + r.e2e_s for r in own if r.e2e_s is not None]
    return max(end - begin, max(ends) - min(ends)) if ends else end - begin


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that at least one of the spans covers."""
    seconds, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        seconds += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return seconds
