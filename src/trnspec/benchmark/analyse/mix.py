"""Arms over the mix of all classes: S = sum(w_c * B_c) / sum(w_c * T_c), and which of several treatments is the best
(`trnspec.benchmark.analyse.speed_up` has the formula)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from trnspec.benchmark.analyse.request_table import CellKey, Requests
from trnspec.benchmark.analyse.requests import MeasuringConditions, RequestsByCell
from trnspec.benchmark.analyse.speed_up import DEFAULT_CONDITIONS, as_ratio, mean_error
from trnspec.benchmark.analyse.statistics import Array, ClusterIds, Estimate, estimate, joined, mean_of
from trnspec.benchmark.cell_size import MIN_PROMPTS
from trnspec.benchmark.metrics import TPOT

Classes = Mapping[str, Requests]
"""The requests of an arm under one load, by class."""


def mixes(cells: RequestsByCell) -> Iterator[dict[str, Any]]:
    """`mix` of a result: each treatment against its baseline, by load, over the classes that have a verdict."""
    for load in cells.plan.loads:
        conditions, known = (
            cells.conditions(load),
            {arm.name: cells.known(arm, load) for arm in cells.plan.arms},
        )
        for arms in cells.compared:
            base, arm = (one.name for one in arms)
            about: dict[str, Any] = {"conditions": conditions, "shares": cells.shares}
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
        best, *others = ranked(known, base, arms, shares) or [""]
        pairs, conditions = math.comb(len(arms), 2), cells.conditions(load)
        about: dict[str, Any] = {"together": pairs, "conditions": conditions, "shares": shares}
        rest = [{"arm": arm, **mix_speed_up(known[arm], known[best], **about)} for arm in others]
        if others:
            yield {"class": class_, **vars(load), "baseline": base, "arm": best, "over": rest}


def ranked(
    classes: Mapping[str, Classes],
    base: str,
    arms: Sequence[str],
    shares: Mapping[str, float] | None = None,
) -> list[str]:
    """The arms, the fastest first; only those for which the largest number of classes is known."""
    known = {arm: Strata.of(classes[base], classes[arm], shares) for arm in arms}
    maximum = max((len(strata.classes_in_mix) for strata in known.values()), default=0)
    complete = [arm for arm in arms if maximum and len(known[arm].classes_in_mix) == maximum]
    return sorted(complete, key=lambda arm: -known[arm].log_ratio)


class Stratum(NamedTuple):
    """The pairs of two arms in one class: the logs of their times per token, and the means of these, mapped back to times."""

    log_s: tuple[Array, Array]
    cluster_ids: ClusterIds
    mean_s: tuple[float, float]
    """Geometric means; with several starts, the mean over starts."""
    prompts: int
    doubt: float = 0.0
    """The sum of the mean bounds of the errors of both arms."""


@dataclass(frozen=True)
class Strata:
    """The pairs of two arms by class; calculates log S of the mix."""

    pairs: Mapping[str, Stratum]
    shares: Mapping[str, float] | None = None
    """The user's shares of the output tokens, by class; None: equal ones."""

    @classmethod
    def of(cls, before: Classes, after: Classes, shares: Mapping[str, float] | None = None) -> Strata:
        """The strata of a baseline and a treatment."""
        strata = {}
        for class_ in (name for name in before if name in after):
            pairs = before[class_].paired_with(after[class_])
            times = tuple(own.metrics[TPOT.name] for own in pairs)
            known = (times[0] > 0) & (times[1] > 0)
            if known.any():
                cluster_ids = pairs[0].cluster_ids.of(known)
                first, second = (np.log(own[known]) for own in times)
                means = tuple(math.exp(mean_of(own, cluster_ids.start)[0]) for own in (first, second))
                prompts = len(np.unique(cluster_ids.prompt))
                doubt = sum(map(mean_error, pairs))
                strata[class_] = Stratum((first, second), cluster_ids, (means[0], means[1]), prompts, doubt)
        return cls(strata, shares)

    @cached_property
    def classes_in_mix(self) -> list[str]:
        """Classes with a share: those with MIN_PROMPTS prompts; if none has so many, all."""
        every = {class_: own for class_, own in self.pairs.items() if self._wanted(class_)}
        return [class_ for class_, own in every.items() if own.prompts >= MIN_PROMPTS] or [*every]

    def _wanted(self, class_: str) -> float:
        return 1.0 if self.shares is None else self.shares.get(class_, 0.0)

    def weight(self, class_: str) -> float:
        """The share of a class in the mix; all together are 1."""
        known = self._wanted(class_) * (class_ in self.classes_in_mix)
        return known / (math.fsum(map(self._wanted, self.classes_in_mix)) or 1.0)

    @property
    def total_s(self) -> tuple[float, float]:
        """The means of both arms over the classes with a share."""
        weighted = [
            [self.weight(name) * mean for mean in self.pairs[name].mean_s] for name in self.classes_in_mix
        ]
        before, after = zip(*weighted, strict=True)
        return math.fsum(before), math.fsum(after)

    @property
    def log_ratio(self) -> float:
        """log S."""
        before, after = self.total_s
        return math.log(before / after)

    @property
    def estimate(self) -> Estimate | None:
        """log S with its interval, from how much each pair moves it, and the prompts of the smallest class; None without a class."""
        if not self.classes_in_mix:
            return None
        parts, total_s = [self.pairs[class_] for class_ in self.classes_in_mix], self.total_s
        influence = []
        for part, name in zip(parts, self.classes_in_mix, strict=True):
            u, v = (
                self.weight(name) * mean / total for mean, total in zip(part.mean_s, total_s, strict=True)
            )
            influence.append(mean_of(u * part.log_s[0] - v * part.log_s[1], part.cluster_ids.start)[1])
        known = estimate(
            self.log_ratio, np.concatenate(influence), joined([part.cluster_ids for part in parts])
        )
        doubt = max(part.doubt for part in parts)
        return replace(known, clusters=min(part.prompts for part in parts), doubt=doubt)


def mix_speed_up(
    before: Classes,
    after: Classes,
    *,
    together: int,
    conditions: MeasuringConditions = DEFAULT_CONDITIONS,
    shares: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """An arm against another one over the mix of classes; one with fewer than MIN_PROMPTS prompts has no share if another has them."""
    strata = Strata.of(before, after, shares)
    known = strata.estimate
    means_s = strata.total_s if strata.classes_in_mix else (None, None)
    by_class = [
        {
            "class": class_,
            "n_prompts": own.prompts,
            "share": strata.weight(class_),
            "baseline_tpot_s": own.mean_s[0],
            "treatment_tpot_s": own.mean_s[1],
        }
        for class_, own in strata.pairs.items()
    ]
    return {
        **as_ratio(known and replace(known, together=together), conditions),
        "together": together,
        "baseline_tpot_s": means_s[0],
        "treatment_tpot_s": means_s[1],
        "classes": by_class,
    }
