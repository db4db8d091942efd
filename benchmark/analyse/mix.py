"""All classes together: how much faster each treatment is over their mix, and which treatment is best.

The mix has an equal share of the output tokens from every class. Its speed-up is the ratio of the times that these
tokens take, baseline over treatment, each class with the geometric mean time per token over the pairs of both arms:

    S = sum(w_c * B_c) / sum(w_c * T_c)        w_c: equal shares; B_c, T_c: exp of the mean log times of class c

Classes are strata with fixed weights (Cochran, Sampling Techniques, 3rd ed., section 5.4). log S is linearised, as a combined
ratio estimate is (section 6.11): a pair of class c moves it by u_c * log b - v_c * log t, where u_c and v_c are the class's shares
of the two sums. Prompts are units within a class; blocks of all classes together, and starts, are units of all of them
(`benchmark.analyse.sources`).

The best of several treatments looks better than it is, because it was chosen for that. So the intervals of m treatments
over the baseline hold together (Bonferroni, 1 - 0.05 / m each), and the best differs from another treatment where
the interval of that pair excludes 1 at 1 - 0.05 / (m (m - 1) / 2): the run chooses which of all pairs is looked at.

A batch that is smaller than the load lets requests wait, which their time per token does not show. So of several batches the
best is one whose tokens are not dearer than those of the best baseline, where one is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmark.analyse.cells import Cells, Place
from benchmark.analyse.comparison import EQUIVALENT, MIN_PROMPTS, SOLID, Footing, said
from benchmark.analyse.sources import Source, estimate, mean_of
from benchmark.analyse.values import request_values
from benchmark.metrics import TPOT
from benchmark.plan import Arm, Load

Times = Mapping[str, Mapping[str, tuple[Source, float]]]
"""By class and pair: where its chance comes from, and the logarithm of the time per token."""
_OF_PAIR = ("ratio", "ci_low", "ci_high", "together", "verdict", "one_start")


def mixes(cells: Cells) -> dict[str, Any]:
    """`mix`: each treatment against baselines, by load; `best`: of several, the best by load and class (null: of the mix);
    `best_baseline`: of several, what these are compared over."""
    found: dict[str, Any] = {"mix": [], "best": [], "best_baseline": []}
    arms = [arm.name for arm in cells.treatments]
    for load in cells.plan.loads:
        where = {"concurrency": load.concurrency, "rate_per_s": load.rate_per_s}
        times, footing = (
            {arm.name: times_of(cells, arm, load) for arm in cells.plan.arms},
            cells.footing(load),
        )
        whole = {arm.name: times[arm.name] if cells.mixes(arm) else {} for arm in cells.plan.arms}
        base, compared = cells.best_baseline(load).name, cells.compared(load)
        able = arms
        if len({*cells.plan.baselines.values()}) > 1:
            least = cells.per_usd(cells.plan.arm(base), load) / EQUIVALENT[1]
            able = [arm.name for arm in cells.treatments if cells.per_usd(arm, load) >= least] or arms
            found["best_baseline"].append({"class": None, **where, "arm": base, "no_dearer": able})
        for own, arm in ((own.name, arm.name) for own, arm in compared):
            row = {"class": None, **where, **over(whole, own, arm, together=len(compared), footing=footing)}
            judged = cells.mixes(cells.plan.arm(arm))
            found["mix"].append(row if judged else row | {"verdict": "not judged"})
        for class_ in (None, *cells.plan.classes) if len(able) > 1 else ():
            known = whole if class_ is None else times
            within = {arm: of_class(of_arm, class_) for arm, of_arm in known.items()}
            best, *others = ranked(within, base, able) or [""]
            if others:
                pairs = math.comb(len(able), 2)
                told = {arm: over(within, arm, best, together=pairs, footing=footing) for arm in others}
                rows = [{"arm": arm, **{key: row[key] for key in _OF_PAIR}} for arm, row in told.items()]
                found["best"].append({"class": class_, **where, "arm": best, "over": rows})
    return found


def times_of(cells: Cells, arm: Arm, load: Load) -> Times:
    """Of an arm's answered requests, without classes whose acceptance was made up."""
    logs = logs_of(cells, arm, load, TPOT.name)
    return {class_: own for class_, own in logs.items() if (arm.name, class_) not in cells.made_up}


def logs_of(cells: Cells, arm: Arm, load: Load, name: str) -> Times:
    """The same of any metric and all classes."""
    found: dict[str, dict[str, tuple[Source, float]]] = {}
    for class_ in cells.plan.classes:
        for record in cells.answered(arm, Place(class_, load)):
            if value := request_values(record, arm.max_tokens_per_step).get(name):
                found.setdefault(class_, {})[record.pair_id] = (cells.source(record), math.log(value))
    return found


def of_class(times: Times, class_: str | None) -> Times:
    """Of one class, or (None) of all."""
    return {name: own for name, own in times.items() if class_ in (None, name)}


def ranked(times: Mapping[str, Times], base: str, arms: list[str]) -> list[str]:
    """The fastest first, of those that most classes are known of."""
    known = {arm: over(times, base, arm, together=1) for arm in arms}
    classes = {arm: sum(one["share"] > 0 for one in found["classes"]) for arm, found in known.items()}
    able = [arm for arm in arms if classes[arm] and classes[arm] == max(classes.values())]
    return sorted(able, key=lambda arm: -known[arm]["ratio"])


Pair = tuple[Source, float, float]


@dataclass(frozen=True)
class Strata:
    """The pairs of two arms by class, logs of their times per token, and what makes the mix's log S of them."""

    pairs: Mapping[str, Sequence[Pair]]
    means: Mapping[str, tuple[float, float]]
    """Geometric mean times by class."""
    inside: Sequence[str]
    """Classes with a share: those with MIN_PROMPTS prompts."""

    @classmethod
    def of(cls, before: Times, after: Times) -> Strata:
        """Of a baseline and a treatment."""
        pairs: dict[str, list[Pair]] = {}
        for class_, own in before.items():
            other = after.get(class_, {})
            both = [(source, log_s, other[pair][1]) for pair, (source, log_s) in own.items() if pair in other]
            if both:
                pairs[class_] = both
        means = {
            class_: (
                _mean_s((source, log) for source, log, _ in own),
                _mean_s((source, log) for source, _, log in own),
            )
            for class_, own in pairs.items()
        }
        return cls(pairs, means, [name for name, own in pairs.items() if _prompts(own) >= MIN_PROMPTS])

    @property
    def total_s(self) -> tuple[float, float]:
        """The sums of the means of both arms."""
        before, after = zip(*(self.means[class_] for class_ in self.inside), strict=True)
        return math.fsum(before), math.fsum(after)

    @property
    def log_ratio(self) -> float:
        """log S."""
        before, after = self.total_s
        return math.log(before / after)

    def moves(self) -> dict[Source, float]:
        """By how much the pairs of each source move the linearised log S."""
        found: defaultdict[Source, float] = defaultdict(float)
        for class_ in self.inside:
            u, v = (mean / total for mean, total in zip(self.means[class_], self.total_s, strict=True))
            moved = [(source, u * before - v * after) for source, before, after in self.pairs[class_]]
            for source, move in mean_of(moved)[1].items():
                found[source] += move
        return dict(found)


def over(
    times: Mapping[str, Times], base: str, arm: str, *, together: int, footing: Footing = SOLID
) -> dict[str, Any]:
    """`arm` against `base`; classes with fewer than MIN_PROMPTS prompts have no share."""
    strata = Strata.of(times[base], times[arm])
    pairs, means, inside = strata.pairs, strata.means, strata.inside
    total_s, known = (0.0, 0.0), None
    if inside:
        total_s, n = strata.total_s, sum(len(pairs[class_]) for class_ in inside)
        known = replace(estimate(strata.log_ratio, strata.moves(), n=n), together=together)
    names = ("baseline_tpot_s", "treatment_tpot_s")
    return {
        "baseline": base,
        "treatment": arm,
        **said(known, footing),
        "together": together,
        **{name: total / len(inside) if inside else None for name, total in zip(names, total_s, strict=True)},
        "classes": [
            {
                "class": class_,
                "n_prompts": _prompts(pairs[class_]),
                "share": (class_ in inside) / max(len(inside), 1),
            }
            | dict(zip(names, of_class, strict=True))
            for class_, of_class in means.items()
        ],
    }


def _prompts(pairs: Sequence[Pair]) -> int:
    return len({source.prompt for source, *_ in pairs})


def _mean_s(logs: Iterable[tuple[Source, float]]) -> float:
    """Geometric mean of times, of several starts the mean over starts."""
    return math.exp(mean_of(list(logs))[0])
