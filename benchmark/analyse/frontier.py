"""Up to which load each treatment pays, and the cheapest way to serve within an objective: from the cells of a run.

`crossovers` come from any run with several loads. A run whose plan has a `search` chooses its loads by the same curves:
the mix's speed-up of each treatment, then how far each arm is from its objective. All of it is computed from the journal
alone, so that an interrupted search goes on as if nothing had happened.

An arm holds an objective at a load where the geometric mean over its answers, each class alike, is within the limit.
A cell in which more than a tenth of an arm's requests failed counts as not answered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmark.analyse.cells import Cells, Place, cost, sort_out, throughput
from benchmark.analyse.comparison import MIN_PROMPTS, said
from benchmark.analyse.load_words import FEW_ANSWERS, in_words
from benchmark.analyse.mix import Strata, Times, logs_of, of_class, times_of
from benchmark.analyse.search import Cell, Edge, Range, edge, next_load
from benchmark.analyse.stats import clustered_mean, summed, weighted_mean
from benchmark.analyse.values import output_tokens
from benchmark.measure.journal import RawRun
from benchmark.measure.records import LATE_S, REPEATED, RequestRecord
from benchmark.measure.schedule import measured_turns, set_sizes
from benchmark.metrics import TPOT
from benchmark.plan import MIXED, Arm, Load, Plan

_MOST_FAILED = 0.1


def crossovers(raw: RawRun) -> list[dict[str, Any]]:
    """By class and (class null) for the mix, up to which load each treatment has the lower time per token. Two listed loads
    cannot tell where between them."""
    cells = sort_out(_chosen_by(raw))
    if len(cells.plan.loads) < (1 if raw.plan.search else 3):
        return []
    within, drawn, found = _range(cells.plan), _drawn(cells), []
    for arm in cells.treatments:
        for class_ in (None, *cells.plan.classes):
            curve = _speed_up(cells, drawn, arm, class_)
            if all(one.value is None and not (raw.plan.search and one.failing) for one in curve):
                continue  # too few prompts, or an acceptance that was made up: nothing to say about loads
            known = edge(curve, within)
            names = {"class": class_, "baseline": cells.baseline_of(arm).name, "treatment": arm.name}
            failed = list(_failures(cells, (cells.baseline_of(arm), arm), known.failing))
            by = "rate" if cells.plan.rate else "concurrency"
            found.append(names | asdict(known) | {"failed": failed, "by": by})
    return found


def _failures(cells: Cells, arms: Sequence[Arm], size: float | None) -> Iterator[dict[str, Any]]:
    """Of the arms that failed at a load, how many requests, and with which errors."""
    for load in (load for load in cells.plan.loads if _size(load) == size):
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
    cells, (minutes, usd) = sort_out(_chosen_by(raw)), spent(raw)
    drawn = _drawn(cells)
    return {
        "low": plan.search.low,
        "high": plan.search.high,
        "by": plan.search.by,
        "budget": plan.search.budget,
        "cells": _visits(raw).total(),
        "minutes": minutes,
        "usd": usd,
        "budget_spent": _over_budget(raw) and _unsettled(raw) is not None,
        "objective": dict(plan.slo) if plan.slo else None,
        "arms": [_best(cells, drawn, arm) for arm in plan.arms],
        "drift": list(_drift(raw)),
        "bursts_from": min(_bursts(cells), default=None),
        **_doubtful(raw),
    }


def _doubtful(raw: RawRun) -> dict[str, list[float]]:
    """Loads that are not enough for advice by themselves: the client was late, or an arm had one block for a class, so that no
    order of the arms could cancel a drift."""
    late: set[float] = set()
    blocks: Counter[tuple[float, str, str]] = Counter()
    for one in _chosen_by(raw).blocks:
        size = _size(Load(concurrency=one.concurrency, rate_per_s=one.rate_per_s))
        blocks[size, one.arm, one.class_] += 1
        late |= {size} if one.client_lag_s > LATE_S else set()
    return {"late": sorted(late), "once": sorted({size for (size, *_), n in blocks.items() if n == 1})}


def next_cell(raw: RawRun) -> tuple[Load, int, int, int] | None:
    """The load and round of the cell that a search measures next, the cells before it, and under which start of the servers: the
    first cell's repetition is the last one, in the order of the first, unless nothing was answered; another budget may go on
    after it. None at its end."""
    cells, done = list(raw.visits), {block.key for block in raw.blocks}
    for before, (load, round_) in enumerate(cells):
        turns = measured_turns(raw.plan.cell(load), round_)
        if not all(block.key in done for turn in turns for block in turn):
            return load, round_, 0 if round_ == REPEATED else before, 1
    # A larger budget goes on behind the repetition, which is not made twice.
    wanted = None if cells and _over_budget(raw) else _unsettled(raw)
    if wanted:
        return wanted, 1 + _visits(raw)[wanted], _visits(raw).total(), 1
    repeated = (cells[0][0], REPEATED, 0, 1)
    return None if raw.unanswered or repeated[:2] in cells else repeated


def _visits(raw: RawRun) -> Counter[Load]:
    """Cells by load, without the first one's repetition."""
    return Counter(load for load, round_ in raw.visits if round_ != REPEATED)


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


def spent(raw: RawRun) -> tuple[float, float | None]:
    """Minutes of loading, and what all arms cost in that time where all prices are known: one waits while another is loaded."""
    hours = raw.plan.loading_s(block.duration_s for block in raw.blocks if block.round != REPEATED) / 3600
    prices = [price for price in raw.plan.prices.values() if price is not None]
    return hours * 60, hours * math.fsum(prices) if len(prices) == len(raw.plan.arms) else None


def _chosen_by(raw: RawRun) -> RawRun:
    """Without the repetition of a search's first cell, which tells of drift alone."""
    if raw.plan.search is None:
        return raw
    return replace(
        raw,
        requests=tuple(one for one in raw.requests if one.round != REPEATED),
        blocks=tuple(one for one in raw.blocks if one.round != REPEATED),
    )


def _range(plan: Plan) -> Range:
    if plan.search:
        return Range(low=plan.search.low, high=plan.search.high, whole=plan.search.by == "concurrency")
    loads = [_size(load) for load in plan.loads]
    return Range(low=min(loads), high=max(loads), whole=not plan.rate)


def _size(load: Load) -> float:
    return float(load.rate_per_s or load.concurrency or 0)


def _over_budget(raw: RawRun) -> bool:
    search, (minutes, usd) = raw.plan.search, spent(raw)
    assert search
    limits = ((_visits(raw).total(), search.cells), (minutes, search.minutes), (usd, search.usd))
    return any(limit is not None and value is not None and value >= limit for value, limit in limits)


def _unsettled(raw: RawRun) -> Load | None:
    """The load that the search would measure next, whatever its budget."""
    cells, search = sort_out(_chosen_by(raw)), raw.plan.search
    assert search
    drawn = _drawn(cells)
    curves = [_speed_up(cells, drawn, arm, None) for arm in cells.treatments]
    curves += [_margin(cells, drawn, arm, cells.plan.slo) for arm in cells.plan.arms if cells.plan.slo]
    load = next_load(curves, _range(cells.plan))
    return None if load is None else search.load(load)


def _fails(cells: Cells, arm: Arm, load: Load) -> bool:
    records = _asked(cells, arm, load)
    return sum(one.error is not None for one in records) > _MOST_FAILED * len(records)


def _asked(cells: Cells, arm: Arm, load: Load) -> list[RequestRecord]:
    return [one for class_ in cells.plan.classes for one in cells.of(arm, Place(class_, load))]


@dataclass(frozen=True)
class Drawn:
    """How often a load was measured, and which of its arrivals were drawn together."""

    visits: int
    of_pair: Mapping[str, str]
    """At a rate, by pair, the set of arrivals that it belongs to."""

    one_queue: bool
    """Whether the classes of a set wait together, as those of a replay do."""

    def by_set(self, times: Times) -> Times:
        """With the set of arrivals that a pair belongs to in place of its prompt."""
        return {
            class_: {pair: (self.of_pair.get(pair, ""), log) for pair, (_, log) in own.items()}
            for class_, own in times.items()
        }

    def draws(self, moves: Mapping[str, Mapping[str, float]]) -> Mapping[str, Mapping[str, float]] | None:
        """`moves` by class and set as units of their own; None where nothing was drawn."""
        if not self.of_pair:
            return None
        if not self.one_queue:
            return moves
        sets = dict.fromkeys(name for own in moves.values() for name in own)
        return {MIXED: {name: math.fsum(own.get(name, 0.0) for own in moves.values()) for name in sets}}


def _drawn(cells: Cells) -> dict[Load, Drawn]:
    rounds: dict[Load, set[int]] = {load: set() for load in cells.plan.loads}
    for (_, place), records in cells.requests.items():
        rounds[place.load] |= {one.round for one in records}
    found = {}
    for load, visited in rounds.items():
        of_pair = {
            one.pair_id: f"{one.round}/{one.block}"
            for (_, place), records in cells.requests.items()
            for one in records
            if load.rate_per_s and place.load == load
        }
        found[load] = Drawn(max(len(visited), 1), of_pair, MIXED in cells.plan.loaded_with)
    return found


def _speed_up(cells: Cells, drawn: Mapping[Load, Drawn], arm: Arm, class_: str | None) -> list[Cell]:
    """The curve of an arm's log speed-up over its baseline, in one class or over the mix of all that are known at some load."""
    base = cells.baseline_of(arm)
    times = {
        load: [of_class(times_of(cells, one, load), class_) for one in (base, arm)]
        for load in cells.plan.loads
    }
    strata = {load: Strata.of(*of_arms) for load, of_arms in times.items()}
    known, found = {name for one in strata.values() for name in one.inside}, []
    for load, one in strata.items():
        fails, visits = any(_fails(cells, end, load) for end in (base, arm)), drawn[load].visits
        if fails or not known or set(one.inside) != known:
            found.append(Cell(_size(load), None, {}, visits, failing=fails))
            continue
        before, after = one.total_s
        moves = {name: _moves(one.moved(name)) for name in one.inside}
        by_set = replace(Strata.of(*map(drawn[load].by_set, times[load])), inside=one.inside)
        draws = drawn[load].draws({name: _moves(by_set.moved(name)) for name in one.inside})
        found.append(Cell(_size(load), math.log(before / after), moves, visits, draws=draws))
    return found


def _margin(
    cells: Cells, drawn: Mapping[Load, Drawn], arm: Arm, objective: Mapping[str, float] | None
) -> list[Cell]:
    """The curve of how far an arm is within its objective: the log of limit over mean, of the limit that is nearest; of all
    classes that are known at some load, each alike."""
    logs = {
        (name, load): _logs(cells, arm, load, name) for name in objective or {} for load in cells.plan.loads
    }
    known, found = {class_ for own in logs.values() for class_ in own}, []
    for load in cells.plan.loads:
        margins = [(_below(logs[name, load], limit), name) for name, limit in (objective or {}).items()]
        fails, visits = _fails(cells, arm, load), drawn[load].visits
        if fails or not known or any(set(moves) != known for (_, moves), _ in margins):
            found.append(Cell(_size(load), None, {}, visits, failing=fails))
            continue
        (value, moves), nearest = min(margins, key=lambda one: one[0][0])
        draws = drawn[load].draws(_below(drawn[load].by_set(logs[nearest, load]), 1.0)[1])
        found.append(Cell(_size(load), value, moves, visits, draws=draws))
    return found


def _below(times: Times, limit: float) -> tuple[float, dict[str, dict[str, float]]]:
    """How far the mean over classes is below the log of a limit, and by how much each prompt moves that."""
    logs = _by_prompt(times)
    share = 1 / max(len(logs), 1)
    mean = share * math.fsum(clustered_mean(own).mean for own in logs.values())
    moves = {class_: {p: -share * m for p, m in _moves(own).items()} for class_, own in logs.items()}
    return math.log(limit) - mean, moves


def _logs(cells: Cells, arm: Arm, load: Load, name: str) -> Times:
    """Logs of a metric over an arm's answers; classes with too few prompts are left out."""
    found = logs_of(cells, arm, load, name)
    return {class_: own for class_, own in found.items() if len({p for p, _ in own.values()}) >= MIN_PROMPTS}


def _by_prompt(times: Times) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for class_, own in times.items():
        for prompt, log in own.values():
            found.setdefault(class_, {}).setdefault(prompt, []).append(log)
    return found


def _moves(by_prompt: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By how much each prompt moves the mean over all values."""
    count = sum(map(len, by_prompt.values()))
    mean = math.fsum(value for values in by_prompt.values() for value in values) / count
    return {
        prompt: math.fsum(value - mean for value in values) / count for prompt, values in by_prompt.items()
    }


def _best(cells: Cells, drawn: Mapping[Load, Drawn], arm: Arm) -> dict[str, Any]:
    """Up to which load an arm keeps the objective, what it delivers at each measured load, and where among those that keep
    the objective its tokens are cheapest."""
    objective = cells.plan.slo
    margins = _margin(cells, drawn, arm, objective) if objective else []
    points = []
    for index, load in enumerate(cells.plan.loads):
        if point := _point(cells, arm, load):
            point["within"] = not objective or (margins[index].value or -1.0) > 0
            points.append(point)
    known: Edge | None = edge(margins, _range(cells.plan)) if objective else None
    able = [point for point in points if point["within"]]
    return {
        "arm": arm.name,
        "objective": asdict(known) if known else None,
        "points": points,
        "cheapest": max(able, key=lambda one: one["output_tokens_per_s"][0], default=None),
    }


def _point(cells: Cells, arm: Arm, load: Load) -> dict[str, Any] | None:
    """What an arm delivers at a load, with intervals over prompts; None where too little was answered.

    Tokens per second are tokens over seconds of answers, a ratio of two sums over prompts, times the answers under way.
    """
    places = [Place(class_, load) for class_ in cells.plan.classes]
    records = [one for place in places for one in cells.of(arm, place)]
    delivered = throughput(arm, records, [one for place in places for one in cells.blocks_of(arm, place)])
    logs = _by_prompt(_logs(cells, arm, load, TPOT.name))
    if not logs or not delivered or not delivered["output_tokens_per_s"] or _fails(cells, arm, load):
        return None
    of_prompt: dict[tuple[str, str], list[float]] = {}
    for one in records:
        sums = of_prompt.setdefault((one.class_, one.prompt_id), [0.0, 0.0])
        sums[0] += (output_tokens(one, arm.max_tokens_per_step) or 0) if one.error is None else 0
        sums[1] += one.e2e_s or 0.0
    pace = weighted_mean([(t / s, s) for t, s in of_prompt.values() if s], n=len(records))
    parts, share = [clustered_mean(own) for own in logs.values()], 1 / len(logs)
    tpot = summed(
        share * math.fsum(part.mean for part in parts),
        [replace(part, error=(part.error or 0.0) * share) for part in parts],
    )
    per_s, usd = delivered["output_tokens_per_s"], cost(arm, delivered)
    low, high = (max(end or 0.0, 0.01 * pace.mean) / pace.mean for end in (pace.low, pace.high))
    million = usd and usd["usd_per_million_output_tokens"]
    return {
        "load": _size(load),
        "tpot_s": [math.exp(value or 0.0) for value in (tpot.mean, tpot.low, tpot.high)],
        "output_tokens_per_s": [per_s, per_s * low, per_s * high],
        "usd_per_million_output_tokens": million and [million, million / high, million / low],
    }


def _bursts(cells: Cells) -> Iterator[float]:
    """Rates at which a set of arrivals is over before a queue has built up."""
    for load in cells.plan.loads:
        places = [Place(class_, load) for class_ in cells.plan.classes]
        took_s = [r.e2e_s or 0.0 for arm in cells.plan.arms for at in places for r in cells.answered(arm, at)]
        arriving_s = max(set_sizes(cells.plan.cell(load), load)) / (load.rate_per_s or math.inf)
        if load.rate_per_s and took_s and arriving_s < FEW_ANSWERS * math.fsum(took_s) / len(took_s):
            yield load.rate_per_s


def _drift(raw: RawRun) -> Iterator[dict[str, Any]]:
    """Each arm in the first cell against itself when that was repeated: above 1 it had become faster."""
    again = replace(raw, requests=tuple(one for one in raw.requests if one.round == REPEATED))
    if not again.requests or not raw.searched:
        return
    load, before, after = raw.searched[0], sort_out(_chosen_by(raw)), sort_out(again)
    for arm in raw.plan.arms:
        logs: dict[str, list[list[float]]] = {}
        for side, cells in enumerate((before, after)):
            for class_, own in times_of(cells, arm, load).items():
                for prompt, value in own.values():
                    logs.setdefault(f"{class_}/{prompt}", [[], []])[side].append(value)
        gains = {p: [math.fsum(a) / len(a) - math.fsum(b) / len(b)] for p, (a, b) in logs.items() if a and b}
        if gains:
            yield {"arm": arm.name, "metric": TPOT.name, **said(clustered_mean(gains))}
