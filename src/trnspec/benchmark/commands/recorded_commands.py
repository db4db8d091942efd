"""Verbs that read recorded runs: `report` writes summary, page and exports, `publish` sends a run to CloudWatch and S3,
`gate` compares two runs, `advise` recommends the window to compile."""

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
    SHARE,
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
    from trnspec.benchmark.analyse.requests import Cells
    from trnspec.benchmark.analyse.result import Result
    from trnspec.benchmark.measure.raw_run import RawRun
    from trnspec.benchmark.measure.records import RunRecord


_of_load = click.option(
    "--load",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="For an engine with one window: the one for so many concurrent requests.",
)


@click.command()
@folder()
@json_option("Print the summary as JSON instead of text.")
@click.option(
    "--all", is_flag=True, help="Also print every load and cell, explanations, engines and quality."
)
@click.option(
    "--by-length",
    is_flag=True,
    help="Split each class into its shorter and its longer prompts: what pays for short contexts may not for long ones.",
)
@click.option("--mix", type=read_by(shares), metavar="CLASS=SHARE,..", help=MIX)
@_of_load
@about_arms
def report(**given: Any) -> int:
    """Make summary, page, CSV and llmperf's files again from the raw records, print what to do."""
    raw = recorded(given["folder"], given)
    wishes = {"by_length": given["by_length"], "shares": given["mix"], "load": given["load"]}
    return reported(given["folder"], raw, as_json=given["json"], everything=given["all"], **wishes)


def reported(
    folder: Path,
    raw: RawRun,
    *,
    as_json: bool,
    everything: bool = False,
    load: int | None = None,
    **wishes: Any,
) -> int:
    """Write summary, page and exports, print the answer and the names of the files; the exit code is that of `show`."""
    from trnspec.benchmark.analyse.requests import cells_of
    from trnspec.benchmark.formats import speculation_profile
    from trnspec.benchmark.measure.journal import write_whole
    from trnspec.benchmark.show import exports, page

    cells = cells_of(raw, **wishes)
    result = summarised(folder, cells)
    plan = json_text(raw.sessions[-1].plan.to_dict(), indent=1) + "\n"
    written = [write_whole(folder / page.PLAN_FILE, plan).name]
    written += [path.name for path in exports.write_csv(raw, result, folder)]
    for arm, profile in speculation_profile.profiles(result):
        path = folder / f"speculation_profile-{exports.slug(arm)}.json"
        written.append(write_whole(path, json_text(profile, indent=1) + "\n").name)
    written.append(f"{exports.LLMPERF}/ ({count(len(exports.write_llmperf(cells, folder)), 'file')})")
    html = write_whole(folder / page.FILE_NAME, page.render(cells, result))
    if drawn := page.picture(result):
        written.append(write_whole(folder / page.PICTURE, drawn).name)
    else:
        (folder / page.PICTURE).unlink(missing_ok=True)  # of an earlier report
    code = show(result, as_json=as_json, everything=everything, load=load)
    sys.stdout.flush()
    print(f"Page: {html}\nAlso written: {', '.join(written)}", file=sys.stderr)
    return code


def summarised(folder: Path, cells: Cells) -> Result:
    """Make the result of the run in `folder` and store it there."""
    from trnspec.benchmark.analyse.summary import summarise, write

    result = summarise(cells, folder)
    write(result, folder)
    return result


def _show_windows(result: Result, load: int | None) -> None:
    """Print the window for each load, or for the one that the user names."""
    from trnspec.benchmark.analyse.window_schedule import schedule_lines, window_for

    told = [window_for(result.windows, load)] if load else [*schedule_lines(result)]
    if any(told):
        print("\n" + "\n".join(told))


def show(result: Result, *, as_json: bool, everything: bool = False, load: int | None = None) -> int:
    """Print the recommendation, or `everything`; returns 1 if the whole answer is withheld, else 0."""
    from trnspec.benchmark.show.report_templates import render, render_all

    text = render_all if everything else render
    print(json_text(result.model_dump(mode="json"), indent=1) if as_json else text(result))
    if not as_json:
        _show_windows(result, load)
    return int(result.withheld)


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
    from trnspec.benchmark.show.publishing import PRICES, Publisher, aws_client, upload

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
        return _follow(given, publisher)
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


def _follow(given: Mapping[str, Any], publisher: Any) -> int:
    from trnspec.benchmark.show.publishing import follow, stop_on_signals

    follow(
        given["folder"],
        publisher=publisher,
        stop=stop_on_signals(),
        allowed=partial(_refuse_emulated, given),
        report=_report,
    )
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
@folder("RUN")
@click.option(
    "--baseline", type=PATH, required=True, metavar="FOLDER", help="An earlier run of the same plan."
)
@click.option(
    "--slower-by",
    type=SHARE,
    default=0.05,
    show_default=True,
    help="Tolerated increase of the time per token.",
)
@click.option(
    "--more-errors", type=SHARE, default=0.01, show_default=True, help="Tolerated increase of an error rate."
)
@json_option("Print JSON instead of text.")
def gate(folder: Path, baseline: Path, slower_by: float, more_errors: float, json: bool) -> int:
    """Refuse a run that is slower per token, or fails more often, than a baseline run; exit 1 then."""
    return _compared(baseline, folder, slower_by=slower_by, more_errors=more_errors, as_json=json)


@click.command()
@click.argument("earlier", type=PATH, metavar="A")
@click.argument("later", type=PATH, metavar="B")
@click.option(
    "--max-slower",
    type=read_by(percent),
    default="5%",
    metavar="P",
    help="Allowed increase of the time per token (default 5%).",
)
@json_option("Print JSON, errors included.")
def compare(earlier: Path, later: Path, max_slower: float, json: bool) -> int:
    """Say whether run B is slower per token, or fails more often, than run A of the same plan; exit 1 if it is."""
    return _compared(earlier, later, slower_by=max_slower, more_errors=0.01, as_json=json)


def _compared(earlier: Path, later: Path, *, slower_by: float, more_errors: float, as_json: bool) -> int:
    from trnspec.benchmark.analyse.runs import judge

    judgement = judge(recorded(earlier), recorded(later), slower_by=slower_by, more_errors=more_errors)
    _print(judgement, "gate.txt", as_json=as_json)
    return 1 if judgement["regressions"] else 0


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
@click.option("--k-max", type=click.IntRange(1, 10**9), metavar="N", help="The largest window to consider.")
@click.option(
    "--mix",
    type=read_by(shares),
    metavar="CLASS=WEIGHT,..",
    help=MIX,
)
@json_option("Print JSON instead of tables.")
@_of_load
@about_arms
def advise(**given: Any) -> int:
    """Predict tokens per step and speed-up of every smaller window k, recommend one or what to time next."""
    from trnspec.benchmark.analyse import advice
    from trnspec.benchmark.analyse.draft_cost import step_times
    from trnspec.benchmark.analyse.requests import cells_of
    from trnspec.benchmark.analyse.windows import AdviceOptions
    from trnspec.benchmark.formats.acceptance_files import survivals

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
    raw = recorded(run, given) if run else None
    arms, runs = _timed(timed_with, raw)
    wishes = AdviceOptions(
        k_max=given["k_max"],
        mix=None if raw else given["mix"],
        step_times=step_times(times) if times else None,
        timed_with=arms,
        timed_in=runs,
        unused_drafts=None if given["yields"] is None else int(given["yields"] == "k"),
    )
    if raw:
        predicted = advice.advise(cells_of(raw, shares=given["mix"]), wishes)
    else:
        predicted = advice.forecast(survivals(acceptance), wishes, basis=f"acceptance as in {acceptance}")
    _print(predicted, "advise.txt", as_json=given["json"])
    if raw and not given["json"]:
        from trnspec.benchmark.analyse.summary import summarise

        _show_windows(summarise(cells_of(raw)), given["load"])
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
