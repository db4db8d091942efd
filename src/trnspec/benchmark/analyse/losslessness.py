"""Whether a treatment changes greedy answers: how often its answers differ from those of the baseline, compared with how often the
baseline differs from itself.
"""

from __future__ import annotations

from typing import Any

from trnspec.benchmark.analyse.result import Losslessness
from trnspec.benchmark.analyse.speed_up import SIGNIFICANT
from trnspec.benchmark.analyse.statistics import fisher_more, holm, wilson
from trnspec.benchmark.measure.journal import RawRun
from trnspec.benchmark.measure.repeats import answers_of, same_text


def losslessness(raw: RawRun) -> Losslessness | None:
    """`losslessness` of a result; None if decoding is not greedy, or no pair can be compared."""
    plan, by_arm = raw.plan, {arm: answers_of(arm, raw.requests) for arm in raw.plan.baselines}
    treatments: list[dict[str, Any]] = []
    for arm, base in ((arm, base) for arm, base in plan.baselines.items() if arm != base):
        if same := same_text(by_arm[base], by_arm[arm]):
            treatments.append({"treatment": arm, **_rate(same)})
    if not plan.greedy or not treatments:
        return None
    first = by_arm[plan.baseline]
    second = [again for again in raw.repeats if again.text is not None and again.pair_id in first]
    itself = _rate([again.text == first[again.pair_id].text for again in second]) if second else None
    p_values = [
        fisher_more(row["differing"], row["n_pairs"], itself["differing"], itself["n_pairs"])
        if itself
        else None
        for row in treatments
    ]
    for row, p in zip(treatments, holm(p_values), strict=True):
        row |= {"p_holm": p, "more_than_baseline": None if p is None else p < SIGNIFICANT}
    baseline = {"arm": plan.baseline, **itself} if itself else None
    return Losslessness.model_validate({"baseline": baseline, "treatments": treatments})


def _rate(same: list[bool]) -> dict[str, Any]:
    """How many pairs differ, with the interval of their share."""
    n, differing = len(same), same.count(False)
    low, high = wilson(differing, n)
    return {"n_pairs": n, "equal": n - differing, "differing": differing, "ci_low": low, "ci_high": high}
