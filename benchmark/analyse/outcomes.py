"""Whether an arm meets the run's objective at a load: are so many percent of its requests within a limit, with 95 % confidence?

Requests of one prompt resemble each other, and asking it again says little of other prompts: prompts are clusters. The share stands for as
many independent requests as its variance over prompts, blocks of time and starts of the servers says (`benchmark.analyse.sources`; Korn and
Graubard 1998, Survey Methodology 24), for one a prompt where none differs, and for two at most: a few prompts that always miss may not have been
asked. Classes count alike. The share of that number has Clopper and Pearson's bounds, each with 95 % confidence. The objective is met where the
lower bound is at least its percentile and as many different prompts were asked as it needs, missed where the upper bound is below, and
otherwise the run cannot tell.

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
_MOST_A_PROMPT = 2
"""Requests that a prompt counts for, however often it is asked and however alike prompts are."""
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
    known_of_all = len(sample) == len(cells.plan.classes)
    share, prompts, number = _share(sample) if known_of_all else (None, 0.0, 0.0)
    low, high = (0.0, 1.0) if share is None else clopper_pearson(share * number, number)
    enough = prompts > limit.prompts_needed - 0.5
    told: Outcome = (
        "met" if low >= limit.share and enough else "missed" if high < limit.share else "cannot tell"
    )
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


def _share(sample: Sample) -> tuple[float, float, float]:
    """Of requests within the limit, of how many prompts, and for how many independent requests that stands."""
    moves: defaultdict[Source, float] = defaultdict(float)
    shares = []
    for of_class in sample.values():
        means = [math.fsum(kept for _, kept in own) / len(own) for own in of_class.values()]
        shares.append(math.fsum(means) / len(means))
        for own in of_class.values():
            for source, kept in own:
                moves[source] += (kept - shares[-1]) / len(own) / len(of_class) / len(sample)
    share, prompts = math.fsum(shares) / len(shares), counted([len(of_class) for of_class in sample.values()])
    variance, degrees = spread(moves)
    if not variance:
        return share, prompts, prompts
    sure = (t_quantile(CONFIDENCE, round(one, 1)) for one in (degrees, max(prompts - 1, 1)))
    requests = counted([sum(map(len, of_class.values())) for of_class in sample.values()])
    known = share * (1 - share) / variance / (next(sure) / next(sure)) ** 2
    return share, prompts, min(known, requests, _MOST_A_PROMPT * prompts)
