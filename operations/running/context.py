"""What every step of a run works with: the experiment, the account, the cluster, the state, and waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import ManifestFile
from core.console import progress
from core.findings import Finding, Refusal
from core.words import count
from experiment import Experiment
from experiment.catalogue.prices import TRN2_ON_DEMAND
from experiment.cost import run_price
from experiment.naming import bucket
from experiment.placement import rounds
from infra.off_schedules import block_over
from operations.cloud import nodegroup
from operations.cloud.aws import Aws
from operations.cloud.clock import Clock, moment, stamp
from operations.cloud.cloudformation import deploy_workloads
from operations.cloud.kubernetes import Kubernetes
from operations.running.state import Held, RunState, RunStore
from operations.verification import verify

POLL_S = 15
GRACE_MIN = 15.0
"""Time to look at a node before it is given back: scarce capacity may not come again."""
_RENEW_EVERY = timedelta(minutes=1)


def predicted_h(experiment: Experiment, step: str, *, to_compile: int | None = None) -> float:
    """Trn2 hours that the price of a run assumes for a step; 0 where it assumes nothing."""
    name, _, number = step.partition("-")
    parts = run_price(experiment, to_compile=to_compile, items=()).parts
    hours = {part.step: part.hours for part in parts}
    assumed = hours.get({"nodes": "nodes start", "arms": "load"}.get(name, name), 0.0)
    return assumed / len(rounds(experiment)) if number else assumed


class StepError(Refusal):
    """A step cannot be carried out; the message is the line that the user gets."""


class UnprovenError(StepError):
    """The nodes are there and something about them is not as it must be: worth a look before they are given back."""


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
    needs_h: float = 0.0
    """Trn2 hours that must be left before a schedule sets the nodes to 0, or none start."""
    out: Path
    """Folder for the results."""
    say: Callable[[str], None]
    report: Callable[[Path], None]
    """Makes the report of a results folder."""
    verify: Callable[..., list[Finding]] | None = verify
    """Proves the nodes. `None`: nothing is proved about nodes and images."""
    profile: bool = False
    """Whether each arm is profiled after it was measured."""
    grace_min: float = GRACE_MIN
    """So long the nodes stay after a proof that failed."""
    _last_said: str = field(default="", init=False)

    @property
    def state(self) -> RunState:
        return self.held.state

    @property
    def usd_per_hour(self) -> float:
        """List price of a Trn2 node."""
        return TRN2_ON_DEMAND[self.experiment.instance.name].usd_per_hour

    def bucket(self, purpose: str) -> str:
        return bucket(self.experiment, purpose, self.aws.account)

    def save(self, **changes: Any) -> None:
        """Write the state, which renews the lease as well."""
        self.held = self.store.save(self.held, renewed=stamp(self.clock.now()), **changes)

    def renew(self) -> None:
        """Renew the lease where the last time is long ago: others take the run up once its driver is silent."""
        if self.clock.now() - moment(self.state.renewed) >= _RENEW_EVERY:
            self.save()

    def wait(self, check: Callable[[], str | None], *, patience_s: float, remedy: str) -> None:
        """Ask again and again until `check` returns None; what it returns is what is waited for.

        Raises `StepError` with `remedy` when it takes longer than `patience_s`.
        """
        begun = self.clock.ticking()
        predicted_s = 3600 * predicted_h(self.experiment, self.state.step)
        with progress(self.state.step) as show:
            while (waiting_for := check()) is not None:
                if waiting_for != self._last_said:
                    self.say(f"    {waiting_for}")
                    self._last_said = waiting_for
                if self.clock.ticking() - begun >= patience_s:
                    raise StepError(f"{waiting_for}, for {patience_s / 60:.0f} minutes; {remedy}")
                self.renew()
                left_s = predicted_s - (self.clock.ticking() - begun)
                left = f", predicted {left_s / 60:.0f} more minutes" if left_s > 0 else ""
                show(doing=f"{self.state.step}{left}: {waiting_for}")
                self.clock.sleep(POLL_S)

    def need(self, kind: str, name: str) -> dict[str, Any]:
        """An object that a deployment, or GitOps, applies. Raises `StepError` when the cluster does not have it."""
        if (found := self.cluster.get(kind, name)) is None:
            remedy = deploy_workloads(self.experiment.name)
            raise StepError(f"{kind} {name}: none in the cluster; {remedy}")
        return found

    def need_nodes(self) -> nodegroup.Group:
        """The Trn2 group. Raises `StepError` when its nodes were taken away, or are about to be."""
        capacity, over = self.experiment.cluster.capacity, block_over(self.experiment)
        if over is not None and over <= self.clock.now():
            raise StepError(
                f"capacity block {capacity.reservation_id} ends at {capacity.ends_at}, and its nodes are taken away from an "
                "hour before; what was measured is kept: buy or extend a block, set cluster.capacity, deploy and run this "
                "again"
            )
        group = nodegroup.read(self.experiment, self.aws)
        if group.desired < self.state.nodes:
            raise StepError(
                f"{group.name}: someone or its schedule (off at {self.state.off_at or 'the daily hour'}) set it to "
                f"{count(group.desired, 'node')}; run this again, with more --hours where the time was too short"
            )
        return group

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
