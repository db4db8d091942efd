"""`preflight`: what is missing before an experiment can be deployed and run."""

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
from operations.preflight import capacity, licences, reach
from operations.preflight.existing_cluster import ExistingCluster
from operations.preflight.existing_vpc import ExistingVpc


@on_aws
def command(path: Path, account: str | None, as_json: bool) -> int:
    """Is everything there that an experiment needs? Each finding comes with its remedy. Changes nothing.

    Exit 0 if everything is fine, 1 with findings, 3 without findings if something could not be asked.
    """
    experiment = experiment_of(path, verb="check")
    findings = []
    aws, now = aws_of(experiment, account), datetime.now(UTC)
    total = (
        len(_of_account(experiment, aws, now))
        + len(reach.images(experiment))
        + 2
        + bool(licences.guarded(experiment))
    )
    with progress(f"preflight {experiment.name}", total) as told:
        for one in judge(experiment, aws, reach.Web(), now=now):
            print(f"    {one.check}: {one.state}", file=sys.stderr)
            findings.append(one)
            told(steps=1)
    if as_json:
        print_json({"experiment": experiment.name, "checks": [one.as_json() for one in findings]})
    else:
        print_table(("check", "state", "what"), [(one.check, one.state, one.line()) for one in findings])
    states = {one.state for one in findings}
    return 1 if State.FINDING in states else 3 if State.UNKNOWN in states else 0


def judge(experiment: Experiment, aws: Aws, web: reach.Web, *, now: datetime) -> Iterator[Finding]:
    """Findings in the order in which they are made; without credentials one stands for all that need them."""
    first = _made("credentials", partial(of_account.credentials, aws))
    yield first
    if first.state is State.FINE:
        for name, check in _of_account(experiment, aws, now).items():
            yield _made(name, check)
    else:
        why = "quotas, instance, capacity, versions, bootstrap and stacks were not asked about"
        remedy = "correct the credentials, then run this again"
        yield Finding("", None, why, remedy, check="account", state=State.UNKNOWN)
    for image in reach.images(experiment):
        yield _made("image", partial(reach.reachable, image, web))
    if licences.guarded(experiment):
        yield _made("licences", partial(licences.licences, experiment, endpoint=web.hub))
    if experiment.cluster.existing is None:
        yield _made("admin_cidrs", lambda: reach.admin_cidrs(experiment, web))


def _of_account(experiment: Experiment, aws: Aws, now: datetime) -> dict[str, Callable[[], Finding]]:
    """Every check that needs credentials."""
    return {
        "quota": lambda: capacity.quota(experiment, aws),
        "system quota": lambda: capacity.system_quota(aws),
        "instance": lambda: capacity.offered(experiment, aws),
        "capacity": lambda: capacity.reserved(experiment, aws, now=now),
        "kubernetes": lambda: of_account.kubernetes_version(experiment, aws),
        "node images": lambda: of_account.node_images(experiment, aws),
        "add-ons": lambda: of_account.addons(experiment, aws),
        "bootstrap": lambda: of_account.bootstrap(aws),
        "stacks": lambda: of_account.halfway_stacks(experiment, aws),
        "leftovers": lambda: of_account.what_was_left(experiment, aws),
        "kms key": lambda: of_account.imported_key(aws, read_deployment(DEPLOYMENT)),
        **ExistingCluster(experiment, aws).checks(),
        **ExistingVpc(experiment, aws).checks(),
    }


def refuse_unfit(experiment: Experiment, aws: Aws) -> None:
    """`Refusal` with what is found in an existing VPC or cluster, before a deployment makes anything there; `Outside` where
    nothing is found and something could not be asked."""
    checks = {**ExistingCluster(experiment, aws).checks(), **ExistingVpc(experiment, aws).checks()}
    asked = [_made(name, check) for name, check in checks.items()]
    named = [replace(one, where=one.where or f"preflight, {one.check}") for one in asked]
    if found := [one for one in named if one.state is State.FINDING]:
        raise Refusal(*found)
    if unknown := [one for one in named if one.state is State.UNKNOWN]:
        raise Outside(*unknown)


def _made(name: str, check: Callable[[], Finding]) -> Finding:
    """A refused check keeps no other from being made."""
    try:
        found = check()
    except Refusal as error:
        found = error.findings[0]
    return replace(found, check=name)
