"""`preflight`: what is missing before an experiment can be deployed and run. A check is a function that returns a finding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from infra.deployment_file import read_deployment
from infra.synthesis import DEPLOYMENT
from trnspec.core.console import print_json, print_table, progress, warn
from trnspec.core.findings import Finding, Outside, Refusal, State, fine
from trnspec.experiment import Experiment, load
from trnspec.operations.cloud.aws import Aws, aws_of
from trnspec.operations.cloud.clock import Clock
from trnspec.operations.options import with_experiment
from trnspec.operations.preflight import account_setup, capacity_offers, external_services, quota_and_zone
from trnspec.operations.preflight.existing_vpc import ExistingVpc

PINS_AND_ZONE = ("instance", "kubernetes", "node images", "add-ons")
QUOTAS = ("quota", "system quota")
_NEEDED_LATER = ("capacity", "stacks", *QUOTAS)
"""Checks that do not keep a deployment from working: it starts no Trn2 node, and repairs an incomplete stack."""
Checks = dict[str, Callable[[], Finding]]


@with_experiment
def command(path: Path, as_json: bool) -> int:
    """Check the AWS account before a deployment, and ask every region where nodes can be bought now. Changes and buys nothing.

    Each finding has its remedy. Under the checks: the offers with their price, the command that buys a Capacity Block, and the
    section of the file to paste. Exit 0 if everything is fine, 1 with findings, 3 if something could not be asked.
    """
    experiment = load(path)
    aws, now, findings = aws_of(experiment), Clock().now(), list[Finding]()
    total = 1 + len(_of_account(experiment, aws, now)) + len(_of_others(experiment))
    with progress(f"preflight {experiment.name}", total) as advance:
        for check in run_checks(experiment, aws, now=now):
            print(f"    {check.check}: {check.state}", file=sys.stderr)
            findings.append(check)
            advance(steps=1)
    offered: capacity_offers.Market | None = None
    if findings[0].state is State.FINE:
        try:
            offered = capacity_offers.ask(experiment, aws, now=now)
            findings.append(replace(offered.finding, check="offers"))
        except Refusal as error:
            findings.append(replace(error.findings[0], check="offers"))
    if as_json:
        checks, offers = [check.as_json() for check in findings], offered and capacity_offers.as_json(offered)
        print_json({"experiment": experiment.name, "checks": checks, "offers": offers})
    else:
        rows = [(check.check, check.state, check.line()) for check in findings]
        print_table(("check", "state", "what"), rows)
        if offered:
            print("", *capacity_offers.as_lines(offered), sep="\n")
    states = {check.state for check in findings}
    return 1 if State.FINDING in states else 3 if State.UNKNOWN in states else 0


def run_checks(experiment: Experiment, aws: Aws, *, now: datetime) -> Iterator[Finding]:
    """Yield findings in the order of the checks; without credentials, one finding replaces all checks that need them."""
    first = run_check(
        "credentials", lambda: fine(f"{aws.identity['Arn']} in account {aws.account}, {aws.region}")
    )
    yield first
    if first.state is State.FINE:
        for name, check in _of_account(experiment, aws, now).items():
            yield run_check(name, check)
    else:
        why = "quotas, instance, capacity, versions, bootstrap and stacks were not asked about"
        remedy = "correct the credentials, then run this again"
        yield Finding("", None, why, remedy, check="account", state=State.UNKNOWN)
    for name, check in _of_others(experiment).items():
        yield run_check(name, check)


def _of_account(experiment: Experiment, aws: Aws, now: datetime) -> Checks:
    """Return the checks that need credentials."""
    both = experiment, aws
    return {
        "quota": lambda: quota_and_zone.quota(*both),
        "system quota": lambda: quota_and_zone.system_quota(aws),
        "instance": lambda: quota_and_zone.instance_offered(*both),
        "capacity": lambda: quota_and_zone.capacity(*both, now=now),
        "kubernetes": lambda: account_setup.kubernetes_version(*both),
        "cluster": lambda: account_setup.cluster_version(*both),
        "node images": lambda: account_setup.node_images(*both),
        "add-ons": lambda: account_setup.addons(*both),
        "bootstrap": lambda: account_setup.bootstrap(*both, read_deployment(DEPLOYMENT)),
        "stacks": lambda: account_setup.incomplete_stacks(*both),
        "leftovers": lambda: account_setup.leftovers(*both),
        "admins": lambda: account_setup.administrators(aws, read_deployment(DEPLOYMENT)),
        "kms key": lambda: account_setup.imported_key(aws, read_deployment(DEPLOYMENT)),
        **ExistingVpc(*both).checks(),
    }


def _of_others(experiment: Experiment) -> Checks:
    """Return the checks that need no credentials of AWS."""
    checks: Checks = {}
    if external_services.models_with_token(experiment):
        checks["licences"] = lambda: external_services.licences(experiment)
    return {**checks, "admin_cidrs": lambda: external_services.admin_cidrs(experiment)}


def failing(experiment: Experiment, aws: Aws, *names: str) -> list[Finding]:
    """Return the findings of these checks that are not fine; without names, of all that a deployment depends on."""
    checks = _of_account(experiment, aws, datetime.now(UTC))
    chosen = names or [name for name in checks if name not in _NEEDED_LATER]
    found = [run_check(name, checks[name]) for name in chosen]
    named = [replace(check, where=check.where or f"preflight, {check.check}") for check in found]
    return [check for check in named if check.state is not State.FINE]


def check_deployable(experiment: Experiment, aws: Aws) -> None:
    """Raise `Refusal` for what would end a deployment, before it makes anything; `Outside` if there is nothing of that and
    something could not be asked. A quota that is too small is a line, because only a run needs it."""
    found = failing(experiment, aws)
    notes = [check for check in found if check.state is State.WARNING]
    for note in (*notes, *failing(experiment, aws, *QUOTAS)):
        warn(note.line())
    if wrong := [check for check in found if check.state is State.FINDING]:
        raise Refusal(*wrong)
    if unknown := [check for check in found if check.state is State.UNKNOWN]:
        raise Outside(*unknown)


def run_check(name: str, check: Callable[[], Finding]) -> Finding:
    """Run a check and return its finding; a check that is refused does not stop the others."""
    try:
        return replace(check(), check=name)
    except Refusal as error:
        return replace(error.findings[0], check=name)
