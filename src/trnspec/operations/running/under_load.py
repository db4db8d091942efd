"""Servers under the load of a Job: they are watched while it measures, and waited for where their node is taken away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnspec.benchmark import NODES_VARIABLE
from trnspec.core.words import count
from trnspec.experiment import Arm
from trnspec.operations.cloud import kubernetes
from trnspec.operations.cloud.pod_trouble import trouble
from trnspec.operations.running import trn2_nodes
from trnspec.operations.running.context import Context, StepError, create, remove, wait_for

BENCHMARK_S = 12 * 3600
_NOTICE_S = 180
"""A server on spot may end a little before its node is seen to go: EC2 gives two minutes
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html)."""


def ready(context: Context, up: Sequence[Arm]) -> dict[str, int]:
    """Ready replicas by arm, of those that are up. `StepError` where somebody changed the replicas that were set: a deployment sets
    them to 0."""
    deployments = context.cluster.list("deployments")
    found = {item["metadata"]["name"]: kubernetes.replicas(item) for item in deployments}
    for arm in context.experiment.arms:
        wanted, now = int(arm in up), found.get(arm.name, (0, 0))[0]
        if now != wanted:
            raise StepError(
                f"deployment {arm.name}: has {count(now, 'replica')}, and this run set {wanted}: a deployment or someone changed it; wait "
                "until that has ended, then run this again to go on"
            )
    return {name: ready for name, (_, ready) in found.items()}


def tell_nodes(context: Context, job: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Which node serves each arm, for the records: the client does not pool over a replaced one."""
    pods = context.cluster.list("pods")
    served = {arm.name: node for arm in arms if (node := kubernetes.node_of(pods, arm.name))}
    # A node is named after its address, which another one may get later; its instance has an id of its own.
    ids = {
        node["metadata"]["name"]: str(node.get("spec", {}).get("providerID", "")).rpartition("/")[2]
        for node in context.cluster.list("nodes")
    }
    served = {arm: ids.get(node) or node for arm, node in served.items()}
    told = {"name": NODES_VARIABLE, "value": " ".join(f"{arm}={node}" for arm, node in served.items())}
    containers: list[Any] = [*kubernetes.pod_containers(job)]
    for container in containers if served else ():
        if container["name"] in ("run", "repeat"):
            container["env"] = [*container.get("env", ()), told]


def run_load_job(
    context: Context,
    made: Callable[[], dict[str, Any]],
    arms: Sequence[Arm],
    *,
    again: Callable[[], None],
    remedy: str,
) -> None:
    """Create a Job that loads these arms, and wait until it is complete.

    Where a node is taken away, the Job is removed, and made again once the arms are up on the node that comes, which `again` waits
    for. Raises `StepError` where an arm dies or is lowered: the Job, which would go on asking a server that is not there, is removed.
    """
    while True:
        job = made()
        name, same = str(job["metadata"]["name"]), trn2_nodes.nodes_unchanged(context)
        _make_room(context, job)
        create(context, job)
        patience_s = max(BENCHMARK_S, job["spec"].get("activeDeadlineSeconds", 0))
        look = _watch(context, name, arms, same)
        try:
            wait_for(context, name, patience_s=patience_s, remedy=remedy, still=look)
            # Between the last look and its end a Job may have asked servers that were gone.
            context.wait(look, patience_s=2 * _NOTICE_S, remedy=remedy)
            return
        except _NodeGone:
            remove(context, name)
        again()


class _NodeGone(Exception):
    """The servers under load are gone with their node."""


def _watch(
    context: Context, job: str, arms: Sequence[Arm], same: Callable[[], bool]
) -> Callable[[], str | None]:
    """A look at the servers under a Job's load: which of them does not answer, while its node may be about to go; None where all is
    well. It raises `_NodeGone` where the nodes are not those that the Job began with, or `StepError` once the Job was removed
    that would go on asking."""
    # Questions are for some arms of their first round; the others are up beside them.
    beside = next(group for group in context.plan.rounds if all(arm in group for arm in arms))
    dead_since: float | None = None

    def dead() -> str | None:
        nonlocal dead_since
        pods, up = context.cluster.list("pods"), ready(context, beside)
        troubles = {arm.name: trouble(context.experiment, pods, arm.name) for arm in arms if not up[arm.name]}
        line = next((f"arm {arm} died under load: {why}" for arm, why in troubles.items() if why), None)
        now = context.clock.ticking()
        dead_since = None if line is None else now if dead_since is None else dead_since
        spot = context.experiment.cluster.capacity.kind == "spot"
        if dead_since is not None and (not spot or now - dead_since >= _NOTICE_S):
            raise StepError(f"{line}; what was measured is kept, run this again to go on")
        return line

    def look() -> str | None:
        try:
            if not same():
                raise _NodeGone
            return dead()
        except StepError:
            context.cluster.delete("job", job)
            raise

    return look


def _make_room(context: Context, job: kubernetes.Object) -> None:
    """A Job of an interrupted run that was told other nodes goes; and no pod of an earlier one may write while the next one begins."""
    name = str(job["metadata"]["name"])
    found = context.cluster.get("job", name)
    if found is None or (_told(found) != _told(job) and kubernetes.job_state(found) == "active"):
        remove(context, name)


def _told(job: kubernetes.Object) -> str:
    said = (item for container in kubernetes.pod_containers(job) for item in container.get("env", ()))
    return next((str(item.get("value", "")) for item in said if item["name"] == NODES_VARIABLE), "")
