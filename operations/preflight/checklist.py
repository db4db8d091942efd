"""`preflight`: what is missing before an experiment can be deployed and run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from experiment import Experiment
from experiment.finding import Finding, Refusal, State
from operations.cloud.aws import Aws, aws_of
from operations.console import table
from operations.options import add_experiment, as_json, experiment_of
from operations.preflight import account, capacity, reach

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
    for one in judge(experiment, aws_of(experiment, options), reach.Web(), now=datetime.now(UTC)):
        print(f"    {one.check}: {one.state}", file=sys.stderr)
        findings.append(one)
    if options.json:
        checks = [
            {"check": one.check, "state": one.state, "detail": one.said(), "remedy": one.remedy}
            for one in findings
        ]
        print(as_json({"experiment": experiment.name, "checks": checks}))
    else:
        rows = [(one.check, one.state, one.line()) for one in findings]
        print(table(("check", "state", "what"), rows))
    states = {one.state for one in findings}
    return 1 if State.FINDING in states else 3 if State.UNKNOWN in states else 0


def judge(experiment: Experiment, aws: Aws, web: reach.Web, *, now: datetime) -> Iterator[Finding]:
    """Findings in the order in which they are made; without credentials one stands for all that need them."""
    first = _made("credentials", partial(account.credentials, aws))
    yield first
    if first.state is State.FINE:
        yield _made("quota", lambda: account.quota(experiment, aws))
        yield _made("system quota", lambda: account.system_quota(aws))
        yield _made("instance", lambda: capacity.offered(experiment, aws))
        yield _made("capacity", lambda: capacity.reserved(experiment, aws, now=now))
        yield _made("kubernetes", lambda: account.kubernetes_version(experiment, aws))
        yield _made("node images", lambda: account.node_images(experiment, aws))
        yield _made("add-ons", lambda: account.addons(experiment, aws))
        yield _made("bootstrap", lambda: account.bootstrap(aws))
        yield _made("stacks", lambda: account.halfway_stacks(experiment, aws))
        yield _made("leftovers", lambda: account.what_was_left(experiment, aws))
    else:
        why = "quotas, instance, capacity, versions, bootstrap and stacks were not asked about"
        remedy = "correct the credentials, then run this again"
        yield Finding("", None, why, remedy, check="account", state=State.UNKNOWN)
    for image in reach.images(experiment):
        yield _made("image", partial(reach.reachable, image, web))
    yield _made("admin_cidrs", lambda: reach.admin_cidrs(experiment, web))


def _made(name: str, check: Callable[[], Finding]) -> Finding:
    """A refused check keeps no other from being made."""
    try:
        found = check()
    except Refusal as error:
        found = error.findings[0]
    return replace(found, check=name)
