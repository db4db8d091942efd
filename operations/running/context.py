"""What every step of a run works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiment.catalogue.prices import TRN2_ON_DEMAND
from experiment.finding import Refusal
from infra.settings import BEFORE_BLOCK_ENDS
from operations.cloud import nodegroup
from operations.cloud.clock import moment, stamp

if TYPE_CHECKING:
    from cdk8s_charts.manifests import ManifestFile
    from experiment import Experiment
    from operations.cloud.aws import Aws
    from operations.cloud.clock import Clock
    from operations.cloud.kubernetes import Kubernetes
    from operations.running.state import Held, RunState, RunStore


POLL_S = 15
_RENEW_EVERY = timedelta(minutes=1)
_GRACE = timedelta(minutes=5)
"""Issues of an earlier try stand in a group's health until EKS has looked again."""


class StepError(Refusal):
    """A step cannot be carried out; the message is the line that the user gets."""


@dataclass(kw_only=True)
class Context:
    """One run on one account; `held` is its state, written after everything that must not be forgotten."""

    experiment: Experiment
    aws: Aws
    cluster: Kubernetes
    clock: Clock
    store: RunStore
    held: Held
    files: tuple[ManifestFile, ...]
    """The manifests as they were reviewed: which Jobs belong to the experiment."""
    hours: float
    """Time to live of the nodes."""
    out: Path
    """Folder for the results."""
    say: Callable[[str], None]
    verify: Callable[[Context], None] | None = None
    """Proves the nodes; raises `Refusal` where they fail. `None`: nothing is proved."""
    report: Callable[[Path], None] | None = None
    """Makes the report of a results folder."""
    _last_said: str = field(default="", init=False)

    @property
    def state(self) -> RunState:
        return self.held.state

    @property
    def usd_per_hour(self) -> float:
        """List price of a Trn2 node."""
        return TRN2_ON_DEMAND[self.experiment.instance.name].usd_per_hour

    def save(self, **changes: Any) -> None:
        """Write the state; the owner is heard with it."""
        self.held = self.store.save(self.held, renewed=stamp(self.clock.now()), **changes)

    def wait(self, check: Callable[[], str | None], *, patience_s: float, remedy: str) -> None:
        """Ask again and again until `check` returns nothing; what it returns is what is waited for.

        Raises `StepError` with `remedy` when it takes longer than `patience_s`.
        """
        begun = self.clock.now()
        while (waiting_for := check()) is not None:
            if waiting_for != self._last_said:
                self.say(f"    {waiting_for}")
                self._last_said = waiting_for
            if (self.clock.now() - begun).total_seconds() >= patience_s:
                raise StepError(f"{waiting_for}, for {patience_s / 60:.0f} minutes; {remedy}")
            if self.clock.now() - moment(self.state.renewed) >= _RENEW_EVERY:
                self.save()
            self.clock.sleep(POLL_S)

    def need_nodes(self) -> nodegroup.Group:
        """The Trn2 group. Raises `StepError` when its nodes were taken away, or are about to be."""
        self._refuse_ending_block()
        group = nodegroup.read(self.experiment, self.aws)
        if group.desired < self.state.nodes:
            raise StepError(
                f"{group.name}: somebody or its schedule (off at {self.state.off_at or 'the daily hour'}) set it to "
                f"{group.desired} nodes; run this again, with more --hours where the time was too short"
            )
        return group

    def _refuse_ending_block(self) -> None:
        capacity = self.experiment.cluster.capacity
        if capacity.ends_at is not None and moment(capacity.ends_at) - BEFORE_BLOCK_ENDS <= self.clock.now():
            raise StepError(
                f"capacity block {capacity.reservation_id} ends at {capacity.ends_at}, and its nodes are taken away from an "
                "hour before; what was measured is kept: buy or extend a block, set cluster.capacity, deploy and run this "
                "again"
            )

    def refuse_issues(self, group: nodegroup.Group) -> None:
        """`StepError` for what EKS says keeps nodes away, once it has had the time to forget what it said before."""
        if group.issues and self.clock.now() - moment(self.state.nodes_since) >= _GRACE:
            raise StepError(_capacity(self.experiment, group))

    def asked_for(self, nodes: int, *, off_at: str = "") -> None:
        """Remember that nodes bill, or that they no longer do."""
        hours = self.state.node_hours + self.hours_open()
        since = stamp(self.clock.now()) if nodes else ""
        self.save(nodes=nodes, nodes_since=since, off_at=off_at, node_hours=hours)

    def hours_open(self) -> float:
        """Node hours since nodes were last asked for; no longer than their time to live."""
        if not self.state.nodes or not self.state.nodes_since:
            return 0.0
        until = self.clock.now()
        if self.state.off_at:
            until = min(until, moment(self.state.off_at))
        return max(0.0, self.state.nodes * ((until - moment(self.state.nodes_since)) / timedelta(hours=1)))


def _capacity(experiment: Experiment, group: nodegroup.Group) -> str:
    """The remedy for what EKS says of a group that does not get its nodes."""
    issue, cluster = group.issues[0], experiment.cluster
    if "InsufficientInstanceCapacity" in issue or (
        "insufficient" in issue.lower() and "capacity" in issue.lower()
    ):
        remedy = (
            f"EC2 has no {cluster.instance} here now: try again later, begin cluster.availability_zones with another "
            "zone and deploy, or buy a capacity block (cluster.capacity)"
        )
    elif "LimitExceeded" in issue:
        remedy = "the quota is too small: scripts/preflight prints the command that asks for more"
    else:
        remedy = "fix what it names, then run this again"
    return f"{group.name}: no nodes ({issue}); {remedy}"
