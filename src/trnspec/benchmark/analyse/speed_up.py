"""The speed-up of an arm over its baseline with its interval: in one class, and over the mix of all classes.

In a class the speed-up is a ratio of geometric means over pairs of requests that had the same prompt and nonce. The mix has an equal
share of the output tokens from every class. Its speed-up is the ratio of the times that these tokens take:

    S = sum(w_c * B_c) / sum(w_c * T_c)        w_c: equal shares; B_c, T_c: exp of the mean log times of class c

Classes are strata with fixed weights (Cochran, Sampling Techniques, 3rd ed., section 5.4). log S is linearised, as a combined
ratio estimate is (section 6.11): a pair of class c moves it by u_c * log b - v_c * log t, where u_c and v_c are the class's shares
of the two sums. Intervals include the variation of prompts, blocks of time and starts of the servers (`trnspec.benchmark.analyse.statistics`).

All verdicts follow one rule: "faster" if the whole interval is above 1.05, "slower" if it is below 0.95, "no difference that matters" if it
is between them, and otherwise "no clear difference". Between two starts of the same servers ratios moved by 4 to 9 % (*measured* on one
H200, tests/data/h200). So within 0.91 to 1.10 the verdict of a run with one start is only about that start, and a run whose load was not
held has no verdict.

The figure of the best of several treatments is biased upward, because it was chosen as the best. So the intervals of m treatments over
the baseline hold together (Bonferroni, 1 - 0.05 / m each). The best differs from another treatment if the interval of that pair excludes
1 at 1 - 0.05 / (m (m - 1) / 2), because the choice of the pair depends on the data. With several baselines there is a best of each one's treatments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from trnspec.benchmark.analyse.requests import Cells, Footing, Requests, size_of
from trnspec.benchmark.analyse.result import Comparison, PaysUpTo, Verdict
from trnspec.benchmark.analyse.statistics import (
    Array,
    Estimate,
    Sources,
    estimate,
    holm,
    joined,
    mean_of,
    of_sample,
)
from trnspec.benchmark.metrics import COMPARED, TPOT, Metric
from trnspec.benchmark.plan import Load

VERDICT_WORDS: Mapping[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "equivalent": "no difference that matters",
    "not shown": "no clear difference",
    "too few": "too few prompts",
    "not judged": "not judged",
}
"""The words for each verdict."""
MIN_PROMPTS = 6
"""With fewer prompts a t interval over prompts is not reliable."""
EQUIVALENT = (0.95, 1.05)
"""Ratios within this range do not matter in practice: an interval inside it means no difference that matters, one outside it a difference."""
BAND = (math.log(EQUIVALENT[0]), math.log(EQUIVALENT[1]))
"""The same range for log ratios."""
SIGNIFICANT = 0.05
STARTS_DIFFER = (0.91, 1.10)
"""A ratio within this range may be an effect of the start of the servers that was measured."""
NOT_HELD = "its load was not held while it was measured, so a ratio that is close to 1 has no verdict"
DEFAULT_FOOTING = Footing()


def comparisons(cells: Cells) -> Iterator[dict[str, Any]]:
    """`comparisons` of a summary: the speed-up of each treatment by each compared metric, above 1 where it is better."""
    for place, arms in product(cells.places, cells.compared):
        base, treated = (cells.of(arm, place) for arm in arms)
        pairs, judged, footing = base.with_(treated), cells.judged(arms, place), cells.footing(place.load)
        names = {"baseline": arms[0].name, "treatment": arms[1].name}
        for metric in COMPARED:
            # An emulator made up the acceptance of an arm: neither ratio nor verdict.
            row = as_ratio(gain_of(pairs, metric) if judged else None, footing)
            row |= {} if judged else {"verdict": "not judged", "n_pairs": len(pairs[0])}
            yield {**place.to_dict(), **names, "metric": metric.name, **row}


def log_gains(pairs: tuple[Requests, Requests], metric: Metric) -> tuple[Array, Sources]:
    """The log(gain) of each pair in which both values are known and not zero. Above 0 the second of the pair is better."""
    before, after = (own.metrics[metric.name] for own in pairs)
    known = (before > 0) & (after > 0)
    gains = np.log(before[known] / after[known])
    return gains if metric.better == "lower" else -gains, pairs[0].sources.of(known)


def gain_of(pairs: tuple[Requests, Requests], metric: Metric = TPOT) -> Estimate | None:
    """The mean log(gain) over pairs with its interval; None without a pair."""
    gains, sources = log_gains(pairs, metric)
    return of_sample(gains, sources) if len(gains) else None


def as_ratio(estimate: Estimate | None, footing: Footing = DEFAULT_FOOTING) -> dict[str, Any]:
    """A log ratio with its interval, mapped back to a ratio. `detectable_ratio` is the speed-up that would get the verdict "faster" in
    80 % of repetitions."""
    code = verdict(estimate, footing)
    if estimate is None:
        return {"verdict": code}
    near = starts_differ(estimate.mean)
    return {
        "ratio": math.exp(estimate.mean),
        "ci_low": mapped_back(estimate.low),
        "ci_high": mapped_back(estimate.high),
        "n_pairs": estimate.n,
        "n_prompts": estimate.clusters,
        "verdict": code,
        "one_start": code in ("faster", "slower") and footing.starts == 1 and near,
        "p_value": estimate.p_value(*BAND) if footing.held or not near else None,
        "detectable_ratio": mapped_back(estimate.detectable, BAND[1]),
    }


def mapped_back(log_ratio: float | None, beyond: float = 0.0) -> float | None:
    """The ratio from its logarithm, which is `beyond` another; None for None."""
    return None if log_ratio is None else math.exp(log_ratio + beyond)


def starts_differ(log_ratio: float) -> bool:
    """Whether a ratio may be only a difference between two starts of the servers."""
    return STARTS_DIFFER[0] <= math.exp(log_ratio) <= STARTS_DIFFER[1]


def verdict(estimate: Estimate | None, footing: Footing = DEFAULT_FOOTING) -> Verdict:
    """The verdict of a log ratio with its interval: faster or slower if the whole interval is outside of `EQUIVALENT`."""
    if estimate is None or estimate.low is None or estimate.high is None or estimate.clusters < MIN_PROMPTS:
        return "too few"
    if not footing.held and starts_differ(estimate.mean):
        return "not shown"
    if estimate.low > BAND[1]:
        return "faster"
    if estimate.high < BAND[0]:
        return "slower"
    return "equivalent" if BAND[0] <= estimate.low and estimate.high <= BAND[1] else "not shown"


def adjust(comparisons: Sequence[dict[str, Any]]) -> None:
    """Set `p_holm` of comparisons that are read together, and correct their verdicts.

    With this correction, in at most 5 % of runs one of them is faster or slower by chance. Comparisons with too few
    prompts have no verdict and do not count.
    """
    claims = [row for row in comparisons if row["verdict"] not in ("too few", "not judged")]
    for row, p in zip(claims, holm([row["p_value"] for row in claims]), strict=True):
        row["p_holm"] = p
        if row["verdict"] in ("faster", "slower") and (p is None or p >= SIGNIFICANT):
            row |= {"verdict": "not shown", "one_start": False}


def output_equality(baseline: str, pairs: tuple[Requests, Requests]) -> dict[str, Any]:
    """How often both arms wrote the same text, and the positions, in characters, at which the other pairs differ first. With greedy
    decoding speculation must not change the text.

    Pairs without a recorded text are left out, and so are pairs of arms that share a server, because their nonces differ.
    """
    both = zip(pairs[0].answers, pairs[1].answers, strict=True)
    known = [(a, b) for a, b in both if a.text_sha256 and b.text_sha256 and a.nonce == b.nonce]
    differences = sorted(
        first_difference(a.text or "", b.text or "") for a, b in known if a.text_sha256 != b.text_sha256
    )
    equal = len(known) - len(differences)
    return {
        "baseline": baseline,
        "n_pairs": len(known),
        "equal": equal,
        "rate": equal / len(known) if known else None,
        "first_divergence_chars": differences,
    }


def first_difference(text: str, other: str) -> int:
    """The index of the first different character of two texts; the length of the shorter text if the longer one only continues it."""
    for index, (left, right) in enumerate(zip(text, other, strict=False)):
        if left != right:
            return index
    return min(len(text), len(other))


Classes = Mapping[str, Requests]
"""The requests of an arm under one load, by class."""


def mixes(cells: Cells) -> Iterator[dict[str, Any]]:
    """`mix` of a result: each treatment against its baseline, by load."""
    for load in cells.plan.loads:
        footing, known = cells.footing(load), _mixed(cells, load)
        for base, arm in cells.compared:
            row = over(known[base.name], known[arm.name], together=len(cells.compared), footing=footing)
            where = {"class": None, **size_of(load), "baseline": base.name, "treatment": arm.name}
            yield where | row | ({} if cells.mixes(arm) else {"verdict": "not judged"})


def _mixed(cells: Cells, load: Load) -> dict[str, Classes]:
    """The requests of each arm; none of an arm whose mix is not known."""
    return {arm.name: cells.known(arm, load) if cells.mixes(arm) else {} for arm in cells.plan.arms}


def bests(cells: Cells) -> Iterator[dict[str, Any]]:
    """`best` of a result: of several treatments with one baseline, the best by load and class (null: the mix)."""
    treated: dict[str, list[str]] = {}
    for base, arm in cells.compared:
        treated.setdefault(base.name, []).append(arm.name)
    several = {base: arms for base, arms in treated.items() if len(arms) > 1}
    for load, (base, arms), class_ in product(cells.plan.loads, several.items(), (None, *cells.plan.classes)):
        whole = (
            {arm.name: cells.known(arm, load) for arm in cells.plan.arms} if class_ else _mixed(cells, load)
        )
        known = {
            arm: {name: one for name, one in own.items() if class_ in (None, name)}
            for arm, own in whole.items()
        }
        best, *others = ranked(known, base, arms) or [""]
        pairs, footing = math.comb(len(arms), 2), cells.footing(load)
        rest = [
            {"arm": arm, **over(known[arm], known[best], together=pairs, footing=footing)} for arm in others
        ]
        if others:
            yield {"class": class_, **size_of(load), "baseline": base, "arm": best, "over": rest}


def pays_up_to(rows: Sequence[Comparison]) -> Iterator[PaysUpTo]:
    """With several loads, in each class and over the mix: the last load at which a treatment is faster, and the first load above that at
    which it is slower."""
    by_pair: dict[tuple[Any, ...], list[tuple[float, Verdict]]] = {}
    for row in rows:
        sides = row.class_, row.baseline, row.treatment, "concurrency" if row.concurrency else "rate"
        by_pair.setdefault(sides, []).append((row.load.size, row.verdict))
    for (class_, baseline, treatment, by), unordered in by_pair.items():
        loads = sorted(unordered)
        if len(loads) > 1 and {verdict for _, verdict in loads} - {"too few", "not judged"}:
            pays = max((load for load, verdict in loads if verdict == "faster"), default=None)
            slower = (load for load, verdict in loads if verdict == "slower" and load > (pays or 0))
            names = {"class_": class_, "baseline": baseline, "treatment": treatment, "by": by}
            yield PaysUpTo(**names, pays=pays, costs=next(slower, None), loads=loads)


def ranked(classes: Mapping[str, Classes], base: str, arms: Sequence[str]) -> list[str]:
    """The arms, the fastest first; only those for which the largest number of classes is known."""
    known = {arm: Strata.of(classes[base], classes[arm]) for arm in arms}
    maximum = max((len(strata.inside) for strata in known.values()), default=0)
    able = [arm for arm in arms if known[arm].inside and len(known[arm].inside) == maximum]
    return sorted(able, key=lambda arm: -known[arm].log_ratio)


class Stratum(NamedTuple):
    """The pairs of two arms in one class: the logs of their times per token, and the means of these, mapped back to times."""

    log_s: tuple[Array, Array]
    sources: Sources
    mean_s: tuple[float, float]
    """Geometric means; with several starts, the mean over starts."""
    prompts: int


@dataclass(frozen=True)
class Strata:
    """The pairs of two arms by class; calculates log S of the mix."""

    pairs: Mapping[str, Stratum]

    @classmethod
    def of(cls, before: Classes, after: Classes) -> Strata:
        """The strata of a baseline and a treatment."""
        strata = {}
        for class_ in (name for name in before if name in after):
            pairs = before[class_].with_(after[class_])
            times = tuple(own.metrics[TPOT.name] for own in pairs)
            known = (times[0] > 0) & (times[1] > 0)
            if known.any():
                sources = pairs[0].sources.of(known)
                first, second = (np.log(own[known]) for own in times)
                means = tuple(math.exp(mean_of(own, sources.start)[0]) for own in (first, second))
                prompts = len(np.unique(sources.prompt))
                strata[class_] = Stratum((first, second), sources, (means[0], means[1]), prompts)
        return cls(strata)

    @cached_property
    def inside(self) -> list[str]:
        """Classes with a share: those with MIN_PROMPTS prompts."""
        return [class_ for class_, own in self.pairs.items() if own.prompts >= MIN_PROMPTS]

    @property
    def total_s(self) -> tuple[float, float]:
        """The sums of the means of both arms, over the classes with a share."""
        before, after = zip(*(self.pairs[class_].mean_s for class_ in self.inside), strict=True)
        return math.fsum(before), math.fsum(after)

    @property
    def log_ratio(self) -> float:
        """log S."""
        before, after = self.total_s
        return math.log(before / after)

    @property
    def estimate(self) -> Estimate | None:
        """log S with its interval, from how much each pair moves it; None without a class that has a share."""
        if not self.inside:
            return None
        parts, total_s = [self.pairs[class_] for class_ in self.inside], self.total_s
        moves = []
        for part in parts:
            u, v = (mean / total for mean, total in zip(part.mean_s, total_s, strict=True))
            moves.append(mean_of(u * part.log_s[0] - v * part.log_s[1], part.sources.start)[1])
        return estimate(self.log_ratio, np.concatenate(moves), joined([part.sources for part in parts]))


def over(
    before: Classes, after: Classes, *, together: int, footing: Footing = DEFAULT_FOOTING
) -> dict[str, Any]:
    """An arm against another one over the mix of classes; those with fewer than MIN_PROMPTS prompts have no share."""
    strata = Strata.of(before, after)
    inside, known = strata.inside, strata.estimate
    means_s = [total / len(inside) for total in strata.total_s] if inside else [None, None]
    by_class = [
        {
            "class": class_,
            "n_prompts": own.prompts,
            "share": (class_ in inside) / max(len(inside), 1),
            "baseline_tpot_s": own.mean_s[0],
            "treatment_tpot_s": own.mean_s[1],
        }
        for class_, own in strata.pairs.items()
    ]
    return {
        **as_ratio(known and replace(known, together=together), footing),
        "together": together,
        "baseline_tpot_s": means_s[0],
        "treatment_tpot_s": means_s[1],
        "classes": by_class,
    }
