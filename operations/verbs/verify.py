"""`verify`: what only real nodes can prove, before anything is compiled on them."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from experiment.finding import Finding, State
from operations.access import cluster_of
from operations.clock import SystemClock
from operations.options import add_experiment, as_json, aws_of, experiment_of
from operations.table import table
from operations.verify.verifying import verify

HELP = "check on running Trn2 nodes everything that could not be tried without AWS; about two minutes"


def configure(parser: argparse.ArgumentParser) -> None:
    """Only which experiment."""
    add_experiment(parser)


def execute(options: argparse.Namespace) -> int:
    """Exit 0 when every check passed, 1 when one failed."""
    experiment = experiment_of(options.experiment, verb="verify")
    with cluster_of(experiment, aws_of(experiment, options)) as kubernetes:
        findings = verify(
            experiment, kubernetes, SystemClock(), tell=lambda text: print(text, file=sys.stderr)
        )
    bad = [one for one in findings if one.state is not State.FINE]
    if options.json:
        print(as_json({"passed": not bad, "checks": [_as_data(one) for one in findings]}))
        return 1 if bad else 0
    rows = [
        ("FAIL" if one in bad else "PASS", one.check, one.where, f"{one.why}. {one.remedy}".rstrip(". "))
        for one in findings
    ]
    print(table(("", "check", "where", "found"), rows))
    print(f"\n{len(findings) - len(bad)} checks passed, {len(bad)} failed")
    return 1 if bad else 0


def _as_data(one: Finding) -> dict[str, Any]:
    return {
        "check": one.check,
        "subject": one.where,
        "passed": one.state is State.FINE,
        "found": one.why,
        "remedy": one.remedy,
    }
