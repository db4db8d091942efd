"""What recorded runs say: `compare` two of them, `gate` one against a baseline, `advise` which window to compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmark.commands import cli
from benchmark.errors import PlanError
from core.json_text import json_text

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun


def points(text: str) -> dict[int, float]:
    """Seconds of a step by window, as in `0=0.045,7=0.0944`."""
    times = {}
    for item in text.split(","):
        k, _, seconds = item.partition("=")
        times[cli.whole(k)] = cli.number(seconds)
    if 0 not in times or len(times) < 2:
        raise ValueError(f"{text!r} must name plain decoding (0) and a window, for example 0=0.045,7=0.0944")
    return times


def shares(text: str) -> dict[str, float]:
    """Shares by class, as in `chat=3,code=1`; a class may have any name."""
    parts = [item.rpartition("=") for item in text.split(",")]
    if wrong := [weight for _, equals, weight in parts if not equals]:
        raise ValueError(f"{wrong[0]!r} is not CLASS=WEIGHT")
    return {class_.strip(): cli.number(weight) for class_, _, weight in parts}


@click.command(cls=cli.Sectioned)
@cli.folder("old", "OLD", "What `run --out` wrote, before.")
@cli.folder("new", "NEW", "The same plan, later.")
@cli.option("--json", "Print JSON instead of tables.")
def compare(old: Path, new: Path, json: bool) -> int:
    """Compare two runs of one plan; exit 1 where something became slower."""
    from benchmark.analyse.runs import compare_runs

    comparison = compare_runs(cli.recorded(old), cli.recorded(new))
    _print(comparison, "compare.txt", as_json=json)
    return 1 if comparison["slower"] else 0


@click.command(cls=cli.Sectioned)
@cli.folder("run", "RUN")
@cli.option("--baseline FOLDER", "An earlier run of the same plan.", Path, required=True)
@cli.option(
    "--slower-by SHARE",
    "More time per output token that passes although it is shown (default: 0.05).",
    cli.share,
    default=0.05,
)
@cli.option(
    "--more-errors SHARE", "Rise of an arm's error rate that passes (default: 0.01).", cli.share, default=0.01
)
@cli.option("--json", "Print JSON instead of text.")
def gate(run: Path, baseline: Path, slower_by: float, more_errors: float, json: bool) -> int:
    """Refuse a run that is slower per token, or fails more often, than a baseline run; exit 1 then."""
    from benchmark.analyse.runs import judge

    judgement = judge(cli.recorded(baseline), cli.recorded(run), slower_by=slower_by, more_errors=more_errors)
    _print(judgement, "gate.txt", as_json=json)
    return 1 if judgement["regressions"] else 0


@click.command(cls=cli.Sectioned)
@cli.folder(metavar="[DIR]", required=False)
@cli.option(
    "--acceptance FILE",
    "Instead of DIR: a summary.json, or JSON {class: [share of steps in which draft 1, 2, ... was accepted]}.",
    Path,
)
@cli.option(
    "--step-times 0=S,K=S",
    "Seconds of a decode step on the machine to predict, by window; 0 is plain decoding, for example 0=0.045,7=0.0944.",
    points,
)
@cli.option(
    "--timed-with ARM|RUN[:ARM]",
    "Also use the steps of an arm with another window and the same draft: an arm of the run in DIR, or the folder of another "
    "run, all its speculating arms or the one named behind a colon; may be repeated.",
    multiple=True,
)
@click.option(
    "--yields",
    type=click.Choice(("k", "k+1")),
    help="Most tokens of a step with k drafts on that machine: k for fused speculation of NxD Inference, k+1 for vLLM (default: "
    "as in the run; k+1 with --acceptance).",
)
@cli.option("--k-max N", "The largest window to consider.", lambda text: cli.whole(text, 1))
@cli.option("--mix CLASS=WEIGHT,...", "Shares of the output tokens (default: equal).", shares)
@cli.option("--json", "Print JSON instead of tables.")
@cli.declared("Arms of the run in DIR (what `run` was not told)")
def advise(**given: Any) -> int:
    """Predict tokens per step and speed-up of every smaller window k, recommend one or what to time next."""
    from benchmark.analyse.acceptance import advice
    from benchmark.analyse.acceptance.windows import AdviceOptions, step_times
    from benchmark.analyse.acceptance.yields import survivals

    run, acceptance, times, timed_with = (
        given[name] for name in ("folder", "acceptance", "step_times", "timed_with")
    )
    if (run is None) == (acceptance is None):
        raise PlanError("give either DIR or --acceptance FILE, with --step-times for another machine")
    if times is None and (acceptance or given["yields"]):
        name = "--acceptance" if acceptance else "--yields"
        raise PlanError(
            f"{name}: needs --step-times 0=S,K=S, the seconds of a step of the machine to predict"
        )
    if timed_with and (acceptance or times):
        raise PlanError(
            "--timed-with: adds to the step times of the run in DIR, which --step-times replaces; give one of the two, with all "
            "times in it"
        )
    raw = cli.recorded(run, given) if run else None
    arms, runs = _timed(timed_with, raw)
    wishes = AdviceOptions(
        k_max=given["k_max"],
        mix=given["mix"],
        step_times=step_times(times) if times else None,
        timed_with=arms,
        timed_in=runs,
        unused_drafts=None if given["yields"] is None else int(given["yields"] == "k"),
    )
    if raw:
        predicted = advice.advise(raw, wishes)
    else:
        predicted = advice.forecast(survivals(acceptance), wishes, basis=f"acceptance as in {acceptance}")
    _print(predicted, "advise.txt", as_json=given["json"])
    return 0


def _timed(
    given: Sequence[str], raw: RawRun | None
) -> tuple[tuple[str, ...], list[tuple[RawRun, str | None]]]:
    """Arms of the run, and other runs, of each an arm or all."""
    from benchmark.measure import journal

    own = {arm.name for arm in raw.plan.arms} if raw else set()
    arms: list[str] = []
    runs: list[tuple[RawRun, str | None]] = []
    for value in given:
        path, colon, arm = value.rpartition(":")
        if value not in own and Path(value).is_dir():
            runs.append((journal.read(Path(value)), None))
        elif value not in own and colon and Path(path).is_dir():
            runs.append((journal.read(Path(path)), arm))
        else:
            arms.append(value)
    return tuple(arms), runs


def _print(content: Mapping[str, Any], template: str, *, as_json: bool) -> None:
    from benchmark.show.text import filled

    print(json_text(content, indent=1) if as_json else filled(template, **content))
