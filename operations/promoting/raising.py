"""`--now`: the losing arms to 0 and the winner up, in a cluster that runs already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.finding import Refusal
from operations.cloud import markers, nodegroup
from operations.cloud.access import cluster_of
from operations.cloud.kubernetes import replicas
from operations.running.state import RunStore

if TYPE_CHECKING:
    from experiment import Experiment
    from experiment.schema import Serve
    from operations.cloud.aws import Aws
    from operations.cloud.kubernetes import Kubernetes


@dataclass(frozen=True, kw_only=True)
class Change:
    """Replicas of one arm."""

    arm: str
    before: int
    after: int


def refuse_unready(experiment: Experiment, serve: Serve, aws: Aws) -> nodegroup.Group:
    """What must be so before an arm may be raised; returns the Trn2 group.

    Raises `Refusal` while a run is under way, whose arms these are, and where the arm was never compiled.
    """
    held = RunStore(experiment, aws).current()
    if held is not None:
        raise Refusal(
            f"run {held.state.id}: is unfinished and its arms would be taken from it; finish it with scripts/run, then promote"
        )
    arm = next(arm for arm in experiment.arms if arm.name == serve.arm)
    if not markers.has_artifact(experiment, aws, arm):
        raise Refusal(
            f"{arm.name}: has no compiled artifact, so its pods would wait for ever; run scripts/run, which compiles it"
        )
    return nodegroup.read(experiment, aws)


def raise_winner(experiment: Experiment, serve: Serve, aws: Aws) -> list[Change]:
    """Losers first, since the winner may need their devices. Safe to repeat."""
    with cluster_of(experiment, aws) as cluster:
        losers = [arm.name for arm in experiment.served_arms if arm.name != serve.arm]
        return [_set(cluster, name, 0) for name in losers] + [_raise(cluster, serve)]


def _set(cluster: Kubernetes, name: str, wanted: int) -> Change:
    before, _ = replicas(cluster.get("deployment", name))
    if before != wanted:
        cluster.scale(name, wanted)
    return Change(arm=name, before=before, after=wanted)


def _raise(cluster: Kubernetes, serve: Serve) -> Change:
    """What scaled up while requests waited stays within its bounds."""
    before, _ = replicas(cluster.get("deployment", serve.arm))
    return _set(cluster, serve.arm, min(max(before, serve.replicas), serve.max_replicas))
