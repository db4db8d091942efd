"""`scripts/deliver VERB`: what the pipeline runs, in its own account (start) and in a stage's VPC (smoke, compile)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cdk8s_charts.manifest_file import read
from operations.options import ROOT, add_experiment, add_json, as_json, aws_of, experiment_of, hours
from operations.terminal import carried_out

if TYPE_CHECKING:
    from cdk8s_charts.manifest_file import ManifestFile
    from experiment import Experiment

EPILOG = (
    "Exit codes: 0 fine, 1 a finding or a step that failed, 2 wrong usage or configuration, 3 AWS or the cluster could not "
    "be reached, 130 interrupted."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb."""
    options = parser().parse_args(arguments)
    act = {"start": _start, "smoke": _smoke, "compile": _compile}[options.verb]
    return carried_out(f"deliver {options.verb}", lambda: act(options))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="scripts/deliver", description=__doc__, epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    start = verbs.add_parser(
        "start", help="start a build project of a stage's account and wait for it", epilog=EPILOG
    )
    start.add_argument("project", metavar="PROJECT", help="e.g. qwen3-32b-smoke")
    start.add_argument("--region", required=True)
    start.add_argument(
        "--role", required=True, metavar="ARN", help="role of the stage's account that may start it"
    )
    start.add_argument(
        "--minutes", type=_minutes, default=60, help="give up waiting after so many (default: 60)"
    )
    add_json(start)
    smoke = verbs.add_parser("smoke", help="is what was reviewed what stands in the cluster?", epilog=EPILOG)
    compile_ = verbs.add_parser(
        "compile", help="make every artifact; Trn2 nodes at 0 afterwards", epilog=EPILOG
    )
    compile_.add_argument(
        "--hours", type=hours, default=8.0, metavar="H", help="nodes live so long at most (default: 8)"
    )
    for verb in (smoke, compile_):
        add_experiment(verb)
        verb.add_argument("--manifests", type=Path, default=ROOT / "manifests", help="default: manifests/")
    return top


def _start(options: argparse.Namespace) -> int:
    from operations.cloud.aws import Aws
    from operations.cloud.clock import SystemClock
    from operations.delivery.starting import Starter

    starter = Starter(Aws(options.region), role=options.role, clock=SystemClock(), say=_say)
    build = starter.run(options.project, minutes=options.minutes)
    print(as_json({"build": build}) if options.json else f"{build}: succeeded")
    return 0


def _smoke(options: argparse.Namespace) -> int:
    from operations.cloud.access import cluster_of
    from operations.delivery.smoke import findings

    experiment, files = _reviewed(options)
    with cluster_of(experiment, aws_of(experiment, options)) as cluster:
        found = list(findings(files, cluster.get))
    if options.json:
        print(as_json({"experiment": experiment.name, "findings": found}))
    else:
        print("\n".join(found) or f"{experiment.name}: stands as it was reviewed")
    return 1 if found else 0


def _compile(options: argparse.Namespace) -> int:
    from operations.cloud.access import cluster_of
    from operations.cloud.clock import SystemClock
    from operations.delivery.compiling import compile_artifacts, nothing_to_compile, prove
    from operations.running.context import Context
    from operations.running.state import RunStore, claimed, unfinished

    experiment, files = _reviewed(options)
    aws, clock = aws_of(experiment, options), SystemClock()
    if nothing_to_compile(experiment, aws, _say):
        return _compiled(experiment, options, nodes_started=False)
    store = RunStore(experiment, aws)
    held = unfinished(experiment, store, now=clock.now(), take_over=False)
    with cluster_of(experiment, aws) as cluster:
        context = Context(
            experiment=experiment,
            aws=aws,
            cluster=cluster,
            clock=clock,
            store=store,
            held=claimed(experiment, store, held, now=clock.now()),
            files=files,
            hours=options.hours,
            out=ROOT / "results",
            say=_say,
            verify=prove,
        )
        compile_artifacts(context, fresh=held is None)
    return _compiled(experiment, options, nodes_started=True)


def _compiled(experiment: Experiment, options: argparse.Namespace, *, nodes_started: bool) -> int:
    told = {"experiment": experiment.name, "nodes_started": nodes_started}
    before = "" if nodes_started else " already, so no Trn2 node was started"
    print(as_json(told) if options.json else f"{experiment.name}: every artifact is complete{before}")
    return 0


def _reviewed(options: argparse.Namespace) -> tuple[Experiment, tuple[ManifestFile, ...]]:
    experiment = experiment_of(options.experiment, verb="deliver")
    return experiment, read(experiment, options.manifests)


def _minutes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 36 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes from 1 to {36 * 60}")
    return int(text)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
