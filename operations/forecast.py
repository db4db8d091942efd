"""`forecast`: predicted speed-up and cost on Trn2, from acceptance measured anywhere, before a node is rented."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.analyse.acceptance.advice import advise, forecast
from benchmark.analyse.acceptance.samples import Wishes
from benchmark.analyse.acceptance.windows import StepTimes, step_times
from benchmark.analyse.acceptance.yields import survivals
from benchmark.commands import option_types
from benchmark.errors import BenchmarkError
from benchmark.measure import journal
from experiment.catalogue.published import DRAFT, PLAIN_TPOT_S, SPEED_UP, TARGET, TENSOR_PARALLEL, WINDOW
from experiment.cost import RunPrice, arm_usd_per_hour, run_price
from experiment.finding import Misuse
from operations import pricing
from operations.options import add_json, as_json, experiment_of, hours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiment import Arm
    from experiment.catalogue.models import Model

if TYPE_CHECKING:
    from experiment import Arm, Experiment


FITTED_STEP_RATIO = 2.11
"""A step with 7 drafts over a plain one, as the emulator is fitted to that result with nearly all drafts accepted
(`lab/emulator/timings.py`); between the bounds, and no more certain than they are."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Step times as they likely are, and at both ends of what is possible."""

    likely: StepTimes
    slow: StepTimes
    fast: StepTimes
    origin: str


def published(arm: Arm) -> Steps:
    """For the pair of which a result is published.

    Raises Misuse for any other: nothing is guessed from model to model.
    """
    assert arm.speculation is not None
    target, draft = arm.target.model, arm.speculation.draft.model
    if (target.name, draft.name) != (
        TARGET,
        DRAFT,
    ) or arm.serving.tensor_parallel != TENSOR_PARALLEL:
        raise Misuse(
            f"{arm.name}: no step times of {target.name} with {draft.name} at TP {arm.serving.tensor_parallel} are "
            "published; give --step-times 0=S,K=S, seconds of a plain step and of one with K drafts"
        )
    return Steps(
        likely=_with_draft_cost((FITTED_STEP_RATIO - 1) / WINDOW),
        slow=_with_draft_cost(most_draft_cost()),
        fast=_with_draft_cost(least_draft_cost(target, draft)),
        origin=f"a plain step of {PLAIN_TPOT_S * 1000:.0f} ms is quoted (AWS Machine Learning Blog, April 2026); "
        "a draft costs at least its share of the weights, at most what the published "
        f"{SPEED_UP:.1f} at k = {WINDOW} leaves room for",
    )


def measured(points: Mapping[int, float]) -> Steps:
    """From somebody's own seconds of a step by window, 0 among them; no bounds are put around them."""
    times = step_times(points)
    return Steps(likely=times, slow=times, fast=times, origin="step times as given")


def least_draft_cost(target: Model, draft: Model) -> float:
    """In plain steps: decoding reads all weights once a step, so a draft cannot cost less than its share of them."""
    return draft.parameters / target.parameters


def most_draft_cost() -> float:
    """In plain steps: k drafts yield k tokens at most, so (1 + k * d) <= k / speed-up."""
    return (WINDOW / SPEED_UP - 1) / WINDOW


def _with_draft_cost(cost: float) -> StepTimes:
    plain = PLAIN_TPOT_S
    return StepTimes(plain_s=plain, verify_s=plain, draft_s=cost * plain)


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


HELP = "predict speed-up and cost on Trn2 from acceptance measured anywhere; needs neither AWS nor Trn2"


def configure(parser: argparse.ArgumentParser) -> None:
    """Evidence, and what it is applied to."""
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT", help="the experiment file")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--run", type=Path, metavar="DIR", help="a run of this benchmark against any vLLM that speculates"
    )
    source.add_argument(
        "--acceptance",
        type=Path,
        metavar="FILE",
        help="a summary.json, or JSON {class: [share of steps in which draft 1, 2, ... was accepted]}",
    )
    parser.add_argument("--arm", metavar="NAME", help="which arm (default: the first that speculates)")
    parser.add_argument(
        "--step-times",
        type=_points,
        metavar="0=S,K=S",
        help="seconds of a plain step and of one with K drafts on Trn2, instead of the published ones",
    )
    parser.add_argument(
        "--mix", type=_mix, metavar="CLASS=WEIGHT,...", help="shares of the output tokens (default: equal)"
    )
    parser.add_argument(
        "--hours",
        type=hours,
        metavar="H",
        help="Trn2 hours of the run that finds out (default: predicted, as `cost` says)",
    )
    add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Exit 0 when it pays for some class or that is open, 1 when it pays for none, 2 for what cannot be forecast."""
    experiment = experiment_of(options.experiment, verb="forecast")
    arm = _arm(experiment, options.arm)
    steps = measured(options.step_times) if options.step_times else published(arm)
    evidence = Evidence(run=options.run, acceptance=options.acceptance)
    try:
        predictions = predict(experiment, arm, steps=steps, evidence=evidence, mix=options.mix)
    except BenchmarkError as error:
        raise Misuse(str(error)) from None
    rental = run_price(experiment, hours=options.hours, items=pricing.of_running(experiment))
    if options.json:
        print(as_json(_as_json(experiment, arm, steps, predictions, rental)))
    else:
        print("\n".join(_as_text(experiment, arm, steps, predictions, rental)))
    return 1 if all(one.verdict == "does not pay" for one in predictions) else 0


def _points(text: str) -> dict[int, float]:
    points = {}
    for item in text.split(","):
        k, _, seconds = item.partition("=")
        points[option_types.whole(k)] = option_types.number(seconds)
    if 0 not in points or len(points) < 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} must name plain decoding (0) and a window, for example 0=0.045,7=0.095"
        )
    return points


def _mix(text: str) -> dict[str, float]:
    return {name: option_types.number(weight) for name, weight in map(option_types.named, text.split(","))}


def _arm(experiment: Experiment, name: str | None) -> Arm:
    speculating = [arm for arm in experiment.arms if arm.speculation is not None]
    if name is None:
        return speculating[0]
    for arm in speculating:
        if arm.name == name:
            return arm
    known = ", ".join(arm.name for arm in speculating)
    raise Misuse(f"--arm {name}: {experiment.name} has no such arm that speculates; it has {known}")


def _as_json(
    experiment: Experiment, arm: Arm, steps: Steps, predictions: Sequence[Prediction], rental: RunPrice
) -> dict[str, Any]:
    return {
        "schema": 1,
        "origin": "predicted",
        "experiment": experiment.name,
        "arm": arm.name,
        "step_times": steps.origin,
        "rental_usd": round(rental.usd, 2),
        "classes": [
            {
                **asdict(one),
                "verdict": one.verdict,
                "repaid_after_million_tokens": repaid_after_million_tokens(one, rental.usd),
            }
            for one in predictions
        ],
    }


def _as_text(
    experiment: Experiment,
    arm: Arm,
    steps: Steps,
    predictions: Sequence[Prediction],
    rental: RunPrice,
) -> Iterator[str]:
    assert arm.speculation is not None
    yield (
        f"PREDICTED for {arm.name} of {experiment.name} (k = {arm.speculation.num_speculative_tokens}) on "
        f"{experiment.instance.name}, {concurrent_sequences(experiment, arm)} at a time; nothing ran on Trn2."
    )
    yield f"Step times: {steps.origin}."
    yield ""
    yield f"{'class':<16}  {'tok/step':>8}  {'speed-up':>20}  {'$/M tokens':>24}  {'baseline':>8}  verdict"
    for one in predictions:
        gain = f"{one.speed_up:.2f} [{one.low:.2f}, {one.high:.2f}]"
        price = f"{one.usd_per_million:.2f} [{one.usd_per_million_low:.2f}, {one.usd_per_million_high:.2f}]"
        yield (
            f"{one.class_name[:16]:<16}  {one.tokens_per_step:>8.2f}  {gain:>20}  {price:>24}  "
            f"{one.baseline_usd_per_million:>8.2f}  {one.verdict}"
        )
    yield ""
    yield "Range: the prompts' interval, where known, at the slowest and the fastest step that is possible."
    yield "$/M: decoding alone at list prices, dated in `experiment check`; prompts and idle time come on top."
    yield f"To find out: a run of {rental.hours:.2f} Trn2 hours is ${rental.usd:.2f}{_repaid(predictions[-1], rental.usd)}."


def _repaid(whole: Prediction, rental: float) -> str:
    millions = repaid_after_million_tokens(whole, rental)
    if millions is None:
        return f", which {whole.class_name} does not earn back"
    return f", earned back after {millions:.1f} million output tokens of {whole.class_name}"
