"""`report`: make the summary and all that people and other tools read, again from the raw records. `publish`: send them
to CloudWatch and S3, show them to Prometheus."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.commands import option_types
from benchmark.commands.option_types import add
from benchmark.errors import PlanError
from core.json_text import json_text
from core.words import count

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun
    from benchmark.measure.records import RunRecord

REPORT_HELP = "make summary, page, CSV and llmperf's files again from the raw records, print what to do"
PUBLISH_HELP = "send a run's requests to CloudWatch, each once; or show them to Prometheus while it is on"


def configure_report(parser: argparse.ArgumentParser) -> None:
    """The folder."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `run --out` wrote")
    option_types.add_declared(parser.add_argument_group("arms (what `run` was not told)"))
    option_types.add_json(parser)
    parser.add_argument(
        "--all", action="store_true", help="print every load and cell, why, engines and quality too"
    )


def execute_report(options: argparse.Namespace) -> int:
    """Summarise, write, print. Without the packages of the page, everything but the page. Raises StorageError."""
    return reported(
        options.folder, option_types.read_declared(options), as_json=options.json, everything=options.all
    )


def reported(folder: Path, raw: RawRun, *, as_json: bool, everything: bool = False) -> int:
    """Write all that is made of the records, print the answer, then say where it is; the exit code is that of `show`."""
    from benchmark.file_access import write_whole
    from benchmark.show import csv_files, llmperf_files, page

    summary = summarised(folder, raw)
    written = [page.write(raw, folder).name]
    written += [path.name for path in csv_files.write(raw, summary, folder)]
    written.append(f"{llmperf_files.FOLDER}/ ({count(len(llmperf_files.write(raw, folder)), 'file')})")
    if lacking := page.missing():
        packages = " ".join(lacking)
        where = (
            f"{folder}: {page.FILE_NAME} is not written, {packages} is not installed; pip install {packages}"
        )
    else:
        where = f"Page: {write_whole(folder / page.FILE_NAME, page.render(raw, summary))}"
    code = show(summary, as_json=as_json, everything=everything)
    sys.stdout.flush()
    print(f"{where}\nBeside it: {', '.join(written)}", file=sys.stderr)
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
    from benchmark.show.terminal import render, render_all

    text = render_all if everything else render
    print(json_text(summary, indent=1) if as_json else text(summary))
    return 0 if all(cell["n"] for cell in summary["cells"]) else 1


def configure_publish(parser: argparse.ArgumentParser) -> None:
    """The folder and where it goes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `run --out` wrote")
    add(parser, "--namespace", str, "N", "CloudWatch namespace; needed unless there is --listen")
    add(parser, "--upload", str, "S3", "also copy the records to s3://bucket/prefix/<run id>/")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="while the run is on: every minute what is new, and that it is on; until it is told to stop (SIGTERM)",
    )
    add(
        parser,
        "--listen",
        option_types.host_and_port,
        "HOST:PORT",
        "with --follow: a page for Prometheus there, at /metrics",
    )
    add(parser, "--endpoint-url", str, "URL", "another AWS, for rehearsals")
    parser.add_argument("--region", help="instead of the configured one")


def execute_publish(options: argparse.Namespace) -> int:
    """Publish what the ledger does not have; then copy the files, if asked to."""
    from benchmark.show.cloudwatch import cloudwatch, publish
    from benchmark.show.upload import upload

    if options.listen and not options.follow:
        raise PlanError("--listen: shows a run that is on; add --follow")
    if not (options.namespace or options.listen):
        raise PlanError(
            "--namespace: missing; name where CloudWatch keeps the metrics, as in Team/Speculation"
        )
    where = {"endpoint_url": options.endpoint_url, "region": options.region}
    to: dict[str, Any] = {"namespace": options.namespace, "report": _report}
    if options.follow:
        return _follow(options, client=cloudwatch(**where) if options.namespace else None, **to)
    raw = option_types.recorded(options.folder)
    opening = raw.sittings[0]
    _refuse_emulated(options, opening)
    done = publish(raw, options.folder, client=cloudwatch(**where), **to)
    print(
        f"{done.destination}: {count(done.calls, 'call')}, {done.data} data for {done.requests} {opening.provenance} requests; "
        f"{done.already_there} were there already"
    )
    print(f"cost: {done.price()}")
    if done.repeated:
        _report(
            f"{done.repeated} attempts had to be repeated; one that timed out may have been counted twice"
        )
    if options.upload:
        for address in upload(options.folder, options.upload, run_id=opening.run, **where):
            print(address)
    return 0


def _follow(options: argparse.Namespace, **to: Any) -> int:
    from benchmark.show.following import follow, stop_on_signals
    from benchmark.show.scraped import Page, served

    page = Page() if options.listen else None
    with served(page, options.listen, _report) if page else nullcontext():
        follow(
            options.folder,
            page=page,
            stop=stop_on_signals(),
            allowed=partial(_refuse_emulated, options),
            **to,
        )
    return 0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _refuse_emulated(options: argparse.Namespace, opening: RunRecord) -> None:
    if opening.provenance == "emulated" and options.namespace and not options.endpoint_url:
        raise PlanError(
            f"{options.folder}: an emulated run, and CloudWatch could not tell it from a measured one; publish it to a "
            "rehearsal with --endpoint-url, or measure real endpoints"
        )
