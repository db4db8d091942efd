"""`forecast`: predicted speed-up and cost on Trn2, from acceptance measured anywhere, before a node is rented."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.errors import BenchmarkError
from benchmark.verbs import arguments
from experiment.cost import RunPrice, run_price
from experiment.finding import Misuse
from operations import prices
from operations.forecast.predicting import (
    Evidence,
    Prediction,
    concurrent_sequences,
    predict,
    repaid_after_million_tokens,
)
from operations.forecast.step_times import Steps, measured, published
from operations.options import add_json, as_json, experiment_of, hours

if TYPE_CHECKING:
    from experiment import Arm, Experiment

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
    rental = run_price(experiment, hours=options.hours, items=prices.of_running(experiment))
    if options.json:
        print(as_json(_as_json(experiment, arm, steps, predictions, rental)))
    else:
        print("\n".join(_as_text(experiment, arm, steps, predictions, rental)))
    return 1 if all(one.verdict == "does not pay" for one in predictions) else 0


def _points(text: str) -> dict[int, float]:
    points = {}
    for item in text.split(","):
        k, _, seconds = item.partition("=")
        points[arguments.whole(k)] = arguments.number(seconds)
    if 0 not in points or len(points) < 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} must name plain decoding (0) and a window, for example 0=0.045,7=0.095"
        )
    return points


def _mix(text: str) -> dict[str, float]:
    return {name: arguments.number(weight) for name, weight in map(arguments.named, text.split(","))}


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
