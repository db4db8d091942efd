"""Results by load: up to which load each treatment pays, which arm meets the objective, and where tokens are cheapest.

Any run with several loads has `crossovers`. A run whose plan has a `search` chooses its loads by the same curves: the speed-up of the mix
of each treatment, then whether each arm meets the objective. All of it is calculated from the journal alone, so an interrupted search can
be resumed. A cell in which more than a tenth of the requests of an arm failed counts as not answered.

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

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from benchmark.analyse import load_search, stats
from benchmark.analyse.cells import Cells, Place, cells_of, cost, size_of, throughput
from benchmark.analyse.comparison import MIN_PROMPTS, Strata, logs_at, of_class, starts_differ, times_of
from benchmark.analyse.load_search import Cell, ObjectiveAt, Range
from benchmark.analyse.sentences import BURST_ANSWERS, in_words
from benchmark.analyse.stability import drift
from benchmark.analyse.stats import Source, mean
from benchmark.analyse.values import output_tokens, request_values
from benchmark.measure.journal import RawRun
from benchmark.measure.records import LATE_S, REPEATED
from benchmark.measure.schedule import measured_blocks, set_sizes
from benchmark.metrics import TPOT
from benchmark.objectives import Limit, counted, limits, prompts_needed
from benchmark.plan import Load, Plan, PlannedArm

_MAX_FAILED = 0.1
_MAX_PER_PROMPT = 2
"""The maximum effective number of requests per prompt."""


def crossovers(raw: RawRun) -> list[dict[str, Any]]:
    """`crossovers` of a summary: the load up to which each treatment has the lower time per token, for each class and (class null) for
    the mix. Between two listed loads the exact position is unknown."""
    cells, rows = _in_whole_starts(cells_of(raw)), []
    if len(cells.plan.loads) < (1 if raw.plan.search else 3):
        return []
    for arm in cells.treatments:
        base = cells.baseline_of(arm)
        for class_ in (None, *cells.plan.classes)[not cells.mixes(arm) :]:
            curve = _speed_up(cells, arm, class_)
            if all(cell.value is None and not (raw.plan.search and cell.failing) for cell in curve):
                continue  # too few prompts, or an acceptance that was made up: nothing to say about loads
            known, values = (
                load_search.edge(curve, _range(cells.plan)),
                {cell.load: cell.value or 0.0 for cell in curve},
            )
            near = any(sign and starts_differ(values[load]) for load, sign in known.signs)
            several = any(stats.several_starts(cell.moves) for cell in curve)
            more = {
                "failed": [row for side in (base, arm) for row in _failures(cells, side, known.failing)],
                "by": "rate" if cells.plan.rate else "concurrency",
                "one_start": not several and (known.found == "crossing" or near),
            }
            names = {"class": class_, "baseline": base.name, "treatment": arm.name}
            rows.append(names | asdict(known) | more)
    return rows


def _in_whole_starts(cells: Cells) -> Cells:
    """The cells of those starts of the servers under which all loads were measured: in other starts, the effects of load and start cannot
    be separated."""
    starts: dict[Load, set[int]] = {}
    for (_, place), records in cells.requests.items():
        starts.setdefault(place.load, set()).update(record.start for record in records)
    whole = set.intersection(*starts.values()) if starts else set()
    if not whole or set.union(*starts.values()) == whole:
        return cells
    requests = {
        key: [record for record in own if record.start in whole] for key, own in cells.requests.items()
    }
    return replace(cells, requests=requests)


def _failures(cells: Cells, arm: PlannedArm, size: float | None) -> Iterator[dict[str, Any]]:
    """The failed requests of an arm at a load, with their errors; nothing if at most a tenth failed."""
    for load in (load for load in cells.plan.loads if load.size == size):
        asked = cells.asked(arm, load)
        errors = Counter(record.error for record in asked if record.error is not None)
        if errors.total() > _MAX_FAILED * len(asked):
            names = [name for name, _ in errors.most_common()]
            yield {"arm": arm.name, "failed": errors.total(), "asked": len(asked), "errors": names}


def _speed_up(cells: Cells, arm: PlannedArm, class_: str | None) -> list[Cell]:
    """The curve of the log speed-up of an arm over its baseline, in one class or over the mix of all classes known at some load."""
    base, visited, curve = cells.baseline_of(arm), _visited(cells), []
    strata = {
        load: Strata.of(*(of_class(times_of(cells, side, load), class_) for side in (base, arm)))
        for load in cells.plan.loads
    }
    known = {name for own in strata.values() for name in own.inside}
    for load, own in strata.items():
        fails = any(row for side in (base, arm) for row in _failures(cells, side, load.size))
        if fails or not known or set(own.inside) != known:
            curve.append(Cell(load.size, None, {}, visited[load], failing=fails))
        else:
            how = {"held": cells.held, "drawn": load.rate_per_s is not None}
            curve.append(Cell(load.size, own.log_ratio, own.moves(), visited[load], **how))
    return curve


def _visited(cells: Cells) -> dict[Load, int]:
    rounds: dict[Load, set[int]] = {load: set() for load in cells.plan.loads}
    for (_, place), records in cells.requests.items():
        rounds[place.load] |= {record.round for record in records}
    return {load: max(len(own), 1) for load, own in rounds.items()}


def _range(plan: Plan) -> Range:
    if plan.search:
        return Range(low=plan.search.low, high=plan.search.high, whole=plan.search.by == "concurrency")
    loads = [load.size for load in plan.loads]
    return Range(low=min(loads), high=max(loads), whole=not plan.rate)


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


def _objective_by_load(cells: Cells, arm: PlannedArm) -> list[ObjectiveAt]:
    """Whether an arm meets the objective, by load."""
    signs, visited = {"met": 1, "missed": -1, "cannot tell": 0}, _visited(cells)
    every = Counter(prompt.class_ for prompt in cells.plan.prompts)
    rows = []
    for load in cells.plan.loads:
        sign, places = signs[outcome(cells, arm, load)["outcome"]], (Place(name, load) for name in every)
        asked = [len({record.prompt_id for record in cells.of(arm, place)}) for place in places]
        # Another cell brings prompts where fewer were asked than the objective needs, and the plan has more.
        more = counted(asked) < min(prompts_needed(cells.plan.objective), counted([*every.values()])) - 0.5
        rows.append(ObjectiveAt(load.size, sign, not sign and more, visited[load]))
    return rows


def searched(raw: RawRun) -> dict[str, Any] | None:
    """`search` of a summary: its cost, why it ended, the results of each arm within the objective, and drift; None for other runs. `late` and
    `once` are loads without advice of their own: the client was late, or an arm had only one block for a class, so the order of the arms
    could not cancel drift."""
    plan = raw.plan
    if plan.search is None:
        return None
    cells, (minutes, usd) = _in_whole_starts(cells_of(raw)), _spent(raw)
    blocks = {(arm, place): own for (arm, place), own in cells.blocks.items() if own}
    late = {at.load.size for (_, at), own in blocks.items() if max(b.client_lag_s for b in own) > LATE_S}
    once = {place.load.size for (_, place), own in blocks.items() if len(own) == 1}
    return {
        "low": plan.search.low,
        "high": plan.search.high,
        "by": plan.search.by,
        "budget": plan.search.budget,
        "cells": _visits(raw).total(),
        "minutes": minutes,
        "usd": usd,
        "budget_spent": _over_budget(raw) and _unsettled(raw) is not None,
        "objective": plan.to_dict().get("objective") or None,
        "arms": [_best(cells, arm) for arm in plan.arms],
        "drift": drift(raw),
        "bursts_from": None if raw.held else min(_bursts(cells), default=None),
        "late": sorted(late),
        "once": sorted(once),
    }


def next_cell(raw: RawRun) -> tuple[Load, int, int] | None:
    """The next cell of a search: its load and round, and the number of cells before it; None at the end.

    At the end the first cell is repeated, unless nothing was answered. A larger budget continues the search after that.
    """
    begun, done = _begun(raw), raw.ended
    for before, (load, round_) in enumerate(begun):
        blocks = measured_blocks(raw.plan.cell(load), round_)
        if not all(block.key in done for block in blocks):
            return load, round_, 0 if round_ == REPEATED else before
    first = [(load, round_) for load, round_ in begun if round_ != REPEATED]
    if not (first and _over_budget(raw)) and (wanted := _unsettled(raw)):
        return wanted, 1 + _visits(raw)[wanted], len(first)
    if raw.unanswered or not first:
        return None
    repeated = first[0][0], REPEATED
    return None if repeated in begun else (first[0][0], REPEATED, 0)


def _begun(raw: RawRun) -> list[tuple[Load, int]]:
    asked = (record for record in raw.requests if record.phase in ("ramp", "measured"))
    return list(dict.fromkeys((record.load, record.round) for record in asked))


def _visits(raw: RawRun) -> Counter[Load]:
    """The number of cells by load, without the repetition of the first cell."""
    return Counter(load for load, round_ in _begun(raw) if round_ != REPEATED)


def search_status(raw: RawRun) -> str:
    """The status of a search in words: its cost and its results so far."""
    search, (minutes, usd) = raw.plan.search, _spent(raw)
    assert search
    dollars = "" if usd is None else f", ${usd:.2f}"
    known = [f"{row['treatment']} {in_words(row)}" for row in crossovers(raw) if row["class"] is None]
    used = (
        f"{_visits(raw).total()} cells, {minutes:.1f} minutes of loading{dollars} (at most {search.budget})"
    )
    return f"search: {'; '.join([used, *known])}"


def _spent(raw: RawRun) -> tuple[float, float | None]:
    """Minutes of loading, and the cost of all arms in that time (arms also cost while they wait); None if a price is unknown."""
    blocks = (block for block in raw.blocks if block.round != REPEATED)
    hours = sum(block.duration_s for block in blocks) / 3600
    prices = [price for price in raw.plan.prices.values() if price is not None]
    return hours * 60, hours * math.fsum(prices) if len(prices) == len(raw.plan.arms) else None


def _over_budget(raw: RawRun) -> bool:
    """Whether the budget is used."""
    search, (minutes, usd) = raw.plan.search, _spent(raw)
    assert search
    limits = (
        (_visits(raw).total(), search.cells),
        (minutes, search.minutes),
        (usd, search.usd),
    )
    return any(limit is not None and value is not None and value >= limit for value, limit in limits)


def _unsettled(raw: RawRun) -> Load | None:
    """The load that the search would measure next without a budget."""
    cells, search = _in_whole_starts(cells_of(raw)), raw.plan.search
    assert search
    within = _range(cells.plan)
    load = load_search.next_load([_speed_up(cells, arm, None) for arm in cells.treatments], within)
    for arm in cells.plan.arms if cells.plan.objective else ():
        load = load or load_search.next_of_objective(_objective_by_load(cells, arm), within)
    return None if load is None else search.load(load)


def _best(cells: Cells, arm: PlannedArm) -> dict[str, Any]:
    """The results of an arm: up to which load it meets the objective, what it delivers at each measured load, and at which of the loads that
    meet the objective its tokens are cheapest."""
    points = []
    for load in cells.plan.loads:
        if point := _point(cells, arm, load):
            known = outcome(cells, arm, load)
            slowest_s = [row["percentile_s"] for row in known["limits"] if row["metric"] == TPOT.name]
            met = known["outcome"] if known["limits"] else None
            within = {"objective": met, "within": met in ("met", None)}
            points.append(point | within | {"tpot_percentile_s": next(iter(slowest_s), None)})
    upto, sizes = None, [load.size for load in cells.plan.loads]
    if cells.plan.objective:
        failing = min((size for size in sizes if any(_failures(cells, arm, size))), default=None)
        upto = asdict(
            load_search.edge_of_objective(_objective_by_load(cells, arm), _range(cells.plan), failing)
        )
    able = [point for point in points if point["within"]]
    cheapest = max(able, key=lambda point: point["output_tokens_per_s"][0], default=None)
    return {"arm": arm.name, "objective": upto, "points": points, "cheapest": cheapest}


def _point(cells: Cells, arm: PlannedArm, load: Load) -> dict[str, Any] | None:
    """The throughput and cost of an arm at a load, with intervals; None if too little was answered.

    Tokens per second are the tokens divided by the seconds of the answers (a ratio of two sums), multiplied by the answers in flight. If
    the interval reaches 0, it is unknown: there are too few blocks or starts, and they differ too much. Times are means of
    logarithms over classes with equal weights.
    """
    records, maximum = cells.asked(arm, load), arm.max_tokens_per_step
    queues = (Place(class_, load) for class_ in cells.plan.loaded_with)
    delivered = throughput(arm, records, [block for place in queues for block in cells.blocks_of(arm, place)])
    logs = [list(logs_at(cells, arm, Place(class_, load)).values()) for class_ in cells.plan.classes]
    parts = [stats.mean_of(own) for own in logs if len({source.prompt for source, _ in own}) >= MIN_PROMPTS]
    failing = any(_failures(cells, arm, load.size))
    if not parts or not delivered or not delivered["output_tokens_per_s"] or failing:
        return None
    sums = [
        (cells.source(record), 0 if record.error else output_tokens(record, maximum) or 0, record.e2e_s)
        for record in records
        if record.e2e_s
    ]
    tokens, seconds = math.fsum(count for _, count, _ in sums), math.fsum(took_s for *_, took_s in sums)
    pace, moves = defaultdict[Source, float](float), defaultdict[Source, float](float)
    for source, count, took_s in sums:
        pace[source] += (count - took_s * tokens / seconds) / tokens
    for _, own in parts:
        for source, move in own.items():
            moves[source] += move / len(parts)
    share = stats.estimate(1.0, pace, n=len(sums))
    tpot = stats.estimate(mean([middle for middle, _ in parts]), moves, n=len(records))
    per_s, usd = delivered["output_tokens_per_s"], cost(arm, delivered)
    million = usd and usd["usd_per_million_output_tokens"]
    low, high = (share.low, share.high) if (share.low or 0.0) > 0 else (None, None)
    ends = [million, high and million / high, low and million / low] if million else None
    return {
        "load": load.size,
        "tpot_s": [math.exp(value or 0.0) for value in (tpot.mean, tpot.low, tpot.high)],
        "output_tokens_per_s": [per_s, low and per_s * low, high and per_s * high],
        "usd_per_million_output_tokens": ends,
    }


def _bursts(cells: Cells) -> Iterator[float]:
    """Rates at which a set of arrivals ends before a queue has built up."""
    for load in cells.plan.loads:
        answered = (r for arm in cells.plan.arms for r in cells.asked(arm, load) if r.error is None)
        took_s = [record.e2e_s or 0.0 for record in answered]
        arriving_s = max(set_sizes(cells.plan.cell(load), load)) / (load.rate_per_s or math.inf)
        if load.rate_per_s and took_s and arriving_s < BURST_ANSWERS * mean(took_s):
            yield load.rate_per_s
