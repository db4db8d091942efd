"""Evidence from the conditions of a run: a steady load, a client in time, and the same servers from begin to end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.delivered import throughput, token_source
from trnspec.benchmark.analyse.result import (
    Comparison,
    Course,
    Evidence,
    caution,
    not_checked,
    passed,
    withheld,
)
from trnspec.benchmark.analyse.result_parts import EngineDifferences
from trnspec.benchmark.analyse.speed_up import STARTS_DIFFER, starts_differ
from trnspec.benchmark.measure.raw_run import RawRun, extent
from trnspec.benchmark.measure.records import LATE_S
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import MIXED, Plan
from trnspec.core.words import count, listed

LOAD, CLIENT, MODELS, SERVERS = "steady load", "client delay", "model names", "restarts and gaps"
DRIFT, ONE_START, ENGINES = "drift", "effect of a restart", "engine settings"
CACHE, RECORDS, MEMORY = "prefix cache", "settings and records", "room for context"
_MIN_ANSWERED_SHARE = 0.95
"""An arm that answers a smaller share of the arriving requests does not keep up."""
_CACHED_APART = 0.05
"""Shares of prompt tokens from the cache that differ by more make one arm's first token come earlier."""
_FEW = 0.05
"""The largest share of an arm's answers that may come from another model."""
_LESS_ROOM = 0.05
_MAX_NAMES = 4


def is_aa(plan: Plan) -> bool:
    """Whether arms share an address (A/A), so that their difference is only noise."""
    return len({arm.url for arm in plan.arms}) < len(plan.arms)


def load(cells: RequestsByCell) -> Iterator[Evidence]:
    """The load was held, and each arm kept up with its rate."""
    raw, plan = cells.raw, cells.plan
    low, high = STARTS_DIFFER
    shared = "; all classes shared one load, so throughput and cost are one number for all of them"
    more = shared * (MIXED in plan.loaded_with)
    if not raw.held:
        says = f"the load was not held while it was measured, so a ratio from {low:.2f} to {high:.2f} has no verdict{more}"
        yield caution(check=LOAD, says=says, remedy="measure again with this version")
        return
    yield passed(check=LOAD, says=f"the load was held while it was measured{more}")
    slow: dict[tuple[str, float], float] = {}
    for place, arm in product(cells.places, plan.arms):
        if rate := place.load.rate_per_s:
            known = throughput(cells.loaded(arm, place), cells.blocks_of(arm, place))
            if known and known["requests_per_s"] < _MIN_ANSWERED_SHARE * rate:
                slow[arm.name, rate] = min(known["requests_per_s"], slow.get((arm.name, rate), math.inf))
    for (name, rate), per_s in slow.items():
        says = f"{name} answered {per_s:.3g} of {rate:g} requests/s, so its queue grew for as long as the load lasted"
        yield caution(check=LOAD, arm=name, says=says, remedy="choose a lower --rate")


def models(cells: RequestsByCell) -> Iterator[Evidence]:
    """The streams of an arm name several models, as those of a gateway that falls back to another one.

    One name proves nothing, so no row says "fine": LiteLLM's streams may name the model that was asked for after a fallback
    (BerriAI/litellm, issues 31722 and 28241).
    """
    remedy = "call the server itself, or turn the fallback off"
    for arm in cells.plan.arms:
        by_name = Counter(
            one.model for own in cells.of_arm(arm.name) for one in own.answered.answers if one.model
        )
        if len(by_name) > 1:
            (usual, number), *others = by_name.most_common()
            says = f"{listed([f'{n} answers are of {name}' for name, n in others])}, {number} of {usual}"
            row = withheld if 1 - number / by_name.total() > _FEW else caution
            yield row(check=MODELS, arm=arm.name, says=says, remedy=remedy)


def client(cells: RequestsByCell) -> Iterator[Evidence]:
    """The delay of the client in each block."""
    lags_s = [block.client_lag_s for block in cells.raw.blocks]
    late_s = [lag_s for lag_s in lags_s if lag_s > LATE_S]
    if late_s:
        says = f"the client was up to {max(late_s) * 1000:.0f} ms late in {len(late_s)} of {len(lags_s)} blocks: times may be too long by that"
        yield caution(check=CLIENT, says=says, remedy="give it more CPU, or send fewer concurrent requests")
    elif lags_s:
        yield passed(check=CLIENT, says=f"the client was never more than {max(lags_s) * 1000:.1f} ms late")


def memory(cells: RequestsByCell) -> Iterator[Evidence]:
    """The room for context that a draft takes, where both servers say how much they have."""
    for base, arm in cells.compared:
        if base.kv_tokens and arm.kv_tokens:
            less = 1 - arm.kv_tokens / base.kv_tokens
            how = f"{less:.0%} less" if less > 0 else f"{-less:.0%} more"
            says = f"{arm.name} has room for {arm.kv_tokens:,} tokens of context, {base.name} for {base.kv_tokens:,}: {how}"
            remedy = "with more or longer requests it waits earlier, so measure your largest load too"
            if less > _LESS_ROOM:
                yield caution(check=MEMORY, arm=arm.name, says=says, remedy=remedy)
            else:
                yield passed(check=MEMORY, arm=arm.name, says=says)


def servers(raw: RawRun, course: Course) -> Iterator[Evidence]:
    """Restarts, replaced nodes, and times without a record."""
    rows = [*_interruptions(course)]
    if rounds := len({session.run for session in raw.sessions}) - 1:
        says = f"{rounds + 1} rounds, one after the other: arms of different rounds were measured hours apart"
        remedy = "see the report of a round where an arm and its baseline were in one"
        rows.append(caution(check=SERVERS, says=says, remedy=remedy))
    counted = any(block.counters_after for block in raw.blocks)
    unseen = "; a restart would not have been seen, because no server shows counters" * (not counted)
    yield from rows or [passed(check=SERVERS, says=f"no restart, replaced node or gap was seen{unseen}")]


def _interruptions(course: Course) -> Iterator[Evidence]:
    for arm, number in Counter(row.arm for row in course.restarts).items():
        first = next(row for row in course.restarts if row.arm == arm)
        says = f"counters of {arm} began again from 0 {count(number, 'time')}, first between {first.after} and {first.before}: it restarted, or several servers share its address"
        yield caution(check=SERVERS, arm=arm, says=says, remedy="name one server for each arm")
    for node in course.nodes:
        says = f"the node of {node.arm} was replaced at {node.at} ({node.before} to {node.after}); nothing is pooled over that"
        yield caution(check=SERVERS, arm=node.arm, says=says)
    if course.gaps:
        longest = max(course.gaps, key=lambda gap: gap.seconds)
        total_s = sum(gap.seconds for gap in course.gaps)
        resumed = sum(gap.resumed for gap in course.gaps)
        says = f"nothing was measured for {total_s / 60:.1f} minutes in {count(len(course.gaps), 'gap')}, the longest from {longest.from_} to {longest.to}; after {resumed} of them the run was resumed"
        yield caution(check=SERVERS, says=says)


def drift(course: Course) -> Iterator[Evidence]:
    """The first cell against its repetition at the end."""
    steady = []
    for row in course.drift:
        ends = f" ({row.ci_low:.3f} to {row.ci_high:.3f})" if row.ci_low and row.ci_high else ""
        if row.verdict in ("faster", "slower"):
            says = f"{row.arm} was {row.ratio:.3f} times as fast when the first cell was repeated at the end{ends}; no interval contains that"
            yield caution(check=DRIFT, arm=row.arm, says=says, remedy="run it again")
        else:
            steady.append(f"{row.arm} {row.ratio:.3f}")
    if steady:
        says = f"the first cell, repeated at the end, was as fast as before: {listed(steady)}"
        yield passed(check=DRIFT, says=says)
    elif not course.drift:
        yield not_checked(check=DRIFT, says="the first cell was not repeated at the end")


def prefix_cache(cells: RequestsByCell) -> Iterator[Evidence]:
    """The share of prompt tokens that came from the prefix cache of each arm, where servers say so."""
    shares: dict[str, float] = {}
    for arm in cells.plan.arms:
        known = [
            (one.cached_tokens, one.prompt_tokens or 0)
            for own in cells.of_arm(arm.name)
            for one in own.answers
            if one.cached_tokens is not None
        ]
        if prompt_tokens := sum(tokens for _, tokens in known):
            shares[arm.name] = sum(cached for cached, _ in known) / prompt_tokens
    if shares:
        told = listed([f"{arm} {share:.1%}" for arm, share in shares.items()])
        says = f"prompt tokens from the prefix cache: {told}"
        remedy = "restart the servers, or give the plan another seed; times to first token are not alike"
        if max(shares.values()) - min(shares.values()) > _CACHED_APART:
            yield caution(check=CACHE, says=says, remedy=remedy)
        else:
            yield passed(check=CACHE, says=says)


def engines(cells: RequestsByCell, found: Mapping[str, EngineDifferences]) -> Iterator[Evidence]:
    """Versions and settings that differ although no treatment asked for it."""
    unknown = []
    for base, arm in cells.compared:
        known = found.get(arm.name)
        differing = list(arm.also_changes) if arm.speculative_tokens != base.speculative_tokens else []
        if known:
            differing += [f"{one.path} {one.baseline!r} -> {one.this!r}" for one in known.undeclared]
        if differing:
            says = f"{arm.name} differs from {base.name} in more than drafting: {listed(differing, max_names=_MAX_NAMES)}"
            yield caution(check=ENGINES, arm=arm.name, says=says)
        elif known and known.compared:
            says = f"{arm.name} was compiled like {base.name}, but for {count(known.declared, 'value')} of speculation"
            yield passed(check=ENGINES, arm=arm.name, says=says)
        else:
            unknown.append(arm.name)
    if unknown:
        names = listed(unknown, max_names=_MAX_NAMES)
        says = f"the settings of {names} were compared only as far as the servers show them"
        yield not_checked(check=ENGINES, says=says)
    for name, known in found.items():
        if number := known.compiled_at_serving:
            says = f"the server of {name} compiled {count(number, 'graph')} when it started, which the stored artifact lacks"
            yield caution(check=ENGINES, arm=name, says=says, remedy="another start may compile differently")


def records(cells: RequestsByCell) -> Iterator[Evidence]:
    """Other limits of the numbers of a run."""
    yield from (caution(check=RECORDS, says=text) for text in _limits(cells))
    remedy = "measure it on any vLLM server that drafts, then predict from that run: ./trnspec forecast --run results/gpu"
    for arm, classes in cells.raw.made_up.items():
        for one in classes:
            says = f"the emulator does not know how many drafts of {arm} are accepted for {one}"
            yield withheld(check=RECORDS, arm=arm, class_=one, says=says, remedy=remedy)


def _limits(cells: RequestsByCell) -> Iterator[str]:
    raw, plan, (planned, complete) = cells.raw, cells.plan, extent(cells.raw)
    yield from (text.replace("\n", " ") for text in (raw.unusable_lines, *raw.cautions) if text)
    if is_aa(plan):
        yield "two arms have one address (A/A): what differs between them is noise"
    if plan.ignore_eos:
        yield "answers were forced to max_tokens: text after the natural end changes acceptance"
    if (source := token_source(raw.measured) or "").startswith("mixed"):
        yield f"tokens were not counted in the same way in all answers ({source})"
    if plan.cell_minutes and complete and len(raw.measured) < planned:
        yield f"cells ended after {plan.cell_minutes:g} minutes (cell_minutes), with fewer requests than asked for"
    first = raw.sessions[0].plan.prices
    for arm, usd in plan.prices.items():
        if usd != first.get(arm):
            now, then = (f"${own:g}" if own is not None else "no price" for own in (usd, first.get(arm)))
            yield f"{arm} cost {then} per hour when the run began and {now} at its end: dollars are by the last price"


def one_start(cells: RequestsByCell, compared: Sequence[Comparison]) -> Iterator[Evidence]:
    """Ratios that can change when a server is restarted."""
    low, high = STARTS_DIFFER
    headlines = [one for one in compared if one.metric == TPOT.name and one.ratio and cells.raw.held]
    if not headlines or is_aa(cells.plan):
        return
    if min(cells.conditions(one.load).starts for one in headlines) > 1:
        yield passed(check=ONE_START, says="the intervals contain more than one start of the servers")
        return
    near = [one for one in headlines if starts_differ(math.log(one.ratio or 1.0))]
    for arm in dict.fromkeys(one.treatment for one in near):
        own = [f"{one.class_ or 'all classes'} {one.ratio or 1:.2f}" for one in near if one.treatment == arm]
        says = f"a difference below 10 % can change when a server is restarted, and this run had one start: {arm}, {listed(own, max_names=4)}"
        remedy = "restart the servers, run it again and compare"
        yield caution(check=ONE_START, arm=arm, says=says, remedy=remedy)
    if not near:
        says = f"no ratio is from {low:.2f} to {high:.2f}, which a restart can change"
        yield passed(check=ONE_START, says=says)
