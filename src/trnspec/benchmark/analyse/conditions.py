"""Evidence from the conditions of a run: whether the load was the load, the client in time, and the servers the same from begin to end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from trnspec.benchmark.analyse.attached import EngineDifferences
from trnspec.benchmark.analyse.delivered import throughput, token_source
from trnspec.benchmark.analyse.requests import RequestsByCell
from trnspec.benchmark.analyse.result import Comparison, Course, Evidence
from trnspec.benchmark.analyse.speed_up import STARTS_DIFFER, starts_differ
from trnspec.benchmark.measure.raw_run import RawRun, extent
from trnspec.benchmark.measure.records import LATE_S
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import MIXED, Plan
from trnspec.core.words import count, listed

LOAD, CLIENT, MODELS, SERVERS = "steady load", "client delay", "model names", "restarts and gaps"
DRIFT, ONE_START, ENGINES = "drift", "effect of a restart", "engine settings"
CACHE, RECORDS = "prefix cache", "settings and records"
_MIN_ANSWERED_SHARE = 0.95
"""An arm that answers a smaller share of the arriving requests does not keep up."""
_CACHED_APART = 0.05
"""Shares of prompt tokens from the cache that differ by more make one arm's first token come earlier."""
_FEW = 0.05
"""The largest share of an arm's answers that may come from another model."""
_MAX_SETTINGS = 4
MEMORY, _LESS_ROOM = "room for context", 0.05


def is_aa(plan: Plan) -> bool:
    """Whether arms share an address (A/A), so that their difference is only noise."""
    return len({arm.url for arm in plan.arms}) < len(plan.arms)


def load(cells: RequestsByCell) -> Iterator[Evidence]:
    """Whether the load was held, and whether each arm kept up with its rate."""
    raw, plan = cells.raw, cells.plan
    low, high = STARTS_DIFFER
    shared = "; all classes shared one load, so throughput and cost are one number for all of them"
    more = shared * (MIXED in plan.loaded_with)
    if raw.held:
        yield Evidence(check=LOAD, outcome="fine", says=f"the load was held while it was measured{more}")
    else:
        says = f"the load was not held while it was measured, so a ratio from {low:.2f} to {high:.2f} has no verdict{more}"
        yield Evidence(check=LOAD, outcome="caution", says=says, remedy="measure again with this version")
    slow: dict[tuple[str, float], float] = {}
    for place, arm in product(cells.places, plan.arms) if raw.held else ():
        if rate := place.load.rate_per_s:
            known = throughput(cells.loaded(arm, place), cells.blocks_of(arm, place))
            if known and known["requests_per_s"] < _MIN_ANSWERED_SHARE * rate:
                slow[arm.name, rate] = min(known["requests_per_s"], slow.get((arm.name, rate), math.inf))
    for (name, rate), per_s in slow.items():
        says = f"{name} answered {per_s:.3g} of {rate:g} requests/s, so its queue grew for as long as the load lasted"
        yield Evidence(check=LOAD, arm=name, outcome="caution", says=says, remedy="choose a lower --rate")


def models(cells: RequestsByCell) -> Iterator[Evidence]:
    """Whether the streams of an arm name several models, as those of a gateway that falls back to another one.

    One name proves nothing, so no row says "fine": LiteLLM's streams may name the model that was asked for after a fallback
    (BerriAI/litellm, issues 31722 and 28241).
    """
    remedy = "call the server itself, or turn the fallback off"
    for arm in cells.plan.arms:
        answered = (own.answered.answers for (name, _), own in cells.requests.items() if name == arm.name)
        by_name = Counter(one.model for own in answered for one in own if one.model)
        if len(by_name) > 1:
            (usual, number), *others = by_name.most_common()
            says = f"{listed([f'{n} answers are of {name}' for name, n in others])}, {number} of {usual}"
            share = 1 - number / by_name.total()
            outcome = "withheld" if share > _FEW else "caution"
            yield Evidence(check=MODELS, arm=arm.name, outcome=outcome, says=says, remedy=remedy)


def client(cells: RequestsByCell) -> Iterator[Evidence]:
    """How late the client was."""
    lags_s = [block.client_lag_s for block in cells.raw.blocks]
    late_s = [lag_s for lag_s in lags_s if lag_s > LATE_S]
    if late_s:
        says = f"the client was up to {max(late_s) * 1000:.0f} ms late in {len(late_s)} of {len(lags_s)} blocks: times may be too long by that"
        remedy = "give it more CPU, or send fewer concurrent requests"
        yield Evidence(check=CLIENT, outcome="caution", says=says, remedy=remedy)
    elif lags_s:
        yield Evidence(
            check=CLIENT,
            outcome="fine",
            says=f"the client was never more than {max(lags_s) * 1000:.1f} ms late",
        )


def memory(cells: RequestsByCell) -> Iterator[Evidence]:
    """What a draft takes of the room for context, where both servers say how much they have."""
    for base, arm in cells.compared:
        if base.kv_tokens and arm.kv_tokens:
            less = 1 - arm.kv_tokens / base.kv_tokens
            how = f"{less:.0%} less" if less > 0 else f"{-less:.0%} more"
            says = f"{arm.name} has room for {arm.kv_tokens:,} tokens of context, {base.name} for {base.kv_tokens:,}: {how}"
            outcome = "caution" if less > _LESS_ROOM else "fine"
            remedy = "with more or longer requests it waits earlier, so measure your largest load too"
            yield Evidence(
                check=MEMORY,
                arm=arm.name,
                outcome=outcome,
                says=says,
                remedy=remedy if outcome == "caution" else "",
            )


def servers(raw: RawRun, course: Course) -> Iterator[Evidence]:
    """Restarts, replaced nodes, and times without a record."""
    rows = []
    for arm, number in Counter(row.arm for row in course.restarts).items():
        first = next(row for row in course.restarts if row.arm == arm)
        says = f"counters of {arm} began again from 0 {count(number, 'time')}, first between {first.after} and {first.before}: it restarted, or several servers share its address"
        rows.append(
            Evidence(
                check=SERVERS, arm=arm, outcome="caution", says=says, remedy="name one server for each arm"
            )
        )
    for node in course.nodes:
        says = f"the node of {node.arm} was replaced at {node.at} ({node.before} to {node.after}); nothing is pooled over that"
        rows.append(Evidence(check=SERVERS, arm=node.arm, outcome="caution", says=says))
    if course.gaps:
        longest, total_s = (
            max(course.gaps, key=lambda gap: gap.seconds),
            sum(gap.seconds for gap in course.gaps),
        )
        resumed = sum(gap.resumed for gap in course.gaps)
        says = f"nothing was measured for {total_s / 60:.1f} minutes in {count(len(course.gaps), 'gap')}, the longest from {longest.from_} to {longest.to}; after {resumed} of them the run was resumed"
        rows.append(Evidence(check=SERVERS, outcome="caution", says=says))
    if rounds := len({session.run for session in raw.sessions}) - 1:
        says = f"{rounds + 1} rounds, one after the other: arms of different rounds were measured hours apart"
        remedy = "see the report of a round where an arm and its baseline were in one"
        rows.append(Evidence(check=SERVERS, outcome="caution", says=says, remedy=remedy))
    counted = any(block.counters_after for block in raw.blocks)
    seen = "no restart, replaced node or gap was seen"
    unseen = "; a restart would not have been seen, because no server shows counters" * (not counted)
    yield from rows or [Evidence(check=SERVERS, outcome="fine", says=seen + unseen)]


def drift(course: Course) -> Iterator[Evidence]:
    """The first cell against its repetition at the end."""
    steady = []
    for row in course.drift:
        ends = f" ({row.ci_low:.3f} to {row.ci_high:.3f})" if row.ci_low and row.ci_high else ""
        if row.verdict in ("faster", "slower"):
            says = f"{row.arm} was {row.ratio:.3f} times as fast when the first cell was repeated at the end{ends}; no interval contains that"
            yield Evidence(check=DRIFT, arm=row.arm, outcome="caution", says=says, remedy="run it again")
        else:
            steady.append(f"{row.arm} {row.ratio:.3f}")
    if steady:
        says = f"the first cell, repeated at the end, was as fast as before: {listed(steady)}"
        yield Evidence(check=DRIFT, outcome="fine", says=says)
    elif not course.drift:
        yield Evidence(check=DRIFT, outcome="not asked", says="the first cell was not repeated at the end")


def prefix_cache(cells: RequestsByCell) -> Iterator[Evidence]:
    """The share of prompt tokens that came from the prefix cache of each arm, where servers say so."""
    shares: dict[str, float] = {}
    for arm in cells.plan.arms:
        own = [one for (name, _), rows in cells.requests.items() if name == arm.name for one in rows.answers]
        known = [(one.cached_tokens, one.prompt_tokens) for one in own if one.cached_tokens is not None]
        if prompt_tokens := sum(tokens or 0 for _, tokens in known):
            shares[arm.name] = sum(cached or 0 for cached, _ in known) / prompt_tokens
    if shares:
        told = listed([f"{arm} {share:.1%}" for arm, share in shares.items()])
        apart = max(shares.values()) - min(shares.values()) > _CACHED_APART
        yield Evidence(
            check=CACHE,
            outcome="caution" if apart else "fine",
            says=f"prompt tokens from the prefix cache: {told}",
            remedy="restart the servers, or give the plan another seed; times to first token are not alike"
            * apart,
        )


def engines(cells: RequestsByCell, found: Mapping[str, EngineDifferences]) -> Iterator[Evidence]:
    """Versions and settings that differ although no treatment asked for it."""
    unknown = []
    for base, arm in cells.compared:
        known = found.get(arm.name)
        settings = (
            [f"{one.path} {one.baseline!r} -> {one.this!r}" for one in known.undeclared] if known else []
        )
        drafts = arm.speculative_tokens != base.speculative_tokens
        differing = [*(arm.also_changes if drafts else ()), *settings]
        if differing:
            says = f"{arm.name} differs from {base.name} in more than drafting: {listed(differing, max_names=_MAX_SETTINGS)}"
            yield Evidence(check=ENGINES, arm=arm.name, outcome="caution", says=says)
        elif known and known.compared:
            says = f"{arm.name} was compiled like {base.name}, but for {count(known.declared, 'value')} of speculation"
            yield Evidence(check=ENGINES, arm=arm.name, outcome="fine", says=says)
        else:
            unknown.append(arm.name)
    if unknown:
        names = listed(unknown, max_names=_MAX_SETTINGS)
        says = f"the settings of {names} were compared only as far as the servers show them"
        yield Evidence(check=ENGINES, outcome="not asked", says=says)
    for name, known in found.items():
        if known.compiled_at_serving:
            says = f"the server of {name} compiled {count(known.compiled_at_serving, 'graph')} when it started, which the stored artifact lacks"
            yield Evidence(
                check=ENGINES,
                arm=name,
                outcome="caution",
                says=says,
                remedy="another start may compile differently",
            )


def records(cells: RequestsByCell) -> Iterator[Evidence]:
    """What else limits the numbers of a run."""
    raw, plan, (planned, complete) = cells.raw, cells.plan, extent(cells.raw)
    first = raw.sessions[0].plan.prices
    says = [text.replace("\n", " ") for text in (raw.unusable_lines, *raw.cautions) if text]
    if is_aa(plan):
        says.append("two arms have one address (A/A): what differs between them is noise")
    if plan.ignore_eos:
        says.append("answers were forced to max_tokens: text after the natural end changes acceptance")
    if (source := token_source(raw.measured) or "").startswith("mixed"):
        says.append(f"tokens were not counted in the same way in all answers ({source})")
    if plan.cell_minutes and complete and len(raw.measured) < planned:
        says.append(
            f"cells ended after {plan.cell_minutes:g} minutes (cell_minutes), with fewer requests than asked for"
        )
    for arm, usd in plan.prices.items():
        if usd != first.get(arm):
            now, then = (f"${own:g}" if own is not None else "no price" for own in (usd, first.get(arm)))
            says.append(
                f"{arm} cost {then} per hour when the run began and {now} at its end: dollars are by the last price"
            )
    yield from (Evidence(check=RECORDS, outcome="caution", says=text) for text in says)
    for arm, classes in raw.made_up.items():
        remedy = "measure it on any vLLM server that drafts, then ./trnspec forecast EXPERIMENT --run DIR"
        for one in classes:
            text = f"the emulator does not know how many drafts of {arm} are accepted for {one}"
            yield Evidence(check=RECORDS, arm=arm, class_=one, outcome="withheld", says=text, remedy=remedy)


def one_start(cells: RequestsByCell, compared: Sequence[Comparison]) -> Iterator[Evidence]:
    """Ratios that can change when a server is restarted."""
    low, high = STARTS_DIFFER
    headlines = [one for one in compared if one.metric == TPOT.name and one.ratio and cells.raw.held]
    if not headlines or is_aa(cells.plan):
        return
    if min(cells.conditions(one.load).starts for one in headlines) > 1:
        yield Evidence(
            check=ONE_START, outcome="fine", says="the intervals contain more than one start of the servers"
        )
        return
    near = [one for one in headlines if starts_differ(math.log(one.ratio or 1.0))]
    for arm in dict.fromkeys(one.treatment for one in near):
        own = [f"{one.class_ or 'all classes'} {one.ratio or 1:.2f}" for one in near if one.treatment == arm]
        says = f"a difference below 10 % can change when a server is restarted, and this run had one start: {arm}, {listed(own, max_names=4)}"
        remedy = "restart the servers, run it again and compare"
        yield Evidence(check=ONE_START, arm=arm, outcome="caution", says=says, remedy=remedy)
    if not near:
        says = f"no ratio is from {low:.2f} to {high:.2f}, which a restart can change"
        yield Evidence(check=ONE_START, outcome="fine", says=says)
