"""Whether each arm meets the objective, by load.

An arm meets the objective at a load if the required percentage of its requests is within the limit, with 95 % confidence. Requests of one
prompt are similar, and asking a prompt again says little about other prompts, so prompts are clusters. The share has an effective number
of independent requests, calculated from its variance over prompts, blocks of time and starts of the servers (Korn and Graubard 1998,
Survey Methodology 24). This number is one per prompt if no request differs, and at most two per prompt, because prompts that always miss
the limit may not be among those that were asked. Classes have equal weights. Share and effective number give the bounds of Clopper and
Pearson, each with 95 % confidence. The objective is met if the lower bound is at least its percentile and enough different prompts were
asked. It is missed if the upper bound is below the percentile. Otherwise the run cannot tell. A failed request is not within any limit.
An answer without the metric does not count: an answer of a single token has no time per output token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from benchmark.analyse import stats
from benchmark.analyse.cells import Cells, size_of
from benchmark.analyse.stats import Source, mean
from benchmark.analyse.values import request_values
from benchmark.objectives import Limit, counted, limits
from benchmark.plan import Load, PlannedArm

_MAX_FAILED = 0.1
_MAX_PER_PROMPT = 2
"""The maximum effective number of requests per prompt."""


def outcomes(cells: Cells) -> list[dict[str, Any]]:
    """`objectives` of a summary: whether each arm meets the objective at each load; empty without an objective."""
    arms = cells.plan.arms if cells.plan.objective else ()
    return [outcome(cells, arm, load) for load, arm in product(cells.plan.loads, arms)]


def outcome(cells: Cells, arm: PlannedArm, load: Load) -> dict[str, Any]:
    rows = [_limit(cells, arm, load, limit) for limit in limits(cells.plan.objective)]
    codes = {row["outcome"] for row in rows}
    whole = "missed" if "missed" in codes else "met" if codes == {"met"} else "cannot tell"
    return {"arm": arm.name, **size_of(load), "outcome": whole, "limits": rows}


def _limit(cells: Cells, arm: PlannedArm, load: Load, limit: Limit) -> dict[str, Any]:
    sample: dict[str, dict[str, list[tuple[Source, bool]]]] = {}
    times_s, within = [], []
    for record in cells.asked(arm, load):
        value = request_values(record, arm.max_tokens_per_step).get(limit.metric)
        if value is not None:
            times_s.append(value)
        if value is not None or record.error is not None:
            within.append(value is not None and value <= limit.seconds)
            prompts = sample.setdefault(record.class_, {})
            prompts.setdefault(record.prompt_id, []).append((cells.source(record), within[-1]))
    share, asked, number = None, 0.0, 0.0
    if len(sample) == len(cells.plan.classes):
        share, asked, number = _share(list(sample.values()))
    low, high = (0.0, 1.0) if share is None else stats.clopper_pearson(share * number, number)
    met = low >= limit.share and asked > limit.prompts_needed - 0.5
    return {
        "limit": str(limit),
        "metric": limit.metric,
        "percentile": limit.percentile,
        "limit_s": limit.seconds,
        "outcome": "met" if met else "missed" if high < limit.share else "cannot tell",
        "n": len(within),
        "within": sum(within),
        "prompts": sum(map(len, sample.values())),
        "counts_for": number,
        "share": share,
        "low": low,
        "high": high,
        "percentile_s": stats.percentile(sorted(times_s), 100 * limit.share) if times_s else None,
    }


def _share(classes: Sequence[Mapping[str, Sequence[tuple[Source, bool]]]]) -> tuple[float, float, float]:
    """The share of requests within the limit, the effective number of prompts, and that of independent requests."""
    moves: defaultdict[Source, float] = defaultdict(float)
    shares = []
    for by_prompt in classes:
        shares.append(mean([mean([kept for _, kept in own]) for own in by_prompt.values()]))
        for own in by_prompt.values():
            for source, kept in own:
                moves[source] += (kept - shares[-1]) / len(own) / len(by_prompt) / len(classes)
    share, prompts = mean(shares), counted(list(map(len, classes)))
    variance, degrees = stats.spread(moves)
    if not variance:
        return share, prompts, prompts
    both = (degrees, max(prompts - 1, 1))
    own_t, prompts_t = (stats.t_quantile(stats.CONFIDENCE, round(number, 1)) for number in both)
    requests = counted([sum(map(len, by_prompt.values())) for by_prompt in classes])
    known = share * (1 - share) / variance / (own_t / prompts_t) ** 2
    return share, prompts, min(known, requests, _MAX_PER_PROMPT * prompts)
