"""`preflight`: what is missing before an experiment can be deployed and run."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from experiment.finding import Finding, State
from operations.options import add_experiment, as_json, aws_of, experiment_of
from operations.preflight.judge import judge
from operations.preflight.web import Web
from operations.table import table

HELP = (
    "is everything there that an experiment needs? each finding with its remedy; changes nothing. Exit 1 with a finding, "
    "3 with none when something could not be asked"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Only which experiment."""
    add_experiment(parser)


def execute(options: argparse.Namespace) -> int:
    """Exit 0 when all is fine, 1 with findings, 3 when there are none but something could not be asked."""
    experiment = experiment_of(options.experiment, verb="check")
    findings = []
    for one in judge(experiment, aws_of(experiment, options), Web(), now=datetime.now(UTC)):
        print(f"    {one.check}: {one.state}", file=sys.stderr)
        findings.append(one)
    if options.json:
        print(as_json({"experiment": experiment.name, "checks": [_as_data(one) for one in findings]}))
    else:
        rows = [(one.check, one.state, one.line()) for one in findings]
        print(table(("check", "state", "what"), rows))
    states = {one.state for one in findings}
    return 1 if State.FINDING in states else 3 if State.UNKNOWN in states else 0


def _as_data(one: Finding) -> dict[str, str]:
    return {"check": one.check, "state": one.state, "detail": one.said(), "remedy": one.remedy}
