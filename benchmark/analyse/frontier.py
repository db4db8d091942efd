"""Up to which load each treatment pays, and the cheapest way to serve within an objective: from the cells of a run.

`crossovers` come from any run with several loads. A run whose plan has a `search` chooses its loads by the same curves:
the mix's speed-up of each treatment, then whether each arm meets the objective. All of it is computed from the journal
alone, so that an interrupted search goes on as if nothing had happened.

Whether an arm meets the objective at a load is said in `benchmark.analyse.outcomes`. A cell in which more than a tenth of an arm's requests failed counts as not answered.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmark.analyse.cells import Cells, Place, cost, sort_out, throughput
from benchmark.analyse.comparison import MIN_PROMPTS, starts_differ
from benchmark.analyse.course import drift
from benchmark.analyse.curve import Cell
from benchmark.analyse.load_words import FEW_ANSWERS, in_words
from benchmark.analyse.mix import Strata, Times, logs_of, of_class, times_of
from benchmark.analyse.outcomes import more_would_tell, outcome
from benchmark.analyse.search import (
    Edge,
    Range,
    Standing,
    edge,
    edge_of_objective,
    next_load,
    next_of_objective,
)
from benchmark.analyse.sources import Source, estimate, mean_of
from benchmark.analyse.values import output_tokens
from benchmark.cell_size import search_cells
from benchmark.measure.journal import RawRun
from benchmark.measure.records import LATE_S, REPEATED, RequestRecord
from benchmark.measure.schedule import measured_turns, set_sizes
from benchmark.metrics import TPOT
from benchmark.plan import Arm, Load, Plan

_MOST_FAILED = 0.1


def crossovers(raw: RawRun) -> list[dict[str, Any]]:
    """By class and (class null) for the mix, up to which load each treatment has the lower time per token. Two listed loads
    cannot tell where between them."""
    cells = _in_whole_starts(sort_out(raw))
    if len(cells.plan.loads) < (1 if raw.plan.search else 3):
        return []
    within, found = _range(cells.plan), []
    for arm in cells.treatments:
        for class_ in (None, *cells.plan.classes)[not cells.mixes(arm) :]:
            curve = _speed_up(cells, arm, class_)
            if all(one.value is None and not (raw.plan.search and one.failing) for one in curve):
                continue  # too few prompts, or an acceptance that was made up: nothing to say about loads
            known = edge(curve, within)
            names = {"class": class_, "baseline": cells.baseline_of(arm).name, "treatment": arm.name}
            failed = list(_failures(cells, (cells.baseline_of(arm), arm), known.failing))
            more = {
                "failed": failed,
                "by": "rate" if cells.plan.rate else "concurrency",
                "one_start": _of_one_start(known, curve),
            }
            found.append(names | asdict(known) | more)
    return found


def _of_one_start(known: Edge, curve: Sequence[Cell]) -> bool:
    """Whether what a curve says is about the one start of the servers that was measured."""
    starts = {source.start for cell in curve for source in cell.moves}
    values = {cell.load: cell.value or 0.0 for cell in curve}
    near = any(sign and starts_differ(values[load]) for load, sign in known.signs)
    return len(starts) < 2 and (known.found == "crossing" or near)


def _in_whole_starts(cells: Cells) -> Cells:
    """Of several starts of the servers, those under which all loads were measured: in what others say, loads and starts are mixed
    up."""
    starts: dict[Load, set[int]] = {}
    for (_, place), records in cells.requests.items():
        starts.setdefault(place.load, set()).update(one.start for one in records)
    whole = set.intersection(*starts.values()) if starts else set()
    if not whole or set.union(*starts.values()) == whole:
        return cells
    requests = {key: [one for one in own if one.start in whole] for key, own in cells.requests.items()}
    return replace(cells, requests=requests)


def _failures(cells: Cells, arms: Sequence[Arm], size: float | None) -> Iterator[dict[str, Any]]:
    """Of the arms that failed at a load, how many requests, and with which errors."""
    for load in (load for load in cells.plan.loads if load.size == size):
        for arm in (arm for arm in arms if _fails(cells, arm, load)):
            asked = _asked(cells, arm, load)
            errors = Counter(one.error for one in asked if one.error is not None)
            names = [name for name, _ in errors.most_common()]
            yield {"arm": arm.name, "failed": errors.total(), "asked": len(asked), "errors": names}


def searched(raw: RawRun) -> dict[str, Any] | None:
    """What a search spent, why it ended, what each arm can do within the objective, and drift; None of other runs."""
    plan = raw.plan
    if plan.search is None:
        return None
    cells, (minutes, usd) = _in_whole_starts(sort_out(raw)), spent(raw)
    return {
        "low": plan.search.low,
        "high": plan.search.high,
        "by": plan.search.by,
        "budget": plan.search.budget,
        "cells": sum(round_ != REPEATED for _, round_, _ in _begun(raw)),
        "starts": plan.starts,
        "cells_a_start": _visits(raw).total(),
        "minutes": minutes,
        "usd": usd,
        "budget_spent": _over_budget(raw) and _unsettled(raw) is not None,
        "objective": plan.to_dict().get("objective") or None,
        "arms": [_best(cells, arm) for arm in plan.arms],
        "drift": drift(raw),
        "bursts_from": None if raw.held else min(_bursts(cells), default=None),
        **_doubtful(cells),
    }


def _doubtful(cells: Cells) -> dict[str, list[float]]:
    """Loads that are not enough for advice by themselves: the client was late, or an arm had one block for a class, so that no
    order of the arms could cancel a drift."""
    blocks = {(arm, place): own for (arm, place), own in cells.blocks.items() if own}
    late = {at.load.size for (_, at), own in blocks.items() if max(b.client_lag_s for b in own) > LATE_S}
    once = {place.load.size for (_, place), own in blocks.items() if len(own) == 1}
    return {"late": sorted(late), "once": sorted(once)}


def next_cell(raw: RawRun) -> tuple[Load, int, int, int] | None:
    """The load and round of the cell that a search measures next, the cells before it, and under which start of the servers; None
    at its end.

    The first start searches, with its part of the budget; the later ones measure the same cells in the same order. Last
    comes the first cell once more, in the order of the first, unless nothing was answered. A larger budget goes on after that, as
    long as there is one start: an earlier start does not come back.
    """
    begun, done = list(_begun(raw)), {block.key for block in raw.blocks}
    for before, (load, round_, start) in enumerate(begun):
        turns = measured_turns(raw.plan.cell(load), round_, start=start)
        if not all(block.key in done for turn in turns for block in turn):
            return load, round_, 0 if round_ == REPEATED else before, start
    first = [(load, round_) for load, round_, start in begun if start == 1 and round_ != REPEATED]
    searching = all(start == 1 for *_, start in begun) and not (first and _over_budget(raw))
    if searching and (wanted := _unsettled(raw)):
        return wanted, 1 + _visits(raw)[wanted], len(first), 1
    if raw.unanswered or not first:
        return None
    for start in range(2, raw.plan.starts + 1):
        for before, (load, round_) in enumerate(first):
            if (load, round_, start) not in begun:
                return load, round_, (start - 1) * len(first) + before, start
    repeated = first[0][0], REPEATED, raw.plan.starts
    return None if repeated in begun else (first[0][0], REPEATED, 0, raw.plan.starts)


def _begun(raw: RawRun) -> Iterator[tuple[Load, int, int]]:
    """Load, round and start of each cell that was begun, in their order."""
    yield from dict.fromkeys(
        (Load(concurrency=one.concurrency, rate_per_s=one.rate_per_s), one.round, one.start)
        for one in raw.requests
        if one.phase in ("ramp", "measured")
    )


def _visits(raw: RawRun) -> Counter[Load]:
    """Cells of a start by load, without the first one's repetition."""
    return Counter(load for load, round_, start in _begun(raw) if round_ != REPEATED and start == 1)


def standing(raw: RawRun) -> str:
    """Where a search stands: what it spent, and what it knows."""
    search, (minutes, usd) = raw.plan.search, spent(raw)
    assert search
    dollars = "" if usd is None else f", ${usd:.2f}"
    known = [f"{one['treatment']} {in_words(one)}" for one in crossovers(raw) if one["class"] is None]
    spent_ = (
        f"{_visits(raw).total()} cells, {minutes:.1f} minutes of loading{dollars} (at most {search.budget})"
    )
    return f"search: {'; '.join([spent_, *known])}"


def spent(raw: RawRun, *starts: int) -> tuple[float, float | None]:
    """Minutes of loading, under these starts or all, and what all arms cost in that time where all prices are known: one waits
    while another is loaded."""
    counted = (one for one in raw.blocks if one.round != REPEATED and (not starts or one.start in starts))
    hours = raw.plan.loading_s(block.duration_s for block in counted) / 3600
    prices = [price for price in raw.plan.prices.values() if price is not None]
    return hours * 60, hours * math.fsum(prices) if len(prices) == len(raw.plan.arms) else None


def _range(plan: Plan) -> Range:
    if plan.search:
        return Range(low=plan.search.low, high=plan.search.high, whole=plan.search.by == "concurrency")
    loads = [load.size for load in plan.loads]
    return Range(low=min(loads), high=max(loads), whole=not plan.rate)


def _over_budget(raw: RawRun) -> bool:
    """Whether the first start has used its part."""
    search, (minutes, usd), parts = raw.plan.search, spent(raw, 1), raw.plan.starts
    assert search
    limits = (
        (_visits(raw).total(), search_cells(search.cells, parts)),
        (minutes, search.minutes and search.minutes / parts),
        (usd, search.usd and search.usd / parts),
    )
    return any(limit is not None and value is not None and value >= limit for value, limit in limits)


def _unsettled(raw: RawRun) -> Load | None:
    """The load that the search would measure next, whatever its budget."""
    cells, search = _in_whole_starts(sort_out(raw)), raw.plan.search
    assert search
    curves = [_speed_up(cells, arm, None) for arm in cells.treatments]
    within = _range(cells.plan)
    load = next_load(curves, within)
    for arm in cells.plan.arms if cells.plan.objective else ():
        load = load or next_of_objective(_standings(cells, arm), within)
    return None if load is None else search.load(load)


def _standings(cells: Cells, arm: Arm) -> list[Standing]:
    """Whether an arm meets the objective, by load."""
    signs, visited = {"met": 1, "missed": -1, "cannot tell": 0}, _visited(cells)
    return [
        Standing(load.size, sign, not sign and more_would_tell(cells, arm, load), visited[load])
        for load in cells.plan.loads
        for sign in [signs[outcome(cells, arm, load)["outcome"]]]
    ]


def _fails(cells: Cells, arm: Arm, load: Load) -> bool:
    records = _asked(cells, arm, load)
    return sum(one.error is not None for one in records) > _MOST_FAILED * len(records)


def _asked(cells: Cells, arm: Arm, load: Load) -> list[RequestRecord]:
    return [one for class_ in cells.plan.classes for one in cells.of(arm, Place(class_, load))]


def _visited(cells: Cells) -> dict[Load, int]:
    """How often each load was measured."""
    rounds: dict[Load, set[int]] = {load: set() for load in cells.plan.loads}
    for (_, place), records in cells.requests.items():
        rounds[place.load] |= {one.round for one in records}
    return {load: max(len(own), 1) for load, own in rounds.items()}


def _speed_up(cells: Cells, arm: Arm, class_: str | None) -> list[Cell]:
    """The curve of an arm's log speed-up over its baseline, in one class or over the mix of all that are known at some load."""
    base, visited = cells.baseline_of(arm), _visited(cells)
    strata = {
        load: Strata.of(*(of_class(times_of(cells, one, load), class_) for one in (base, arm)))
        for load in cells.plan.loads
    }
    known, found = {name for one in strata.values() for name in one.inside}, []
    for load, one in strata.items():
        size, visits, fails = load.size, visited[load], any(_fails(cells, end, load) for end in (base, arm))
        if fails or not known or set(one.inside) != known:
            found.append(Cell(size, None, {}, visits, failing=fails))
            continue
        drawn = load.rate_per_s is not None
        found.append(Cell(size, one.log_ratio, one.moves(), visits, held=cells.held, drawn=drawn))
    return found


def _over_classes(times: Times) -> tuple[float, dict[Source, float]]:
    """The mean over classes, each alike, of logs of which none is empty, and what moves it."""
    parts = [mean_of(list(own.values())) for own in times.values()]
    moves: defaultdict[Source, float] = defaultdict(float)
    for _, of_class_ in parts:
        for source, move in of_class_.items():
            moves[source] += move / len(parts)
    return math.fsum(mean for mean, _ in parts) / len(parts), dict(moves)


def _logs(cells: Cells, arm: Arm, load: Load, name: str) -> Times:
    """Logs of a metric over an arm's answers; classes with too few prompts are left out."""
    found = logs_of(cells, arm, load, name)
    prompts = {class_: {source.prompt for source, _ in own.values()} for class_, own in found.items()}
    return {class_: own for class_, own in found.items() if len(prompts[class_]) >= MIN_PROMPTS}


def _best(cells: Cells, arm: Arm) -> dict[str, Any]:
    """Up to which load an arm meets the objective, what it delivers at each measured load, and where among those that meet it
    its tokens are cheapest."""
    points = []
    for load in cells.plan.loads:
        if point := _point(cells, arm, load):
            told = outcome(cells, arm, load)
            limits = (one for one in told["limits"] if one["metric"] == TPOT.name)
            slowest_s = next((one["percentile_s"] for one in limits), None)
            met = told["outcome"] if told["limits"] else None
            points.append(
                point | {"objective": met, "within": met in ("met", None), "tpot_percentile_s": slowest_s}
            )
    able = [point for point in points if point["within"]]
    return {
        "arm": arm.name,
        "objective": asdict(_kept_up_to(cells, arm)) if cells.plan.objective else None,
        "points": points,
        "cheapest": max(able, key=lambda one: one["output_tokens_per_s"][0], default=None),
    }


def _kept_up_to(cells: Cells, arm: Arm) -> Edge:
    failing = min((load.size for load in cells.plan.loads if _fails(cells, arm, load)), default=None)
    return edge_of_objective(_standings(cells, arm), _range(cells.plan), failing)


def _point(cells: Cells, arm: Arm, load: Load) -> dict[str, Any] | None:
    """What an arm delivers at a load, with intervals; None where too little was answered.

    Tokens per second are tokens over seconds of answers, a ratio of two sums, times the answers under way. Where their interval
    reaches 0, too few blocks or starts disagree too much to know it.
    """
    places = [Place(class_, load) for class_ in cells.plan.classes]
    records = [one for place in places for one in cells.of(arm, place)]
    loaded_with = (Place(class_, load) for class_ in cells.plan.loaded_with)
    delivered = throughput(arm, records, [one for at in loaded_with for one in cells.blocks_of(arm, at)])
    times = _logs(cells, arm, load, TPOT.name)
    if not times or not delivered or not delivered["output_tokens_per_s"] or _fails(cells, arm, load):
        return None
    sums = [(cells.source(one), _answered_tokens(arm, one), one.e2e_s or 0.0) for one in records if one.e2e_s]
    tokens, seconds = (math.fsum(column) for column in list(zip(*sums, strict=True))[1:])
    pace: defaultdict[Source, float] = defaultdict(float)
    for source, count, took_s in sums:
        pace[source] += (count - took_s * tokens / seconds) / tokens
    share = estimate(1.0, pace, n=len(sums))
    mean, moves = _over_classes(times)
    tpot = estimate(mean, moves, n=len(records))
    per_s, usd = delivered["output_tokens_per_s"], cost(arm, delivered)
    million = usd and usd["usd_per_million_output_tokens"]
    low, high = (share.low, share.high) if (share.low or 0.0) > 0 else (None, None)
    return {
        "load": load.size,
        "tpot_s": [math.exp(value or 0.0) for value in (tpot.mean, tpot.low, tpot.high)],
        "output_tokens_per_s": [per_s, low and per_s * low, high and per_s * high],
        "usd_per_million_output_tokens": million
        and [million, high and million / high, low and million / low],
    }


def _answered_tokens(arm: Arm, record: RequestRecord) -> int:
    return (output_tokens(record, arm.max_tokens_per_step) or 0) if record.error is None else 0


def _bursts(cells: Cells) -> Iterator[float]:
    """Rates at which a set of arrivals is over before a queue has built up."""
    for load in cells.plan.loads:
        places = [Place(class_, load) for class_ in cells.plan.classes]
        took_s = [r.e2e_s or 0.0 for arm in cells.plan.arms for at in places for r in cells.answered(arm, at)]
        arriving_s = max(set_sizes(cells.plan.cell(load), load)) / (load.rate_per_s or math.inf)
        if load.rate_per_s and took_s and arriving_s < FEW_ANSWERS * math.fsum(took_s) / len(took_s):
            yield load.rate_per_s
