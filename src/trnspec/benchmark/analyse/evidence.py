"""The evidence of a run: named checks between the table of requests and the verdicts.

A figure becomes a verdict only where no check withholds it. Each check says what it found for an arm, a class and a load (each of them, or
all), with the numbers that it rests on and a remedy. `says` and `remedy` are clauses, without a full stop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from trnspec.benchmark.analyse import answers, arrivals, conditions
from trnspec.benchmark.analyse.cells import RequestsByCell
from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.result import Course, Evidence, caution, passed, withheld
from trnspec.benchmark.analyse.result_parts import EngineDifferences, Quality
from trnspec.benchmark.analyse.statistics import fisher_more
from trnspec.benchmark.analyse.tokens_and_text import tokens_and_text
from trnspec.benchmark.measure.raw_run import extent
from trnspec.benchmark.metrics import TPOT
from trnspec.benchmark.plan import Load, PlannedArm
from trnspec.core.words import listed

Check = Callable[[RequestsByCell], Iterable[Evidence]]
ENDINGS, FAILURES = "how answers end", "answered requests"
MORE_FAILURES = 0.01
"""If the share of failed requests exceeds that of the baseline by more than this, the verdicts of a treatment are withheld."""
_APART, _CERTAIN = 0.05, 0.005
"""Shares of a finish reason differ by more than `_APART`, and chance is less likely than `_CERTAIN` in each direction."""
TIMES_STAY = {FAILURES, answers.BEGINNINGS, answers.QUALITY}
"""Checks that make an arm suspect but not its times: the ratio is kept, without a verdict."""


def withheld_for(
    evidence: Iterable[Evidence],
    arm: str,
    class_: str | None = None,
    load: Load | None = None,
    metric: str = TPOT.name,
) -> list[Evidence]:
    """The rows that withhold the verdicts about an arm in a class under a load by a metric; for None those about the arm in all classes,
    under all loads. A comparison is withheld if there is a row for its baseline or for its treatment."""
    return [
        one
        for one in evidence
        if one.outcome == "withheld"
        and one.arm in (None, arm)
        and one.class_ in (None, class_)
        and one.load in (Load(), load)
        and one.metric in (None, metric)
    ]


def withheld_from(
    evidence: Sequence[Evidence], place: CellKey, *arms: str, metric: str = TPOT.name
) -> list[Evidence]:
    """The rows that withhold the verdict of a comparison of these arms, each once."""
    at = place.class_ or None, place.load
    own = (row for arm in arms for row in withheld_for(evidence, arm, *at, metric))
    return list(dict.fromkeys(own))


def endings(cells: RequestsByCell) -> Iterator[Evidence]:
    """The finish reasons of each arm, and arms whose answers end differently."""
    reasons = {
        arm.name: Counter(
            one.finish_reason or "no reason" for own in cells.of_arm(arm.name) for one in own.answered.answers
        )
        for arm in cells.plan.arms
    }
    remedy = "compare their answers on the page; give both arms the same limits and stop words"
    apart = []
    for base, arm in cells.compared:
        if reason := _ends_apart(before := reasons[base.name], after := reasons[arm.name]):
            apart.append(arm.name)
            shares = [own[reason] / own.total() for own in (after, before)]
            says = f"{shares[0]:.0%} of the answers of {arm.name} ended with {reason!r}, {shares[1]:.0%} of {base.name}'s"
            yield caution(check=ENDINGS, arm=arm.name, says=says, remedy=remedy)
    told = {arm: _shares(own) for arm, own in reasons.items() if own}
    if told and not apart:
        each = [f"{arm} {text}" for arm, text in told.items()]
        if len({*told.values()}) == 1:
            each = [f"every arm {next(iter(told.values()))}"]
        yield passed(check=ENDINGS, says=f"answers ended with: {'; '.join(each)}")


def _ends_apart(before: Counter[str], after: Counter[str]) -> str | None:
    """Return the first finish reason whose share differs by more than chance; None if no share does."""
    sides = after.total(), before.total()
    for reason in sorted(before | after) if all(sides) else ():
        counts = (after[reason], sides[0]), (before[reason], sides[1])
        chance = min(fisher_more(*counts[0], *counts[1]), fisher_more(*counts[1], *counts[0]))
        if abs(after[reason] / sides[0] - before[reason] / sides[1]) > _APART and chance < _CERTAIN:
            return reason
    return None


def _shares(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {number / reasons.total():.0%}" for reason, number in reasons.most_common())


def failures(cells: RequestsByCell) -> Iterator[Evidence]:
    """Requests without an answer: by arm, and cells without any answer. Failed requests are in no other number, so the arm that fails more
    looks better."""
    rows = [row for arm in cells.plan.arms for row in _failures_of(cells, arm)]
    rows += _unanswered(cells, rows)
    if not rows and (asked := sum(map(len, cells.requests.values()))):
        rows = [passed(check=FAILURES, says=f"all {asked:,} requests were answered")]
    yield from rows


def _failures_of(cells: RequestsByCell, arm: PlannedArm) -> Iterator[Evidence]:
    base = cells.baseline_of(arm)
    by_load = {load: (cells.asked(arm, load), cells.asked(base, load)) for load in cells.plan.loads}
    names = Counter(one.error for own, _ in by_load.values() for one in own.answers if one.error)
    failed, asked = names.total(), sum(len(own) for own, _ in by_load.values())
    if not failed:
        return
    why = listed([f"{name} {number}" for name, number in names.most_common()])
    told = f"{failed} of {asked} requests to {arm.name} failed ({why})"
    if base is not arm:
        others = [other for _, other in by_load.values()]
        told += f", {sum(other.failed for other in others)} of {sum(map(len, others))} to {base.name}"
    remedy = "look at the messages of the failures, repair the cause and run it again"
    about = {"check": FAILURES, "arm": arm.name, "remedy": remedy}
    worse = {
        load: sides for load, sides in by_load.items() if _share(sides[0]) > _share(sides[1]) + MORE_FAILURES
    }
    if failed == asked or len(worse) == len(by_load):
        yield withheld(**about, says=told)
        return
    yield caution(**about, says=f"{told}; pairs without an answer are left out")
    for load, (own, other) in worse.items():
        says = f"{own.failed} of {len(own)} requests to {arm.name} failed, {other.failed} of {len(other)} to {base.name}, with {load.in_words}"
        yield withheld(**about, **vars(load), says=says)


def _share(requests: Requests) -> float:
    return requests.failed / max(len(requests), 1)


def _unanswered(cells: RequestsByCell, known: Sequence[Evidence]) -> Iterator[Evidence]:
    """Cells without any answer, unless the whole arm or its load is withheld already. In an unfinished run only those that were asked."""
    complete = extent(cells.raw)[1]
    remedy = "repeat the command to continue, or look at the failures"
    for place, arm in product(cells.places, cells.plan.arms):
        own = cells.of(arm, place)
        there = withheld_for(known, arm.name, place.class_, place.load)
        if not own.ok.any() and (complete or len(own)) and not there:
            says, where = f"{arm.name} has no answer for {place}", vars(place.load)
            about = {"check": FAILURES, "arm": arm.name, "says": says, "remedy": remedy}
            yield withheld(**about, class_=place.class_, **where)


CHECKS: tuple[Check, ...] = (
    failures,
    endings,
    arrivals.arrivals,
    tokens_and_text,
    answers.questions,
    answers.loops,
    answers.beginnings,
    conditions.load,
    conditions.client,
    conditions.models,
    conditions.prefix_cache,
    conditions.memory,
    conditions.records,
)
"""The checks of the table of requests."""


def evidence(
    cells: RequestsByCell,
    course: Course,
    *,
    quality: Quality | None,
    engines: Mapping[str, EngineDifferences],
) -> tuple[Evidence, ...]:
    """The rows that come before the verdicts; `quality` and `engines` are those of the result."""
    rows = [row for check in CHECKS for row in check(cells)]
    treatments = [arm.name for _, arm in cells.compared]
    rows += [*answers.quality(quality, treatments), *conditions.engines(cells, engines)]
    rows += [*conditions.servers(cells.raw, course), *conditions.drift(course)]
    rows = [*answers.outranked(rows, quality)]
    return (*rows, *_every_class(cells, rows))


def _every_class(cells: RequestsByCell, rows: Sequence[Evidence]) -> Iterator[Evidence]:
    """A row for each treatment that has no verdict in any class, so that none is left of its mix."""
    for arms in cells.compared:
        names = [arm.name for arm in arms]
        each = [withheld_from(rows, CellKey(class_, Load()), *names) for class_ in cells.plan.classes]
        why = [one for own in each for one in own]
        checks = list(dict.fromkeys(one.check for one in why))
        if all(each) and all(one.class_ for one in why) and checks != [conditions.RECORDS]:
            says = why[0].says if len(each) == 1 else f"every class is withheld, by {listed(checks)}"
            yield withheld(check=checks[0], arm=names[1], says=says, remedy=why[0].remedy)


def without_withheld(cells: RequestsByCell, evidence: Sequence[Evidence]) -> RequestsByCell:
    """The cells, whose mixes leave out the classes that are withheld under all loads."""
    every = product((arm.name for arm in cells.plan.arms), cells.plan.classes)
    return replace(cells, left_out=frozenset(one for one in every if withheld_for(evidence, *one)))
