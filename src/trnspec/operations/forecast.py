"""`forecast`: whether renting Trn2 pays, predicted from acceptance measured anywhere, or what acceptance that would need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.window_advice import advise
from trnspec.benchmark.analyse.window_advice import forecast as shares_only
from trnspec.benchmark.commands.arm_options import points, read_by, shares
from trnspec.benchmark.formats.acceptance_files import survivals
from trnspec.benchmark.formats.vllm_bench import ALL
from trnspec.benchmark.measure import journal
from trnspec.benchmark.plan import Plan
from trnspec.core.console import print_json, print_text, warn
from trnspec.core.findings import Misuse, Refusal
from trnspec.core.screen import folded, table, wrapped
from trnspec.core.words import count, listed
from trnspec.experiment import Arm, Experiment, load
from trnspec.experiment.arm_forecast import ArmForecast, as_lines, expected, expected_of
from trnspec.experiment.arm_forecast import as_json as in_json
from trnspec.experiment.cost import node_price, run_hours
from trnspec.experiment.ledger import beside_dollars, ledger, ledger_lines
from trnspec.experiment.run_price import file_prices
from trnspec.experiment.step_time import step_lines
from trnspec.operations import pricing
from trnspec.operations.options import FILE, experiment_argument, json_option
from trnspec.operations.rental import (
    EXAMPLE,
    NOTE,
    WHOLE,
    Prediction,
    Steps,
    break_even,
    decide,
    measured,
    plain_usd,
    predict,
    published,
    without_acceptance,
)


def _tokens(text: str | float) -> float:
    """`500M`: a number, and thousands, millions or billions of it."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)([kMB]?)", str(text))
    value = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[match[2]] if match else 0
    if not 1 <= value <= 1e15:
        raise click.BadParameter(f"{text!r} is not a number of tokens, as in 500M (k, M or B behind it)")
    return value


@click.command()
@experiment_argument
@click.option("--run", type=FILE, metavar="DIR", help="Results of `measure` on any vLLM server that drafts.")
@click.option(
    "--acceptance",
    type=FILE,
    metavar="FILE",
    help="Instead of --run: summary.json, a result of vllm bench serve or aiperf, a speculation profile, or JSON {class: [share of steps that accepted draft 1, 2, ...]}.",
)
@click.option("--arm", "name", metavar="NAME", help="The arm to predict (default: the first that drafts).")
@click.option(
    "--step-times",
    type=read_by(points),
    metavar="0=S,K=S",
    help="Seconds of a plain step and of a step with K drafts on Trn2, instead of published ones.",
)
@click.option(
    "--mix",
    type=read_by(shares),
    metavar="CLASS=SHARE,..",
    help="Share of each class in the output tokens (default: equal).",
)
@click.option(
    "--tokens-per-month",
    type=click.types.FuncParamType(_tokens),
    metavar="N",
    help="Output tokens of your traffic, for example 500M, to say when the run is paid back.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Also print the steps of each arm and all published results."
)
@json_option
def command(
    path: Path,
    run: Path | None,
    acceptance: Path | None,
    name: str | None,
    step_times: dict[int, float] | None,
    mix: dict[str, float] | None,
    tokens_per_month: float | None,
    everything: bool,
    as_json: bool,
) -> int:
    """Predict whether renting Trn2 pays: speed-up and dollars, from acceptance that was measured anywhere and from dated prices.

    It needs neither an AWS account nor a Trn2 node. Without --run and --acceptance it says which acceptance drafting needs. Exit 0
    if drafting pays or may pay for a class, 1 if it pays for none, 2 if nothing can be predicted.
    """
    if run and acceptance:
        raise click.UsageError("--run and --acceptance: give one of them")
    if mix and not (run or acceptance):
        why = f"weighs classes whose acceptance is known; give --run {EXAMPLE}, or --acceptance FILE"
        raise click.UsageError(f"--mix: {why}")
    experiment = load(path)
    try:
        arm = _arm(experiment, name)
        own = expected_of(experiment, arm)
        steps = measured(step_times, arm.num_speculative_tokens) if step_times else published(own)
    except Misuse as error:
        if name or step_times:
            raise
        # The cost is known without the length of a step.
        if as_json:
            print_json({**_known(experiment), "problems": error.as_json()})
        else:
            _show_known(experiment, everything=everything)
        warn(str(error))
        return error.exit_code
    predictions, doubts = _predictions(experiment, arm, steps, run=run, acceptance=acceptance, mix=mix)
    rental, needed = file_prices(experiment, run_hours(experiment))[0], break_even(arm, steps)
    if predictions:
        decision = decide(predictions, arm.name, rental, tokens_per_month)
    else:
        usd, file = plain_usd(experiment, arm, steps), experiment.file
        decision = without_acceptance(needed, arm.name, rental, usd, file=file)
    if as_json:
        classes = [
            {**asdict(one), "usd_per_million": one.usd_per_million, "verdict": one.verdict}
            for one in predictions
        ]
        print_json(
            {
                **_known(experiment),
                "arm": arm.name,
                "step_times": steps.origin,
                "doubts": doubts,
                "rental": rental.as_json(),
                "decision": decision,
                "break_even": needed,
                "classes": classes,
            }
        )
    else:
        text = _text(experiment, own, steps, predictions, doubts)
        next_ = [f"  {decision['next']}"] if decision["next"] else []
        print("\n".join([*wrapped(decision["sentence"]), *next_, *text, ""]))
        _show_known(experiment, everything=everything)
    return int(bool(predictions) and all(one.verdict == "does not pay" for one in predictions))


def _known(experiment: Experiment) -> dict[str, Any]:
    """Return what is known without acceptance and step times."""
    return {
        "schema": 1,
        "origin": "predicted",
        "experiment": experiment.name,
        "expected": [in_json(one) for one in expected(experiment)],
        "cost": pricing.as_json(experiment),
        "published": ledger(),
        "beside_dollars": beside_dollars(experiment),
    }


def _show_known(experiment: Experiment, *, everything: bool) -> None:
    """Print the cost, and, with `everything`, what the forecast rests on."""
    print_text("Cost", "")
    pricing.show(experiment)
    if everything:
        print_text("", "Steps")
        for one in expected(experiment):
            print_text("", f"{one.arm.name}:", *step_lines(one.plain, one.drafted))
        print_text("", "Published", "", *ledger_lines())


def _predictions(
    experiment: Experiment,
    arm: Arm,
    steps: Steps,
    *,
    run: Path | None,
    acceptance: Path | None,
    mix: dict[str, float] | None,
) -> tuple[tuple[Prediction, ...], list[str]]:
    """Return a prediction for each class whose acceptance is known, and what is not known, in sentences."""
    try:
        if run:
            raw = journal.read(run)
            plan, evidence = raw.plan, partial(advise, cells_of(raw))
            _check_asked_alike(experiment, plan, run)
        elif acceptance:
            plan, evidence = None, partial(shares_only, survivals(acceptance), basis=str(acceptance))
        else:
            return (), []
        found = predict(experiment, arm, steps=steps, evidence=evidence, mix=mix)
    except Refusal as error:
        raise Misuse(str(error)) from None
    return of_experiment(found, experiment, plan, mixed=bool(mix))


def _arm(experiment: Experiment, name: str | None) -> Arm:
    speculating = {arm.name: arm for arm in experiment.arms if arm.speculation is not None}
    if not speculating:
        raise Misuse(f"{experiment.name}: no arm speculates, so there is nothing to forecast")
    if name is not None and name not in speculating:
        why = f"{experiment.name} has no such arm that speculates; it has {', '.join(speculating)}"
        raise Misuse(f"--arm {name}: {why}")
    return speculating[name or next(iter(speculating))]


def _check_asked_alike(experiment: Experiment, plan: Plan, run: Path) -> None:
    """Raise Misuse if a run sent its prompts in another way than the experiment does: then its acceptance says nothing about it."""
    settings, can_think = experiment.benchmark, experiment.baseline.target.model.can_think
    if plan.endpoint != settings.endpoint:
        raise Misuse(
            f"{run}: asked {plan.endpoint}, {experiment.name} asks {settings.endpoint} (benchmark.endpoint); "
            f"measure with --endpoint {settings.endpoint}"
        )
    asked = plan.extra_body.get("chat_template_kwargs", {})
    thinks = not isinstance(asked, dict) or asked.get("enable_thinking", True)
    if can_think and settings.endpoint == "chat" and thinks != settings.thinking:
        wanted, said = str(settings.thinking).lower(), "with thinking" if thinks else "without thinking"
        body = f'{{"chat_template_kwargs": {{"enable_thinking": {wanted}}}}}'
        raise Misuse(
            f"{run}: asked {said}, {experiment.name} has benchmark.thinking {wanted}; measure with --extra-body '{body}'"
        )


def of_experiment(
    predictions: tuple[Prediction, ...], experiment: Experiment, plan: Plan | None, *, mixed: bool
) -> tuple[tuple[Prediction, ...], list[str]]:
    """Return the predictions that apply to the experiment, and what is not known, in sentences.

    A run applies to a class if it sent the prompts of the class, whatever it calls them. A file of shares is believed. Without given
    shares of the classes (`mixed`), there is a row for all classes only if all of them are known.
    """
    mine = _by_class((one.class_name, one.contents) for one in experiment.prompts)
    known, doubts = {one.class_name for one in predictions}, list[str]()
    if known == {ALL}:
        doubts.append(f"The file knows no classes; its prompts may differ from those of {experiment.name}.")
        return predictions, doubts
    if plan:
        theirs = _by_class((one.class_name, one.contents) for one in plan.prompts)
        alike = [(a, b) for a, b in product(mine, theirs) if mine[a] <= theirs[b] or theirs[b] <= mine[a]]
        known, about = {name for name, _ in alike}, {WHOLE, *(name for _, name in alike)}
        others = [one.class_name for one in predictions if one.class_name not in about]
        if others:
            doubts.append(f"* {listed(others)}: measured with other prompts than those of {experiment.name}.")
        predictions = tuple(
            replace(one, class_name=f"{one.class_name}*") if one.class_name in others else one
            for one in predictions
        )
    if mixed or not (unknown := [name for name in mine if name not in known]):
        return predictions, doubts
    doubts.append(
        f"Nothing is known of {listed(unknown)}, so there is no row for all classes: measure how many drafts are accepted there, "
        "or give --mix."
    )
    kept = [one for one in predictions if one.class_name != WHOLE]
    part = len(kept) / (len(kept) + len(unknown))
    return tuple(replace(one, share=one.share * part) for one in kept), doubts


def _by_class(prompts: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, set[tuple[str, ...]]]:
    classes: dict[str, set[tuple[str, ...]]] = {}
    for name, texts in prompts:
        classes.setdefault(name, set()).add(texts)
    return classes


def _text(
    experiment: Experiment,
    own: ArmForecast,
    steps: Steps,
    predictions: Sequence[Prediction],
    doubts: Sequence[str],
) -> Iterator[str]:
    yield ""
    yield from wrapped(
        f"PREDICTED, nothing ran on Trn2: arm {own.arm.name} of {experiment.name}, {count(own.arm.num_speculative_tokens, 'draft token')}, "
        f"{experiment.instance.name}, {count(own.at_once, 'concurrent request')}. Step times: {steps.origin}."
    )
    yield ""
    if predictions:
        yield from table(Prediction.HEADINGS, [one.cells for one in predictions], names=Prediction.WORDS)
        yield ""
        for text in (*doubts, NOTE):
            yield from wrapped(text)
        yield ""
    yield from folded(as_lines(expected(experiment), node_price(experiment)))
    for note in beside_dollars(experiment):
        yield from wrapped(note["text"], "    ", "      ")
