"""`preflight`: what is missing before an experiment can be deployed and run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from experiment.finding import Finding, Refusal, State
from operations.console import table
from operations.options import add_experiment, as_json, aws_of, experiment_of
from operations.preflight import account, capacity, reach
from operations.preflight import account as versions
from operations.preflight.reach import Web

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.cloud.aws import Aws
    from operations.preflight.reach import Web


def judge(experiment: Experiment, aws: Aws, web: Web, *, now: datetime) -> Iterator[Finding]:
    """Findings in the order in which they are made; without credentials one stands for all that need them."""
    first = _made("credentials", lambda: account.credentials(aws))
    yield first
    if first.state is State.FINE:
        asked: tuple[tuple[str, Callable[[], Finding]], ...] = (
            ("quota", lambda: account.quota(experiment, aws)),
            ("system quota", lambda: account.system_quota(aws)),
            ("instance", lambda: capacity.offered(experiment, aws)),
            ("capacity", lambda: capacity.reserved(experiment, aws, now=now)),
            ("kubernetes", lambda: account.kubernetes_version(experiment, aws)),
            ("node images", lambda: versions.node_images(experiment, aws)),
            ("add-ons", lambda: versions.addons(experiment, aws)),
            ("bootstrap", lambda: account.bootstrap(aws)),
            ("stacks", lambda: account.halfway_stacks(experiment, aws)),
            ("leftovers", lambda: account.what_was_left(experiment, aws)),
        )
        yield from (_made(name, check) for name, check in asked)
    else:
        why = "quotas, instance, capacity, versions, bootstrap and stacks were not asked about"
        remedy = "correct the credentials, then run this again"
        yield Finding("", None, why, remedy, check="account", state=State.UNKNOWN)
    for image in (*reach.of(experiment), *versions.charts()):
        yield _made("image", lambda image=image: reach.reachable(image, web))  # type: ignore[misc] # mypy cannot see a default argument in a lambda
    yield _made("admin_cidrs", lambda: reach.admin_cidrs(experiment, web))


def _made(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Refusal as error:
        return replace(error.findings[0], check=name)


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
