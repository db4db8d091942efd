"""One arm against the baseline, pair by pair: how much faster, with what certainty.

The speed-up is a ratio of geometric means over pairs of requests that had the same prompt and nonce.
Requests of one prompt resemble each other, so the interval is taken over prompts, not over requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from benchmark.analyse.stats import Estimate, clustered_mean
from benchmark.analyse.values import request_values
from benchmark.measure.records import RequestRecord
from benchmark.metrics import Metric
from benchmark.plan import Arm

Verdict = Literal["faster", "slower", "equivalent", "not shown", "too few"]

MIN_PROMPTS = 6
"""Below this a t interval over prompts says more about luck than about the arms."""
EQUIVALENT = (0.95, 1.05)
"""An interval inside this range is a difference that nobody would feel."""
METHOD = "95 % interval: Student t on per-prompt mean log ratios, mapped back"

Pairs = Sequence[tuple[RequestRecord, RequestRecord]]


def pairs_of(baseline: Sequence[RequestRecord], treatment: Sequence[RequestRecord]) -> Pairs:
    """Records of the two arms that belong together and were both answered."""
    by_pair = {record.pair_id: record for record in treatment if record.error is None}
    return [(r, by_pair[r.pair_id]) for r in baseline if r.error is None and r.pair_id in by_pair]


def compare(metric: Metric, arms: tuple[Arm, Arm], pairs: Pairs) -> dict[str, Any]:
    """Speed-up of the second of `arms` over the first by `metric`; above 1 the second is better."""
    estimate = clustered_mean(ratios) if (ratios := _log_ratios(metric, arms, pairs)) else None
    return {
        "baseline": arms[0].name,
        "treatment": arms[1].name,
        "metric": metric.name,
        "ratio": math.exp(estimate.mean) if estimate else None,
        "ci_low": _bound(estimate.low) if estimate else None,
        "ci_high": _bound(estimate.high) if estimate else None,
        "n_pairs": estimate.n if estimate else 0,
        "n_prompts": estimate.clusters if estimate else 0,
        "verdict": verdict(estimate),
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


def error_warning(baseline: Sequence[RequestRecord], treatment: Sequence[RequestRecord]) -> str | None:
    """A caution where the arms do not fail alike: only pairs that both answered are compared."""
    rates = [(sum(r.error is not None for r in arm), len(arm)) for arm in (baseline, treatment)]
    (failed_1, all_1), (failed_2, all_2) = rates
    if failed_1 * all_2 == failed_2 * all_1:
        return None
    return (
        f"error rates differ: baseline {failed_1} of {all_1}, treatment {failed_2} of {all_2}; pairs with a "
        "failure are left out, which flatters the arm that fails more"
    )


def output_equality(baseline: str, pairs: Pairs) -> dict[str, Any]:
    """How often both arms wrote the same text, and where, in characters, the other pairs part."""
    partings = sorted(
        _first_difference(one.text or "", other.text or "")
        for one, other in pairs
        if one.text_sha256 != other.text_sha256
    )
    return {
        "baseline": baseline,
        "n_pairs": len(pairs),
        "equal": len(pairs) - len(partings),
        "rate": (len(pairs) - len(partings)) / len(pairs) if pairs else None,
        "first_divergence_chars": partings,
    }


def _first_difference(one: str, other: str) -> int:
    """Index of the first character in which two different texts differ."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def _log_ratios(metric: Metric, arms: tuple[Arm, Arm], pairs: Pairs) -> Mapping[str, list[float]]:
    """By prompt, log(better-direction ratio) of each pair in which both values are known."""
    found: dict[str, list[float]] = {}
    for base, treated in pairs:
        before = request_values(base, arms[0].max_tokens_per_step).get(metric.name)
        after = request_values(treated, arms[1].max_tokens_per_step).get(metric.name)
        if before and after:
            gain = before / after if metric.better == "lower" else after / before
            found.setdefault(base.prompt_id, []).append(math.log(gain))
    return found


def _bound(log_ratio: float | None) -> float | None:
    return None if log_ratio is None else math.exp(log_ratio)
