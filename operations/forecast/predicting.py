"""The forecast itself: acceptance x step times x prices. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.analyse.advice import Wishes
from benchmark.analyse.advise import advise, forecast
from benchmark.analyse.forecast import StepTimes
from benchmark.analyse.given import survivals
from benchmark.measure import journal
from experiment.cost import arm_usd_per_hour
from experiment.finding import Misuse

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from operations.forecast.step_times import Steps


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Where acceptance comes from: a run of any engine, or a file."""

    run: Path | None = None
    acceptance: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One class of prompts on Trn2; `low` and `high` span the prompts' interval and the bounds of the step times."""

    class_name: str
    tokens_per_step: float
    speed_up: float
    low: float
    high: float
    usd_per_million: float
    usd_per_million_low: float
    usd_per_million_high: float
    baseline_usd_per_million: float

    @property
    def verdict(self) -> str:
        """Whether the whole range lies on one side of 1."""
        if self.low > 1:
            return "pays"
        return "does not pay" if self.high < 1 else "open"


def predict(
    experiment: Experiment, arm: Arm, *, steps: Steps, evidence: Evidence, mix: Mapping[str, float] | None
) -> tuple[Prediction, ...]:
    """Every class of the evidence and, last, their mixture as `all classes` where there are several.

    Raises Misuse, and `benchmark.errors.BenchmarkError` for evidence that cannot be read.
    """
    likely, slow, fast = (
        _rows(arm, evidence, mix, times) for times in (steps.likely, steps.slow, steps.fast)
    )
    together = concurrent_sequences(experiment, arm)
    baseline = _usd_per_million(experiment, experiment.baseline, steps.likely.plain_s, together)
    found = []
    for class_name, row in likely.items():
        low = _least(slow[class_name])
        high = _most(fast[class_name])
        found.append(
            Prediction(
                class_name=class_name,
                tokens_per_step=row["tokens_per_step"],
                speed_up=row["speed_up"],
                low=low,
                high=high,
                usd_per_million=baseline / row["speed_up"],
                usd_per_million_low=baseline / high,
                usd_per_million_high=baseline / low,
                baseline_usd_per_million=baseline,
            )
        )
    return tuple(found)


def concurrent_sequences(experiment: Experiment, arm: Arm) -> int:
    """Sequences that a step decodes at once: the benchmark's largest load, as far as the batch takes it."""
    return min(max(experiment.benchmark.concurrency), arm.serving.max_num_seqs)


def repaid_after_million_tokens(prediction: Prediction, rental_usd: float) -> float | None:
    """Million output tokens after which a rental is earned back by what they then cost less; None when never."""
    saved = prediction.baseline_usd_per_million - prediction.usd_per_million
    return rental_usd / saved if saved > 0 else None


def _rows(
    arm: Arm, evidence: Evidence, mix: Mapping[str, float] | None, times: StepTimes
) -> dict[str, Mapping[str, Any]]:
    """The row of the arm's window, by class."""
    assert arm.speculation is not None
    k = arm.speculation.num_speculative_tokens
    wishes = Wishes(mix=mix, step_times=times, unused_drafts=k + 1 - arm.tokens_per_step)
    said = _advice(evidence, wishes)
    rows: dict[str, Mapping[str, Any]] = {}
    for cell in _one_load(said["cells"]):
        rows[cell["class"]] = _of_window(cell["by_k"], k, where=cell["class"])
    mixes = _one_load(said["mixes"])
    if mixes and len(rows) > 1:
        row = _of_window(mixes[0]["by_k"], k, where="the mixture")
        rows["all classes"] = {**row, "tokens_per_step": _mean_yield(mixes[0]["weights"], rows)}
    return rows


def _advice(evidence: Evidence, wishes: Wishes) -> dict[str, Any]:
    if evidence.run is not None:
        return advise(journal.read(evidence.run), wishes)
    assert evidence.acceptance is not None
    return forecast(survivals(evidence.acceptance), wishes, basis=str(evidence.acceptance))


def _one_load(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of the arm that looked furthest ahead, at its lowest load."""
    if not entries:
        return []
    best = max(entries, key=lambda entry: (len(entry["by_k"]), -(entry["concurrency"] or 0)))
    return [e for e in entries if (e["arm"], e["concurrency"]) == (best["arm"], best["concurrency"])]


def _of_window(by_k: Sequence[Mapping[str, Any]], k: int, *, where: str) -> Mapping[str, Any]:
    found = next((row for row in by_k if row["k"] == k), None)
    if found is None:
        raise Misuse(
            f"{where}: acceptance is known up to k = {len(by_k)}, the arm drafts {k}; measure with k = {k} or more, or "
            "forecast an arm with a smaller window"
        )
    return found


def _mean_yield(weights: Mapping[str, float], rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Tokens per step of mixed traffic: steps add up, weighted by tokens."""
    return 1 / sum(
        weight / float(rows[name]["tokens_per_step"]) for name, weight in weights.items() if weight
    )


def _least(row: Mapping[str, Any]) -> float:
    return float(row["speed_up"] if row["ci_low"] is None else row["ci_low"])


def _most(row: Mapping[str, Any]) -> float:
    return float(row["speed_up"] if row["ci_high"] is None else row["ci_high"])


def _usd_per_million(experiment: Experiment, arm: Arm, tpot_s: float, sequences: int) -> float:
    """Decoding alone: prompts and idle time come on top."""
    tokens_per_hour = sequences / tpot_s * 3600
    return arm_usd_per_hour(experiment, arm) / tokens_per_hour * 1e6
