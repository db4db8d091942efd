"""One arm against the baseline, pair by pair: how much faster, with what certainty.

The speed-up is a ratio of geometric means over pairs of requests that had the same prompt and nonce.
Requests of one prompt resemble each other, so the interval is taken over prompts, not over requests.

Whether two arms wrote the same text: with greedy decoding speculation must not change a word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from benchmark.analyse.stats import Estimate, clustered_mean, holm
from benchmark.analyse.values import Records, request_values
from benchmark.measure.divergence import first_difference
from benchmark.measure.records import RequestRecord
from benchmark.metrics import COMPARED
from benchmark.plan import Arm

Verdict = Literal["faster", "slower", "equivalent", "not shown", "too few", "not judged"]
VERDICT_WORDS: Mapping[str, str] = {
    "faster": "faster",
    "slower": "slower",
    "equivalent": "no difference",
    "not shown": "no clear difference",
    "too few": "too few prompts",
    "not judged": "not judged",
}
"""What people read where a summary has its code."""

MIN_PROMPTS = 6
"""Below this a t interval over prompts says more about luck than about the arms."""
EQUIVALENT = (0.95, 1.05)
"""An interval inside this range is a difference that nobody would feel."""
SIGNIFICANT = 0.05
METHOD = "95 % interval: Student t on per-prompt mean log ratios, mapped back"

Pairs = Sequence[tuple[RequestRecord, RequestRecord]]
LogRatios = Mapping[str, Sequence[float]]
"""By prompt, the logarithm of the speed-up of each pair."""


def pairs_of(baseline: Records, treatment: Records) -> Pairs:
    """Records of the two arms that belong together and were both answered."""
    by_pair = {record.pair_id: record for record in treatment if record.error is None}
    return [(r, by_pair[r.pair_id]) for r in baseline if r.error is None and r.pair_id in by_pair]


def compare(arms: tuple[Arm, Arm], pairs: Pairs, *, judged: bool = True) -> list[dict[str, Any]]:
    """Speed-up of the second of `arms` over the first by each compared metric; above 1 the second is better."""
    gains = log_ratios(arms, pairs)
    names = {"baseline": arms[0].name, "treatment": arms[1].name}
    return [
        {**names, "metric": metric.name, **result(gains[metric.name], judged=judged)}
        | ({} if judged else {"n_pairs": len(pairs)})
        for metric in COMPARED
    ]


def result(log_ratios: LogRatios, *, judged: bool) -> dict[str, Any]:
    """What log ratios say, mapped back to a ratio.

    Not `judged`, there is neither ratio nor verdict: what an emulator made up about an arm says nothing.
    """
    if not judged:
        return {**said(None), "verdict": "not judged"}
    return said(clustered_mean(log_ratios) if log_ratios else None)


def said(estimate: Estimate | None) -> dict[str, Any]:
    """A log ratio with its interval, mapped back to a ratio."""
    return {
        "ratio": math.exp(estimate.mean) if estimate else None,
        "ci_low": mapped_back(estimate.low) if estimate else None,
        "ci_high": mapped_back(estimate.high) if estimate else None,
        "n_pairs": estimate.n if estimate else 0,
        "n_prompts": estimate.clusters if estimate else 0,
        "verdict": verdict(estimate),
        "p_value": estimate.p_value if estimate else None,
        "p_holm": None,
        "verdict_holm": None,
        "detectable_ratio": mapped_back(estimate.detectable) if estimate else None,
    }


def verdict(estimate: Estimate | None) -> Verdict:
    """What a log ratio with its interval shows. Equivalence goes first: a sure 1 % is still nothing felt."""
    if estimate is None or estimate.low is None or estimate.high is None or estimate.clusters < MIN_PROMPTS:
        return "too few"
    low, high = math.exp(estimate.low), math.exp(estimate.high)
    if EQUIVALENT[0] < low and high < EQUIVALENT[1]:
        return "equivalent"
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "not shown"


def adjust(comparisons: Sequence[dict[str, Any]]) -> None:
    """Fill in `p_holm` and `verdict_holm` of comparisons that are read together.

    One of them is then called faster or slower by chance in at most 5 % of runs. Those with too few prompts
    claim nothing and do not count.
    """
    claims = [found for found in comparisons if found["verdict"] not in ("too few", "not judged")]
    for found, p in zip(claims, holm([found["p_value"] for found in claims]), strict=True):
        sure = found["verdict"] not in ("faster", "slower") or (p is not None and p < SIGNIFICANT)
        found |= {"p_holm": p, "verdict_holm": found["verdict"] if sure else "not shown"}


def error_rates(*arms: Records) -> list[float | None]:
    """The share of failed requests of each."""
    return [sum(r.error is not None for r in arm) / len(arm) if arm else None for arm in arms]


def error_warning(
    baseline: Records, treatment: Records, names: tuple[str, str] = ("baseline", "treatment")
) -> str | None:
    """A caution where the arms do not fail alike: only pairs that both answered are compared."""
    rates = [(sum(r.error is not None for r in arm), len(arm)) for arm in (baseline, treatment)]
    (failed_1, all_1), (failed_2, all_2) = rates
    if failed_1 * all_2 == failed_2 * all_1:
        return None
    return (
        f"error rates differ: {names[0]} {failed_1} of {all_1}, {names[1]} {failed_2} of {all_2}; failures are left "
        "out, which flatters the arm that fails more"
    )


def log_ratios(arms: tuple[Arm, Arm], pairs: Pairs) -> dict[str, dict[str, list[float]]]:
    """By compared metric and prompt, log(gain) of each pair in which both values are known and not zero; above 0 the
    second of `arms` is better."""
    found: dict[str, dict[str, list[float]]] = {metric.name: {} for metric in COMPARED}
    for base, treated in pairs:
        before = request_values(base, arms[0].max_tokens_per_step)
        after = request_values(treated, arms[1].max_tokens_per_step)
        for metric in COMPARED:
            one, other = before.get(metric.name), after.get(metric.name)
            if one and other:
                gain = math.log(one / other if metric.better == "lower" else other / one)
                found[metric.name].setdefault(base.prompt_id, []).append(gain)
    return found


def mapped_back(log_ratio: float | None) -> float | None:
    """The ratio itself."""
    return None if log_ratio is None else math.exp(log_ratio)


def output_equality(baseline: str, pairs: Pairs) -> dict[str, Any]:
    """How often both arms wrote the same, and where, in characters, the other pairs part.

    Pairs without a recorded text are left out, and those of arms that share a server: their nonces differ.
    """
    known = [
        (one, other)
        for one, other in pairs
        if one.text_sha256 and other.text_sha256 and one.nonce == other.nonce
    ]
    partings = sorted(
        first_difference(one.text or "", other.text or "")
        for one, other in known
        if one.text_sha256 != other.text_sha256
    )
    return {
        "baseline": baseline,
        "n_pairs": len(known),
        "equal": len(known) - len(partings),
        "rate": (len(known) - len(partings)) / len(known) if known else None,
        "first_divergence_chars": partings,
    }
