"""Whether an arm meets the run's objective at a load: are so many percent of its requests within a limit, with 95 % confidence?

A prompt counts once, with the share of its requests that are within the limit: requests of one prompt resemble each other, and asking
it again says nothing of other prompts. Classes count alike. Where blocks of time or starts of the servers differ more than prompts
do by chance (`benchmark.analyse.sources`), the prompts count for fewer by as much. The share of that number has Clopper and
Pearson's bounds, each with 95 % confidence. The objective is met where the lower bound is at least its percentile, missed where the
upper bound is below, and otherwise the run cannot tell.

A failed request is not within any limit. An answer that does not have the time, as one of a single token has no time per output token,
does not count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.sources import Source, spread
from benchmark.analyse.stats import CONFIDENCE, clopper_pearson, percentile, t_quantile
from benchmark.analyse.values import request_values
from benchmark.objectives import Limit, counted, limits, prompts_needed
from benchmark.plan import Arm, Load

Outcome = Literal["met", "missed", "cannot tell"]
Sample = Mapping[str, Mapping[str, Sequence[tuple[Source, bool]]]]
"""By class and prompt, whether each request was within the limit."""


def outcomes(cells: Cells) -> list[dict[str, Any]]:
    """Every arm at every load; nothing without an objective."""
    if not cells.plan.objective:
        return []
    return [outcome(cells, arm, load) for load, arm in product(cells.plan.loads, cells.plan.arms)]


def outcome(cells: Cells, arm: Arm, load: Load) -> dict[str, Any]:
    """The whole objective, and each of its limits."""
    found = [_limit(cells, arm, load, limit) for limit in limits(cells.plan.objective)]
    told = {one["outcome"] for one in found}
    return {
        "arm": arm.name,
        "concurrency": load.concurrency,
        "rate_per_s": load.rate_per_s,
        "outcome": "missed" if "missed" in told else "met" if told == {"met"} else "cannot tell",
        "limits": found,
    }


def more_would_tell(cells: Cells, arm: Arm, load: Load) -> bool:
    """Whether the load asked fewer prompts than its objective needs, and the plan has more."""
    classes = cells.plan.classes
    asked = [{one.prompt_id for one in cells.of(arm, Place(class_, load))} for class_ in classes]
    every = [sum(prompt.class_ == class_ for prompt in cells.plan.prompts) for class_ in classes]
    return counted(list(map(len, asked))) < min(prompts_needed(cells.plan.objective), counted(every)) - 0.5


def _limit(cells: Cells, arm: Arm, load: Load, limit: Limit) -> dict[str, Any]:
    sample, times_s = _sample(cells, arm, load, limit)
    known = [kept for prompts in sample.values() for requests in prompts.values() for _, kept in requests]
    share, number = _share(sample) if len(sample) == len(cells.plan.classes) else (None, 0.0)
    low, high = (0.0, 1.0) if share is None else clopper_pearson(share * number, number)
    told: Outcome = "met" if low >= limit.share else "missed" if high < limit.share else "cannot tell"
    return {
        "limit": str(limit),
        "metric": limit.metric,
        "percentile": limit.percentile,
        "limit_s": limit.seconds,
        "outcome": told,
        "n": len(known),
        "within": sum(known),
        "prompts": sum(map(len, sample.values())),
        "counts_for": number,
        "share": share,
        "low": low,
        "high": high,
        "percentile_s": percentile(sorted(times_s), 100 * limit.share) if times_s else None,
    }


def _sample(cells: Cells, arm: Arm, load: Load, limit: Limit) -> tuple[Sample, list[float]]:
    """And the times of what was answered."""
    found: defaultdict[str, defaultdict[str, list[tuple[Source, bool]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    times_s = []
    for class_ in cells.plan.classes:
        for record in cells.of(arm, Place(class_, load)):
            value = request_values(record, arm.max_tokens_per_step).get(limit.metric)
            if value is not None:
                times_s.append(value)
            if value is not None or record.error is not None:
                within = value is not None and value <= limit.seconds
                found[class_][record.prompt_id].append((cells.source(record), within))
    return found, times_s


def _share(sample: Sample) -> tuple[float, float]:
    """Of requests within the limit, and for how many independent ones that stands."""
    moves: defaultdict[Source, float] = defaultdict(float)
    shares = []
    for prompts in sample.values():
        means = [math.fsum(kept for _, kept in own) / len(own) for own in prompts.values()]
        shares.append(math.fsum(means) / len(means))
        for own in prompts.values():
            for source, kept in own:
                moves[source] += (kept - shares[-1]) / len(own) / len(prompts) / len(sample)
    share, number = math.fsum(shares) / len(shares), counted([len(prompts) for prompts in sample.values()])
    variance, degrees = spread(moves)
    sure = (t_quantile(CONFIDENCE, round(one, 1)) for one in (degrees, max(number - 1, 1)))
    widened = variance * (next(sure) / next(sure)) ** 2
    return share, min(number, share * (1 - share) / widened) if widened > 0 else number
