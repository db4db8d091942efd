"""Verbs that read recorded runs: `publish` sends a run to CloudWatch and S3, `compare` and `gate` compare two runs, `advise` recommends
the window to compile."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trnspec.benchmark.commands.arm_options import (
    MIX,
    PATH,
    about_arms,
    folder,
    json_option,
    percent,
    points,
    read_by,
    recorded,
    shares,
)
from trnspec.benchmark.errors import PlanError
from trnspec.core.json_text import json_text
from trnspec.core.words import count

if TYPE_CHECKING:
    from trnspec.benchmark.measure.raw_run import RawRun
    from trnspec.benchmark.measure.records import RunRecord


@click.command()
@folder()
@click.option("--namespace", metavar="N", help="CloudWatch namespace.")
@click.option("--upload", metavar="S3", help="Also copy the records to s3://bucket/prefix/<run id>/.")
@click.option("--follow", is_flag=True, help="Publish a run in progress every minute, until SIGTERM.")
@click.option("--endpoint-url", metavar="URL", help="Another AWS, for rehearsals.")
@click.option("--region", metavar="REGION", help="Instead of the configured one.")
def publish(**given: Any) -> int:
    """Send a run's requests to CloudWatch, each once, after the run or while it is in progress."""
    from trnspec.benchmark.analyse.sentences import money
    from trnspec.benchmark.show.publishing import (
        PRICES,
        Publisher,
        aws_client,
        follow,
        stop_on_signals,
        upload,
    )

    run, namespace, target = given["folder"], given["namespace"], given["upload"]
    if not namespace:
        raise PlanError(
            "--namespace: missing; name where CloudWatch keeps the metrics, as in Team/Speculation"
        )
    where = {"endpoint_url": given["endpoint_url"], "region": given["region"]}
    raw = None if given["follow"] else recorded(run)
    if raw:
        _refuse_emulated(given, raw.sessions[0])
    publisher = Publisher(run, namespace, aws_client("cloudwatch", **where), _report)
    if raw is None:
        allowed = partial(_refuse_emulated, given)
        follow(run, publisher=publisher, stop=stop_on_signals(), allowed=allowed, report=_report)
        return 0
    opening, done = raw.sessions[0], publisher.publish(raw)
    print(
        f"{publisher.destination}: {count(done.calls, 'call')}, {done.data} data for {done.requests} {opening.provenance} "
        f"requests; {done.already_there} were there already"
    )
    calls = f"{count(done.calls, 'call')} {money(done.calls * 0.01 / 1000)}"
    metrics = f"{count(len(done.metrics), 'metric')} {money(len(done.metrics) * 0.30)}"
    billed = "for a whole month (billed for the hours that hold data)"
    print(f"cost: {calls}, {metrics} {billed}; quoted list prices: {PRICES}")
    if done.repeated:
        _report(
            f"{done.repeated} attempts had to be repeated; one that timed out may have been counted twice"
        )
    for address in upload(run, target, run_id=opening.run, **where) if target else ():
        print(address)
    return 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _refuse_emulated(given: Mapping[str, Any], opening: RunRecord) -> None:
    if opening.provenance == "emulated" and given["namespace"] and not given["endpoint_url"]:
        raise PlanError(
            f"{given['folder']}: an emulated run, and CloudWatch could not tell it from a measured one; publish it to a "
            "rehearsal with --endpoint-url, or measure real endpoints"
        )


@click.command()
@click.argument("earlier", type=PATH, metavar="A")
@click.argument("later", type=PATH, metavar="B")
@click.option(
    "--max-slower",
    type=read_by(percent),
    default="5%",
    metavar="P",
    help="The allowed increase of the time per token (default 5%).",
)
@json_option("Print JSON, errors included.")
def compare(earlier: Path, later: Path, max_slower: float, json: bool) -> int:
    """Say whether run B is slower than run A of the same plan.

    Exit 1 if it takes more time per token than --max-slower allows, or if more of its requests failed.
    """
    from trnspec.benchmark.analyse.gate import gate_run

    judgement = gate_run(recorded(earlier), recorded(later), slower_by=max_slower)
    _print(judgement, "gate.txt", as_json=json)
    return 1 if judgement["regressions"] else 0


gate = click.Command(
    "gate",
    params=[
        click.Argument(["later"], type=PATH, metavar="RUN"),
        click.Option(
            ["--baseline", "earlier"], type=PATH, required=True, metavar="DIR", help="An earlier run."
        ),
        *compare.params[2:],
    ],
    callback=compare.callback,
    help="Say whether RUN is slower than an earlier run: `compare` for a pipeline.",
)


@click.command()
@folder("[DIR]", required=False)
@click.option(
    "--acceptance",
    type=PATH,
    metavar="FILE",
    help="Instead of DIR: a summary.json, a file of vllm bench serve, aiperf or a speculation profile, or JSON {class: [shares]}.",
)
@click.option(
    "--step-times",
    type=read_by(points),
    metavar="0=S,K=S",
    help="Seconds of a decode step on the machine to predict, by window; 0 is plain decoding, for example 0=0.045,7=0.0944.",
)
@click.option(
    "--timed-with",
    multiple=True,
    metavar="ARM|RUN[:ARM]",
    help="Also use the steps of an arm with another window and the same draft: an arm of the run in DIR, or the folder of another "
    "run, with all its speculating arms or the one after the colon; may be repeated.",
)
@click.option(
    "--yields",
    type=click.Choice(("k", "k+1")),
    help="Most tokens of a step with k drafts on that machine: k for NxD Inference, k+1 for vLLM.",
)
@click.option(
    "--mix",
    type=read_by(shares),
    metavar="CLASS=SHARE,..",
    help=MIX,
)
@json_option("Print JSON instead of tables.")
@about_arms
def advise(**given: Any) -> int:
    """Predict tokens per step and speed-up of every smaller window k, recommend one or what to time next."""
    from trnspec.benchmark.analyse import window_advice
    from trnspec.benchmark.analyse.cells import cells_of
    from trnspec.benchmark.analyse.draft_cost import step_times
    from trnspec.benchmark.analyse.windows import AdviceOptions
    from trnspec.benchmark.formats.acceptance_files import survivals

    run, acceptance = given["folder"], given["acceptance"]
    times, timed_with = given["step_times"], given["timed_with"]
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
    raw = recorded(run, given) if run else None
    arms, runs = _timed(timed_with, raw)
    wishes = AdviceOptions(
        mix=None if raw else given["mix"],
        step_times=step_times(times) if times else None,
        timed_with=arms,
        timed_in=runs,
        unused_drafts=None if given["yields"] is None else int(given["yields"] == "k"),
    )
    if raw:
        predicted = window_advice.advise(cells_of(raw, shares=given["mix"]), wishes)
    else:
        predicted = window_advice.forecast(
            survivals(acceptance), wishes, basis=f"acceptance as in {acceptance}"
        )
    _print(predicted, "advise.txt", as_json=given["json"])
    return 0


def _timed(
    given: Sequence[str], raw: RawRun | None
) -> tuple[tuple[str, ...], list[tuple[RawRun, str | None]]]:
    """The values of --timed-with: arms of the run, and other runs, each with an arm or None for all."""
    from trnspec.benchmark.measure import journal

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
    from trnspec.benchmark.show.report_templates import filled

    print(json_text(content, indent=1) if as_json else filled(template, **content))
