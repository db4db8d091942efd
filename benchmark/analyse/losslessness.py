"""Whether a treatment changes greedy answers: its differing pairs by verdict, compared with how often the baseline differs from
itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmark.analyse.comparison import SIGNIFICANT
from benchmark.analyse.stats import fisher_more, holm, wilson
from benchmark.measure.divergence import (
    MARGIN_NATS,
    Again,
    Asked,
    Case,
    Verdict,
    answers_of,
    cases,
    is_pair,
    verdict,
)
from benchmark.measure.journal import RawRun

JudgedPairs = Mapping[tuple[str, str], tuple[Case, Verdict]]
"""Two different answers and the verdict about them, by treatment and pair."""


def judged(raw: RawRun) -> JudgedPairs:
    """All differing pairs of a run, including those of the baseline with itself."""
    asked: dict[tuple[str, str], list[Asked]] = {}
    for line in raw.closer_look:
        if isinstance(line, Asked):
            asked.setdefault((line.treatment, line.pair_id), []).append(line)
    differing = {
        (c.treatment, c.ours.pair_id): c for c in cases(raw.by_nodes.requests, raw.closer_look, raw.plan)
    }
    return {key: (case, verdict(case, asked.get(key, ()))) for key, case in differing.items()}


def counted(verdicts: Iterable[Verdict]) -> dict[str, int]:
    names = Counter(verdict.name for verdict in verdicts)
    return {"near_ties": names["near-tie"], "faults": names["fault"], "cannot_tell": names["cannot tell"]}


def losslessness(raw: RawRun, known: JudgedPairs) -> dict[str, Any] | None:
    """`losslessness` of a summary; None if decoding is not greedy, or no pair can be compared."""
    plan, requests = raw.plan, raw.by_nodes.requests
    by_arm: dict[str, list[Verdict]] = {}
    for (arm, _), (_, one) in known.items():
        by_arm.setdefault(arm, []).append(one)
    first = answers_of(plan.baseline, requests)
    second = sum(isinstance(a, Again) and a.text is not None and a.pair_id in first for a in raw.closer_look)
    treatments: list[dict[str, Any]] = []
    for arm, base in ((arm, base) for arm, base in plan.baselines.items() if arm != base):
        ours, pairs = answers_of(base, requests), answers_of(arm, requests).items()
        if n := sum(pair in ours and is_pair(ours[pair], other) for pair, other in pairs):
            treatments.append({"treatment": arm, **_rate(by_arm.get(arm, ()), n)})
    if not plan.greedy or not treatments:
        return None
    itself = _rate(by_arm.get(plan.baseline, ()), second)
    p_values = [
        fisher_more(row["differing"], row["n_pairs"], itself["differing"], second) if second else None
        for row in treatments
    ]
    for row, p in zip(treatments, holm(p_values), strict=True):
        row |= {"p_holm": p, "more_than_baseline": None if p is None else p < SIGNIFICANT}
    described = [
        {
            "treatment": case.treatment,
            "pair_id": case.ours.pair_id,
            "common_chars": case.common,
            "verdict": one.name,
            "why": one.why,
            "gap_nats": one.gap_nats,
            "tokens": one.tokens,
        }
        for case, one in known.values()
    ]
    baseline = {"arm": plan.baseline, **itself} if second else None
    return {"margin_nats": MARGIN_NATS, "baseline": baseline, "treatments": treatments, "cases": described}


def _rate(verdicts: Sequence[Verdict], n: int) -> dict[str, Any]:
    """How many of `n` pairs differ, with the interval of their share, and their verdicts."""
    low, high = wilson(len(verdicts), n)
    ties = [one.gap_nats for one in verdicts if one.name == "near-tie" and one.gap_nats is not None]
    return {
        "n_pairs": n,
        "equal": n - len(verdicts),
        "differing": len(verdicts),
        "ci_low": low,
        "ci_high": high,
        **counted(verdicts),
        "reasons": dict(Counter(verdict.why for verdict in verdicts if verdict.why)),
        "widest_near_tie_nats": max(ties, default=None),
    }
