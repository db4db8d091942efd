"""All checks, none of which keeps the next from being made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from experiment.finding import Finding, Refusal, State
from operations.preflight import account, capacity, images, network, versions

if TYPE_CHECKING:
    from experiment import Experiment
    from operations.aws import Aws
    from operations.preflight.web import Web


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
    for image in (*images.of(experiment), *versions.charts()):
        yield _made("image", lambda image=image: images.reachable(image, web))  # type: ignore[misc] # mypy cannot see a default argument in a lambda
    yield _made("admin_cidrs", lambda: network.admin_cidrs(experiment, web))


def _made(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Refusal as error:
        return replace(error.findings[0], check=name)
