"""One arm against the baseline, pair by pair: how much faster, with what certainty.

The speed-up is a ratio of geometric means over pairs of requests that had the same prompt and nonce. Its interval holds what
prompts, blocks of time and starts of the servers do to it (`benchmark.analyse.sources`).

One rule for every verdict on a speed-up: faster needs the whole interval above 1.05, slower below 0.95; inside these is no
difference that matters, all else is not clear. Between two starts of the same servers ratios moved by 4 to 9 % (*measured* on one
H200, tests/data/h200): so within 0.91 to 1.10 a run of one start speaks of that start alone, and one whose load was not held
says nothing.

Whether two arms wrote the same text: with greedy decoding speculation must not change a word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmark.analyse.sources import Sample, Source, of_sample
from benchmark.analyse.stats import Estimate, holm
from benchmark.analyse.values import Records, request_values
from benchmark.measure.divergence import first_difference
from benchmark.measure.records import RequestRecord
from benchmark.metrics import COMPARED
from benchmark.plan import Arm

Verdict = Literal["faster", "slower", "equivalent", "not shown", "too few", "not judged"]
VERDICT_WORDS: Mapping[str, str] = {
    "faster": "faster",
    "slower": "slower",
    "equivalent": "no difference that matters",
    "not shown": "no clear difference",
    "too few": "too few prompts",
    "not judged": "not judged",
}
"""What people read where a summary has its code."""

MIN_PROMPTS = 6
"""Below this a t interval over prompts says more about luck than about the arms."""
EQUIVALENT = (0.95, 1.05)
"""What nobody would feel: an interval inside this range is no difference that matters, one wholly beyond it is a difference."""
BAND = (math.log(EQUIVALENT[0]), math.log(EQUIVALENT[1]))
"""The same of log ratios."""
SIGNIFICANT = 0.05
STARTS_DIFFER = (0.91, 1.10)
"""Within these a ratio may be one of the start of the servers that was measured."""

Pairs = Sequence[tuple[RequestRecord, RequestRecord]]
NOT_HELD = "its load was not held while it was measured, so a ratio that is close to 1 has no verdict"
SourceOf = Callable[[RequestRecord], Source]
LogRatios = Sample
"""The logarithm of the speed-up of each pair."""


@dataclass(frozen=True, kw_only=True)
class Footing:
    """What a comparison rests on."""

    held: bool = True
    """Whether the load was held while it was measured, or was the recorded one."""
    starts: int = 1
    """Of the servers."""


SOLID = Footing()


def method(starts: int) -> str:
    """How intervals were made, in words."""
    return f"95 % interval: Student t over prompts and {'starts' if starts > 1 else 'blocks'}, mapped back from log ratios"


def pairs_of(baseline: Records, treatment: Records) -> Pairs:
    """Records of the two arms that belong together and were both answered."""
    by_pair = {record.pair_id: record for record in treatment if record.error is None}
    return [(r, by_pair[r.pair_id]) for r in baseline if r.error is None and r.pair_id in by_pair]


def compare(
    arms: tuple[Arm, Arm],
    pairs: Pairs,
    source_of: SourceOf,
    *,
    judged: bool = True,
    footing: Footing = SOLID,
) -> list[dict[str, Any]]:
    """Speed-up of the second of `arms` over the first by each compared metric; above 1 the second is better."""
    gains = log_ratios(arms, pairs, source_of)
    names = {"baseline": arms[0].name, "treatment": arms[1].name}
    return [
        {**names, "metric": metric.name, **result(gains[metric.name], judged=judged, footing=footing)}
        | ({} if judged else {"n_pairs": len(pairs)})
        for metric in COMPARED
    ]


def result(log_ratios: LogRatios, *, judged: bool, footing: Footing = SOLID) -> dict[str, Any]:
    """What log ratios say, mapped back to a ratio.

    Not `judged`, there is neither ratio nor verdict: what an emulator made up about an arm says nothing.
    """
    if not judged:
        return {**said(None), "verdict": "not judged"}
    return said(of_sample(log_ratios) if log_ratios else None, footing)


def said(estimate: Estimate | None, footing: Footing = SOLID) -> dict[str, Any]:
    """A log ratio with its interval, mapped back to a ratio."""
    code = verdict(estimate, footing)
    claims = estimate is not None and (footing.held or not starts_differ(estimate.mean))
    return {
        "ratio": math.exp(estimate.mean) if estimate else None,
        "ci_low": mapped_back(estimate.low) if estimate else None,
        "ci_high": mapped_back(estimate.high) if estimate else None,
        "n_pairs": estimate.n if estimate else 0,
        "n_prompts": estimate.clusters if estimate else 0,
        "verdict": code,
        "one_start": estimate is not None and of_one_start(code, estimate.mean, footing),
        "p_value": estimate.p_value(*BAND) if estimate and claims else None,
        "p_holm": None,
        "verdict_holm": None,
        "detectable_ratio": _detectable(estimate) if estimate else None,
    }


def starts_differ(log_ratio: float) -> bool:
    """Whether starts of the servers differ by as much."""
    return STARTS_DIFFER[0] <= math.exp(log_ratio) <= STARTS_DIFFER[1]


def of_one_start(code: str, log_ratio: float, footing: Footing) -> bool:
    """Whether a verdict is about the one start that was measured."""
    return code in ("faster", "slower") and footing.starts == 1 and starts_differ(log_ratio)


def _detectable(estimate: Estimate) -> float | None:
    """The speed-up that would be called faster in 80 % of repetitions."""
    return None if estimate.detectable is None else math.exp(BAND[1] + estimate.detectable)


def verdict(estimate: Estimate | None, footing: Footing = SOLID) -> Verdict:
    """What a log ratio with its interval shows: faster or slower where all of the interval is beyond `EQUIVALENT`."""
    if estimate is None or estimate.low is None or estimate.high is None or estimate.clusters < MIN_PROMPTS:
        return "too few"
    if not footing.held and starts_differ(estimate.mean):
        return "not shown"
    if sign := beyond(estimate.low, estimate.high):
        return "faster" if sign > 0 else "slower"
    return "equivalent" if within(estimate.low, estimate.high) else "not shown"


def beyond(low: float, high: float) -> int:
    """1 where an interval of a log ratio is wholly above the band of no difference, -1 where it is below, else 0."""
    return (low > BAND[1]) - (high < BAND[0])


def within(low: float, high: float) -> bool:
    """Whether an interval of a log ratio lies inside the band of no difference."""
    return BAND[0] <= low and high <= BAND[1]


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


def log_ratios(
    arms: tuple[Arm, Arm], pairs: Pairs, source_of: SourceOf
) -> dict[str, list[tuple[Source, float]]]:
    """By compared metric, log(gain) of each pair in which both values are known and not zero; above 0 the second of `arms` is
    better."""
    found: dict[str, list[tuple[Source, float]]] = {metric.name: [] for metric in COMPARED}
    for base, treated in pairs:
        before = request_values(base, arms[0].max_tokens_per_step)
        after = request_values(treated, arms[1].max_tokens_per_step)
        source = source_of(base)
        for metric in COMPARED:
            one, other = before.get(metric.name), after.get(metric.name)
            if one and other:
                gain = math.log(one / other if metric.better == "lower" else other / one)
                found[metric.name].append((source, gain))
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
