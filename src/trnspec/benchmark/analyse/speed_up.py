"""The speed-up of an arm over its baseline with its interval: in one class, and over the mix of all classes.

In a class the speed-up is a ratio of geometric means over pairs of requests that had the same prompt and nonce. The mix has an equal
share of the output tokens from every class. Its speed-up is the ratio of the times that these tokens take:

    S = sum(w_c * B_c) / sum(w_c * T_c)        w_c: equal shares, or the user's; B_c, T_c: exp of the mean log times of class c

Classes are strata with fixed weights (Cochran, Sampling Techniques, 3rd ed., section 5.4). log S is linearised, as a combined
ratio estimate is (section 6.11, `statistics.ratio_of_sums`). Intervals include the variation of prompts, blocks of time and starts of the servers (`trnspec.benchmark.analyse.statistics`).

One rule gives the verdict of every metric, and the interval that is printed is the one that it judges:

    faster              all of it above 1.05            slower              all of it below 0.95
    same                all of it inside 0.95 to 1.05
    a little faster     else, all of it above 1         a little slower     else, all of it below 1
    cannot tell         it contains 1 and leaves the band
    too few prompts     fewer than MIN_PROMPTS          withheld            the measurement allows no verdict

The intervals of a metric hold together for all classes and treatments of a load, those over the mix for all treatments (Bonferroni,
1 - 0.05 / m each): in at most one run in twenty any class is faster or slower by chance. Holm's p-values are kept as numbers.

Between two starts of the same servers ratios moved by 4 to 9 % (*measured* on one H200, tests/data/h200). So within 0.91 to 1.10 the
verdict of a run with one start is only about that start. Where the load was not held, such a ratio has no verdict, and neither has the
time to first token: in a burst it is the time in the queue.

The best of several treatments is biased upward, because it was chosen as the best. It differs from another treatment if the interval of
that pair excludes 1 at 1 - 0.05 / (m (m - 1) / 2), because the choice of the pair depends on the data. With several baselines there is a
best of each one's treatments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from trnspec.benchmark.analyse.cells import MeasuringConditions, RequestsByCell
from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.result import Comparison, PaysUpTo, Verdict
from trnspec.benchmark.analyse.statistics import (
    Array,
    ClusterIds,
    Estimate,
    holm,
    mean_of,
    of_sample,
    ratio_of_sums,
)
from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.benchmark.metrics import COMPARED, TPOT, TTFT, Metric
from trnspec.benchmark.plan import Load

EQUIVALENT = (0.95, 1.05)
"""Ratios within this range do not matter in practice."""
BAND = (math.log(EQUIVALENT[0]), math.log(EQUIVALENT[1]))
"""The same range for log ratios."""
SIGNIFICANT = 0.05
STARTS_DIFFER = (0.91, 1.10)
"""A ratio within this range may be an effect of the start of the servers that was measured."""
FASTER: tuple[Verdict, ...] = ("faster", "a little faster")
SLOWER: tuple[Verdict, ...] = ("slower", "a little slower")
DEFAULT_CONDITIONS = MeasuringConditions()
Classes = Mapping[str, Requests]
"""The requests of an arm under one load, by class."""


def comparisons(cells: RequestsByCell) -> Iterator[dict[str, Any]]:
    """`comparisons` of a summary: the speed-up of each treatment by each compared metric, above 1 where it is better."""
    for load in cells.plan.loads:
        rows = list(_at(cells, load))
        for own in ([row for row in rows if row["metric"] == metric.name] for metric in COMPARED):
            for row, p in zip(own, holm([row.get("p_value") for row in own]), strict=True):
                row["p_holm"] = p
        yield from rows


def _at(cells: RequestsByCell, load: Load) -> Iterator[dict[str, Any]]:
    """The comparisons under one load."""
    known = []
    for class_, arms in product(cells.plan.classes, cells.compared):
        place = CellKey(class_, load)
        base, treated = (cells.of(arm, place) for arm in arms)
        pairs, judged = base.paired_with(treated), cells.comparable(arms, place)
        gains = {metric: gain_of(pairs, metric) if judged else None for metric in COMPARED}
        where = {**place.to_dict(), "baseline": arms[0].name, "treatment": arms[1].name}
        # An emulator made up the acceptance of an arm: neither ratio nor verdict.
        unknown = {} if judged else {"verdict": "withheld", "n_pairs": len(pairs[0]), "prompts_to_tell": None}
        known.append((where, gains, unknown))
    together = {metric: sharing(gains[metric] for _, gains, _ in known) for metric in COMPARED}
    for (where, gains, more), metric in product(known, COMPARED):
        gain, number = gains[metric], together[metric]
        row = as_ratio(gain and replace(gain, together=number), cells.conditions(load), metric)
        yield {**where, "metric": metric.name, "together": number, **row, **more}


def sharing(gains: Iterable[Estimate | None]) -> int:
    """The number of comparisons whose intervals hold together: those that can have a verdict."""
    return max(1, sum(gain is not None and gain.clusters >= MIN_PROMPTS for gain in gains))


def intervals_together(cells: RequestsByCell, load: Load) -> int:
    """The number of intervals of the time per token that hold together under a load, over classes and treatments."""
    places = product((CellKey(class_, load) for class_ in cells.plan.classes), cells.compared)
    return sharing(
        gain_of(cells.pairs(arms, place)) if cells.comparable(arms, place) else None for place, arms in places
    )


def log_gains(pairs: tuple[Requests, Requests], metric: Metric) -> tuple[Array, ClusterIds]:
    """The log(gain) of each pair in which both values are known and not zero. Above 0 the second of the pair is better."""
    before, after = (own.metrics[metric.name] for own in pairs)
    known = (before > 0) & (after > 0)
    gains = np.log(before[known] / after[known])
    return gains if metric.better == "lower" else -gains, pairs[0].cluster_ids.of(known)


def gain_of(pairs: tuple[Requests, Requests], metric: Metric = TPOT) -> Estimate | None:
    """The mean log(gain) over pairs with its interval; None without a pair."""
    gains, cluster_ids = log_gains(pairs, metric)
    doubt = sum(mean_error(own) for own in pairs) if metric is TPOT else 0.0
    return replace(of_sample(gains, cluster_ids), doubt=doubt) if len(gains) else None


def mean_error(requests: Requests) -> float:
    """The mean bound of the error of the log time per token; 0 where all tokens are counted."""
    known = requests.tpot_error[~np.isnan(requests.tpot_error)]
    return float(known.mean()) if len(known) else 0.0


def as_ratio(
    estimate: Estimate | None, conditions: MeasuringConditions = DEFAULT_CONDITIONS, metric: Metric = TPOT
) -> dict[str, Any]:
    """A log ratio with its interval, mapped back to a ratio. `detectable_ratio` is the speed-up that would get the verdict "faster" in
    80 % of repetitions; `p_value` is that of this comparison alone."""
    code = verdict(estimate, conditions, metric)
    if estimate is None:
        return {"verdict": code, "prompts_to_tell": prompts_to_tell(code)}
    near, shown = starts_differ(estimate.mean), code in ("same", *FASTER, *SLOWER)
    alone = replace(estimate, together=1)
    return {
        "ratio": math.exp(estimate.mean),
        "ci_low": mapped_back(estimate.low),
        "ci_high": mapped_back(estimate.high),
        "n_pairs": estimate.n,
        "n_prompts": estimate.clusters,
        "verdict": code,
        "one_start": shown and conditions.starts == 1 and near,
        "p_value": None if code == "withheld" else alone.p_value(*BAND),
        "detectable_ratio": mapped_back(estimate.detectable, BAND[1]),
        "prompts_to_tell": prompts_to_tell(code, estimate),
    }


def prompts_to_tell(code: Verdict, estimate: Estimate | None = None) -> int | None:
    """The prompts of a class with which a run would tell in four of five repetitions; None for another verdict. It tells if the interval
    excludes 1 or is inside the band; it shrinks with the square root of the number of prompts."""
    if code == "too few prompts":
        return MIN_PROMPTS
    if code != "cannot tell" or estimate is None or not estimate.detectable:
        return None
    wanted = max(abs(estimate.mean), min(estimate.mean - BAND[0], BAND[1] - estimate.mean))
    return max(estimate.clusters + 1, math.ceil(estimate.clusters * (estimate.detectable / wanted) ** 2))


def mapped_back(log_ratio: float | None, beyond: float = 0.0) -> float | None:
    """The ratio from its logarithm, which is `beyond` another; None for None."""
    return None if log_ratio is None else math.exp(log_ratio + beyond)


def starts_differ(log_ratio: float) -> bool:
    """Whether a ratio may be only a difference between two starts of the servers."""
    return STARTS_DIFFER[0] <= math.exp(log_ratio) <= STARTS_DIFFER[1]


def verdict(
    estimate: Estimate | None, conditions: MeasuringConditions = DEFAULT_CONDITIONS, metric: Metric = TPOT
) -> Verdict:
    """The verdict of a log ratio by its interval."""
    if estimate is None or estimate.low is None or estimate.high is None or estimate.clusters < MIN_PROMPTS:
        return "too few prompts"
    if not conditions.held and (metric is TTFT or starts_differ(estimate.mean)):
        return "withheld"
    low, high = estimate.low, estimate.high
    if low > BAND[1]:
        return "faster"
    if high < BAND[0]:
        return "slower"
    if BAND[0] <= low and high <= BAND[1]:
        return "same"
    return "a little faster" if low > 0 else "a little slower" if high < 0 else "cannot tell"


def mixes(cells: RequestsByCell) -> Iterator[dict[str, Any]]:
    """`mix` of a result: each treatment against its baseline, by load, over the classes that have a verdict."""
    for load in cells.plan.loads:
        known = {arm.name: cells.known(arm, load) for arm in cells.plan.arms}
        about: dict[str, Any] = {"conditions": cells.conditions(load), "shares": cells.shares}
        for arms in cells.compared:
            base, arm = (one.name for one in arms)
            row = mix_speed_up(known[base], known[arm], together=len(cells.compared), **about)
            if not any(cells.comparable(arms, CellKey(class_, load)) for class_ in cells.plan.classes):
                row["verdict"] = "withheld"
            yield {"class": None, **vars(load), "baseline": base, "treatment": arm, **row}


def bests(cells: RequestsByCell) -> Iterator[dict[str, Any]]:
    """`best` of a result: of several treatments with one baseline, the best by load and class (null: the mix)."""
    treated: dict[str, list[str]] = {}
    for base, arm in cells.compared:
        treated.setdefault(base.name, []).append(arm.name)
    several = {base: arms for base, arms in treated.items() if len(arms) > 1}
    for load, (base, arms), class_ in product(cells.plan.loads, several.items(), (None, *cells.plan.classes)):
        known = {
            arm.name: {name: own for name, own in cells.known(arm, load).items() if class_ in (None, name)}
            for arm in cells.plan.arms
        }
        shares = cells.shares if class_ is None else None
        best, *others = _ranked(known, base, arms, shares) or [""]
        pairs, conditions = math.comb(len(arms), 2), cells.conditions(load)
        about: dict[str, Any] = {"together": pairs, "conditions": conditions, "shares": shares}
        rest = [{"arm": arm, **mix_speed_up(known[arm], known[best], **about)} for arm in others]
        if others:
            yield {"class": class_, **vars(load), "baseline": base, "arm": best, "over": rest}


def _ranked(
    classes: Mapping[str, Classes], base: str, arms: Sequence[str], shares: Mapping[str, float] | None
) -> list[str]:
    """The arms, the fastest first; only those for which the largest number of classes is known."""
    known = {arm: Mix.of(classes[base], classes[arm], shares) for arm in arms}
    maximum = max((len(mix.weights) for mix in known.values()), default=0)
    complete = [arm for arm in arms if maximum and len(known[arm].weights) == maximum]
    return sorted(complete, key=lambda arm: known[arm].mean_s[1] / known[arm].mean_s[0])


class PairsOfClass(NamedTuple):
    """The pairs of two arms in one class: the logs of their times per token, and the means of these, mapped back to times."""

    log_s: tuple[Array, Array]
    cluster_ids: ClusterIds
    mean_s: tuple[float, float]
    """Geometric means; with several starts, the mean over starts."""
    doubt: float
    """The sum of the mean bounds of the errors of both arms."""

    @classmethod
    def of(cls, pairs: tuple[Requests, Requests]) -> PairsOfClass | None:
        """None without a pair whose times are both known."""
        before, after = (own.metrics[TPOT.name] for own in pairs)
        known = (before > 0) & (after > 0)
        if not known.any():
            return None
        log_s, cluster_ids = (np.log(before[known]), np.log(after[known])), pairs[0].cluster_ids.of(known)
        base_s, treated_s = (math.exp(mean_of(own, cluster_ids.start)[0]) for own in log_s)
        return cls(log_s, cluster_ids, (base_s, treated_s), sum(map(mean_error, pairs)))

    @property
    def prompts(self) -> int:
        return len(np.unique(self.cluster_ids.prompt))


class Mix(NamedTuple):
    """Two arms over the mix of all classes."""

    pairs: Mapping[str, PairsOfClass]
    weights: Mapping[str, float]
    """The share of each class that has one; all together are 1."""

    @classmethod
    def of(cls, before: Classes, after: Classes, shares: Mapping[str, float] | None) -> Mix:
        """A class with fewer than MIN_PROMPTS prompts has no share if another has them. `shares` are the user's; None: equal ones."""
        both = {
            name: PairsOfClass.of(own.paired_with(after[name]))
            for name, own in before.items()
            if name in after
        }
        pairs = {name: own for name, own in both.items() if own}
        wanted = {
            name: share for name in pairs if (share := 1.0 if shares is None else shares.get(name, 0.0))
        }
        wanted = {name: own for name, own in wanted.items() if pairs[name].prompts >= MIN_PROMPTS} or wanted
        return cls(pairs, {name: share / math.fsum(wanted.values()) for name, share in wanted.items()})

    @property
    def mean_s(self) -> tuple[float, float]:
        """The mean times of both arms."""
        each_s = ([weight * own for own in self.pairs[name].mean_s] for name, weight in self.weights.items())
        base_s, treated_s = map(math.fsum, zip(*each_s, strict=True))
        return base_s, treated_s

    @property
    def estimate(self) -> Estimate | None:
        """log S with its interval, and the prompts of the smallest class; None without a class."""
        if not self.weights:
            return None
        parts = [(weight, self.pairs[name]) for name, weight in self.weights.items()]
        known = ratio_of_sums([(weight, *own.log_s, own.cluster_ids) for weight, own in parts])
        doubt, prompts = max(own.doubt for _, own in parts), min(own.prompts for _, own in parts)
        return replace(known, clusters=prompts, doubt=doubt)


def mix_speed_up(
    before: Classes,
    after: Classes,
    *,
    together: int,
    conditions: MeasuringConditions,
    shares: Mapping[str, float] | None,
) -> dict[str, Any]:
    """An arm against another one over the mix of classes."""
    mix = Mix.of(before, after, shares)
    known, means_s = mix.estimate, mix.mean_s if mix.weights else (None, None)
    by_class = [
        {
            "class": class_,
            "n_prompts": own.prompts,
            "share": mix.weights.get(class_, 0.0),
            "baseline_tpot_s": own.mean_s[0],
            "treatment_tpot_s": own.mean_s[1],
        }
        for class_, own in mix.pairs.items()
    ]
    return {
        **as_ratio(known and replace(known, together=together), conditions),
        "together": together,
        "baseline_tpot_s": means_s[0],
        "treatment_tpot_s": means_s[1],
        "classes": by_class,
    }


def pays_up_to(rows: Sequence[Comparison]) -> Iterator[PaysUpTo]:
    """With several loads, in each class and over the mix: the last load at which a treatment is faster, and the first load above that at
    which it is slower or a little slower."""
    by_pair: dict[tuple[Any, ...], list[tuple[float, Verdict]]] = {}
    for row in rows:
        sides = row.class_, row.baseline, row.treatment, "concurrency" if row.concurrency else "rate"
        by_pair.setdefault(sides, []).append((row.load.size, row.verdict))
    for (class_, baseline, treatment, by), unordered in by_pair.items():
        loads = sorted(unordered)
        if len(loads) > 1 and {verdict for _, verdict in loads} - {"too few prompts", "withheld"}:
            pays = max((load for load, verdict in loads if verdict == "faster"), default=None)
            slower = (load for load, verdict in loads if verdict in SLOWER and load > (pays or 0))
            names = {"class_": class_, "baseline": baseline, "treatment": treatment, "by": by}
            yield PaysUpTo(**names, pays=pays, costs=next(slower, None), loads=loads)
