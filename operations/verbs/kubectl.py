"""`kubectl`: the real one, on the experiment's cluster."""

from __future__ import annotations

import argparse

from experiment.finding import Misuse
from operations.access import cluster_of
from operations.options import add_experiment, aws_of, experiment_of

HELP = "kubectl on the experiment's cluster and namespace; needs neither kubectl nor the AWS CLI installed"


def configure(parser: argparse.ArgumentParser) -> None:
    """Our options first, then kubectl's own."""
    add_experiment(parser)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="what kubectl gets")


def execute(options: argparse.Namespace) -> int:
    """kubectl's own exit code; `--json` becomes `--output=json`."""
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    if not arguments:
        raise Misuse("no arguments; write them behind the options, for example `scripts/kubectl get pods`")
    experiment = experiment_of(options.experiment, verb="ask")
    with cluster_of(experiment, aws_of(experiment, options)) as cluster:
        return cluster.passthrough([*arguments, *(["--output=json"] if options.json else [])])
