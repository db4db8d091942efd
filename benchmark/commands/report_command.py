"""`report`: make the summary and all that people and other tools read, again from the raw records. `publish`: send them
to CloudWatch and S3, show them to Prometheus."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmark.commands.cli import Sectioned, declared, folder, option, recorded
from benchmark.errors import PlanError
from core.json_text import json_text
from core.words import count

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun
    from benchmark.measure.records import RunRecord


@click.command(cls=Sectioned)
@folder()
@option("--json", "Print the summary as JSON instead of text.")
@option("--all", "Print every load and cell, why, engines and quality too.")
@declared("Arms (what `run` was not told)")
def report(**given: Any) -> int:
    """Make summary, page, CSV and llmperf's files again from the raw records, print what to do."""
    raw = recorded(given["folder"], given)
    return reported(given["folder"], raw, as_json=given["json"], everything=given["all"])


def reported(folder: Path, raw: RawRun, *, as_json: bool, everything: bool = False) -> int:
    """Write all that is made of the records, print the answer, then say where it is; the exit code is that of `show`."""
    from benchmark.measure.journal import write_whole
    from benchmark.show import exports, page

    summary = summarised(folder, raw)
    plan = json_text(raw.sittings[-1].plan.to_dict(), indent=1) + "\n"
    written = [write_whole(folder / page.PLAN_FILE, plan).name]
    written += [path.name for path in exports.write_csv(raw, summary, folder)]
    written.append(f"{exports.LLMPERF}/ ({count(len(exports.write_llmperf(raw, folder)), 'file')})")
    html = write_whole(folder / page.FILE_NAME, page.render(raw, summary))
    code = show(summary, as_json=as_json, everything=everything)
    sys.stdout.flush()
    print(f"Page: {html}\nBeside it: {', '.join(written)}", file=sys.stderr)
    return code


def summarised(folder: Path, raw: RawRun | None = None) -> dict[str, Any]:
    """Make the summary of `folder`, whose journal is `raw` where it was read already, and store it there."""
    from benchmark.analyse.beside import against_published, beside, served_by
    from benchmark.analyse.decision import decide, is_withheld
    from benchmark.analyse.summary import summarise, write
    from benchmark.measure import journal

    raw = raw or journal.read(folder)
    summary = summarise(raw)
    summary |= beside(folder, raw.plan.baselines) | {"served_by": served_by(folder, raw)}
    if not is_withheld(summary):
        summary |= against_published(folder, summary, raw)
    summary["decision"] = decide(summary).as_json()
    write(summary, folder)
    return summary


def show(summary: dict[str, Any], *, as_json: bool, everything: bool = False) -> int:
    """Print what the summary says to do, or `everything`; 1 where a cell has no answer at all."""
    from benchmark.show.text import render, render_all

    text = render_all if everything else render
    print(json_text(summary, indent=1) if as_json else text(summary))
    return 0 if all(cell["n"] for cell in summary["cells"]) else 1


def host_and_port(text: str) -> tuple[str, int]:
    """Where to listen."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or not int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:9400")
    return host, int(port)


@click.command(cls=Sectioned)
@folder()
@option("--namespace N", "CloudWatch namespace; needed unless there is --listen.")
@option("--upload S3", "Also copy the records to s3://bucket/prefix/<run id>/.")
@option(
    "--follow",
    "While the run is on: every minute what is new, and that it is on; until it is told to stop (SIGTERM).",
)
@option("--listen HOST:PORT", "With --follow: a page for Prometheus there, at /metrics.", host_and_port)
@option("--endpoint-url URL", "Another AWS, for rehearsals.")
@option("--region REGION", "Instead of the configured one.")
def publish(**given: Any) -> int:
    """Send a run's requests to CloudWatch, each once; or show them to Prometheus while it is on."""
    from benchmark.analyse.sentences import money
    from benchmark.show.publishing import PRICES, Publisher, aws_client, upload

    run, namespace, target = given["folder"], given["namespace"], given["upload"]
    if given["listen"] and not given["follow"]:
        raise PlanError("--listen: shows a run that is on; add --follow")
    if not (namespace or given["listen"]):
        raise PlanError(
            "--namespace: missing; name where CloudWatch keeps the metrics, as in Team/Speculation"
        )
    where = {"endpoint_url": given["endpoint_url"], "region": given["region"]}
    raw = None if given["follow"] else recorded(run)
    if raw:
        _refuse_emulated(given, raw.sittings[0])
    publisher = Publisher(run, namespace, aws_client("cloudwatch", **where), _report) if namespace else None
    if raw is None or publisher is None:
        return _follow(given, publisher)
    opening, done = raw.sittings[0], publisher.publish(raw)
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
    from benchmark.show.prometheus_page import Page, served
    from benchmark.show.publishing import follow, stop_on_signals

    page = Page() if given["listen"] else None
    with served(page, given["listen"], _report) if page else nullcontext():
        follow(
            given["folder"],
            publisher=publisher,
            page=page,
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
