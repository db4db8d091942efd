"""`publish`: send a run to CloudWatch, and its records to S3."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.errors import PlanError
from benchmark.verbs import arguments
from benchmark.verbs.arguments import add

if TYPE_CHECKING:
    from benchmark.measure.records import RunRecord

HELP = "send a run's requests to CloudWatch, each once"


def configure(parser: argparse.ArgumentParser) -> None:
    """The folder and where it goes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `run --out` wrote")
    add(parser, "--namespace", str, "N", "CloudWatch namespace", required=True)
    add(parser, "--upload", str, "S3", "also copy the records to s3://bucket/prefix/<run id>/")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="while the run is on: every minute what is new, and that it is on; until it is told to stop (SIGTERM)",
    )
    add(parser, "--endpoint-url", str, "URL", "another AWS, for rehearsals")
    parser.add_argument("--region", help="instead of the configured one")


def execute(options: argparse.Namespace) -> int:
    """Publish what the ledger does not have; then copy the files, if asked to."""
    from benchmark.show.cloudwatch import cloudwatch, price, publish
    from benchmark.show.upload import upload

    if options.follow:
        return _follow(options)
    raw = arguments.recorded(options.folder)
    opening = raw.sittings[0]
    _refuse_emulated(opening, options)
    client = cloudwatch(options.endpoint_url, options.region)
    done = publish(
        raw,
        options.folder,
        namespace=options.namespace,
        client=client,
        report=lambda line: print(line, file=sys.stderr),
    )
    print(
        f"{done.destination}: {done.calls} calls, {done.data} data for {done.requests} {opening.provenance} requests; "
        f"{done.already_there} were there already"
    )
    print(f"cost: {price(done)}")
    if done.repeated:
        print(
            f"{done.repeated} attempts had to be repeated; one that timed out may have been counted twice",
            file=sys.stderr,
        )
    if options.upload:
        where = {"endpoint_url": options.endpoint_url, "region": options.region}
        for address in upload(options.folder, options.upload, run_id=opening.run, **where):
            print(address)
    return 0


def _follow(options: argparse.Namespace) -> int:
    from benchmark.show.cloudwatch import cloudwatch, follow, stop_on_signals

    follow(
        options.folder,
        namespace=options.namespace,
        client=cloudwatch(options.endpoint_url, options.region),
        stop=stop_on_signals(),
        allowed=lambda opening: _refuse_emulated(opening, options),
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return 0


def _refuse_emulated(opening: RunRecord, options: argparse.Namespace) -> None:
    if opening.provenance == "emulated" and not options.endpoint_url:
        raise PlanError(
            f"{options.folder}: an emulated run, and CloudWatch could not tell it from a measured one; publish it to a "
            "rehearsal with --endpoint-url, or measure real endpoints"
        )
