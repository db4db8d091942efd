"""`preflight`: what is missing before an experiment can be deployed and run. A check is a function that returns a finding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from core.console import print_json, print_table, progress
from core.findings import Finding, Outside, Refusal, State
from experiment import Experiment
from infra.deployment_file import read_deployment
from infra.synthesis import DEPLOYMENT
from operations.cloud.aws import Aws, aws_of
from operations.options import experiment_of, on_aws
from operations.preflight import account as of_account
from operations.preflight import reach
from operations.preflight.existing_cluster import ExistingCluster
from operations.preflight.existing_vpc import ExistingVpc

Checks = dict[str, Callable[[], Finding]]


@on_aws
def command(path: Path, account: str | None, as_json: bool) -> int:
    """Is everything there that an experiment needs? Each finding comes with its remedy. Changes nothing.

    Exit 0 if everything is fine, 1 with findings, 3 without findings if something could not be asked.
    """
    experiment = experiment_of(path, verb="check")
    aws, now, web, findings = aws_of(experiment, account), datetime.now(UTC), reach.Web(), list[Finding]()
    total = 1 + len(_of_account(experiment, aws, now)) + len([*_beyond(experiment, web)])
    with progress(f"preflight {experiment.name}", total) as advance:
        for one in judge(experiment, aws, web, now=now):
            print(f"    {one.check}: {one.state}", file=sys.stderr)
            findings.append(one)
            advance(steps=1)
    if as_json:
        print_json({"experiment": experiment.name, "checks": [one.as_json() for one in findings]})
    else:
        print_table(("check", "state", "what"), [(one.check, one.state, one.line()) for one in findings])
    states = {one.state for one in findings}
    return 1 if State.FINDING in states else 3 if State.UNKNOWN in states else 0


def judge(experiment: Experiment, aws: Aws, web: reach.Web, *, now: datetime) -> Iterator[Finding]:
    """Findings in the order in which they are made; without credentials one stands for all that need them."""
    first = made("credentials", partial(of_account.credentials, aws))
    yield first
    if first.state is State.FINE:
        for name, check in _of_account(experiment, aws, now).items():
            yield made(name, check)
    else:
        why = "quotas, instance, capacity, versions, bootstrap and stacks were not asked about"
        remedy = "correct the credentials, then run this again"
        yield Finding("", None, why, remedy, check="account", state=State.UNKNOWN)
    for name, check in _beyond(experiment, web):
        yield made(name, check)


def _of_account(experiment: Experiment, aws: Aws, now: datetime) -> Checks:
    """Every check that needs credentials."""
    return {
        "quota": lambda: of_account.quota(experiment, aws),
        "system quota": lambda: of_account.system_quota(aws),
        "instance": lambda: of_account.offered(experiment, aws),
        "capacity": lambda: of_account.reserved(experiment, aws, now=now),
        "kubernetes": lambda: of_account.kubernetes_version(experiment, aws),
        "node images": lambda: of_account.node_images(experiment, aws),
        "add-ons": lambda: of_account.addons(experiment, aws),
        "bootstrap": lambda: of_account.bootstrap(aws),
        "stacks": lambda: of_account.halfway_stacks(experiment, aws),
        "leftovers": lambda: of_account.what_was_left(experiment, aws),
        "kms key": lambda: of_account.imported_key(aws, read_deployment(DEPLOYMENT)),
        **_of_others(experiment, aws),
    }


def _of_others(experiment: Experiment, aws: Aws) -> Checks:
    """Every check of an existing cluster and VPC."""
    return {**ExistingCluster(experiment, aws).checks(), **ExistingVpc(experiment, aws).checks()}


def _beyond(experiment: Experiment, web: reach.Web) -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Every check that needs no credentials of AWS."""
    for image in reach.images(experiment):
        yield "image", lambda image=image: reach.reachable(image, web)  # type: ignore[misc]
    if reach.guarded(experiment):
        yield "licences", lambda: reach.licences(experiment, endpoint=web.hub)
    if experiment.cluster.existing is None:
        yield "admin_cidrs", lambda: reach.admin_cidrs(experiment, web)


def refuse_unfit(experiment: Experiment, aws: Aws) -> None:
    """`Refusal` with what is found in an existing VPC or cluster, before a deployment makes anything there; `Outside` where
    nothing is found and something could not be asked."""
    findings = [made(name, check) for name, check in _of_others(experiment, aws).items()]
    named = [replace(one, where=one.where or f"preflight, {one.check}") for one in findings]
    if found := [one for one in named if one.state is State.FINDING]:
        raise Refusal(*found)
    if unknown := [one for one in named if one.state is State.UNKNOWN]:
        raise Outside(*unknown)


def made(name: str, check: Callable[[], Finding]) -> Finding:
    """The finding of a check; one that is refused does not keep the others from being made."""
    try:
        return replace(check(), check=name)
    except Refusal as error:
        return replace(error.findings[0], check=name)
