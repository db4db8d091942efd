"""The Trn2 nodes under a run: whether they are there, which they are, and what happens when one is taken away.

A spot node can be taken away at any time, two minutes after its notice, and a broken node is replaced. EKS keeps the group's size, so
another node comes where EC2 has one (https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html#managed-node-group-capacity-types).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from infra.off_schedules import block_over
from trnspec.core.words import count, listed
from trnspec.experiment import Experiment
from trnspec.operations.cloud import kubernetes, nodegroup
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.cloud.node_issues import current_issue
from trnspec.operations.running import spending, waiting
from trnspec.operations.running.context import (
    ENDED,
    Context,
    NoCapacityError,
    StepError,
    create,
    job_progress,
)
from trnspec.operations.running.state import NodesReplaced

NODES_S = 40 * 60
_GRACE = timedelta(minutes=5)
"""EC2 Auto Scaling tries a launch that failed again within minutes."""
_BOOT = timedelta(minutes=2)
"""From the launch of an instance, which bills, to its node. An estimate."""


def need(context: Context) -> nodegroup.Group:
    """The Trn2 group. Raises `StepError` where its nodes were set to 0, or are about to be, or cost too much."""
    capacity, over = context.experiment.cluster.capacity, block_over(context.experiment)
    if over is not None and over <= context.clock.now():
        raise StepError(
            f"capacity block {capacity.reservation_id} ends at {capacity.ends_at}, and its nodes are taken away from an "
            "hour before; what was measured is kept: buy or extend a block, set cluster.capacity, deploy and run this "
            "again"
        )
    spending.refuse(context)
    group, off_at = nodegroup.read(context.experiment, context.aws), context.state.off_at
    if off_at and group.desired and moment(off_at) + _GRACE <= context.clock.now():
        raise StepError(
            f"{group.name}: still has {count(group.desired, 'node')}, which its schedule was to set to 0 at {off_at}; the run ends here, and "
            "sets them to 0: read ./trnspec status, then run this again"
        )
    if group.desired < context.state.nodes:
        raise StepError(
            f"{group.name}: someone or its schedule (off at {context.state.off_at or 'the daily hour'}) set it to "
            f"{count(group.desired, 'node')}; run this again, with more --hours where the time was too short"
        )
    return group


def missing(context: Context) -> str | None:
    """What is waited for while nodes are missing, None once all are there: then it is remembered which they are.

    Raises `StepError` where none can be expected, `NoCapacityError` where EC2 has none.
    """
    group, wanted, now = need(context), context.plan.nodes, context.clock.now()
    found = kubernetes.own_nodes(context.cluster.list("nodes"))
    own = {node["metadata"]["name"]: node for node in found if kubernetes.role(node) == "neuron"}
    names = tuple(sorted(name for name, node in own.items() if kubernetes.is_usable(node)))
    gone = sorted({*context.state.node_names} - {*names})
    if len(names) >= wanted:
        _remember(context, names, gone)
        context.away_since = None
        return None
    if context.away_since is None:
        context.away_since = now
        if gone:
            were = "was" if len(gone) == 1 else "were"
            context.say(f"    {listed(gone)} {were} taken away at {stamp(now)}; {spending.KEPT}")
    if gone and (away := max(0, wanted - len(own))) != context.state.nodes_away:
        context.save(**spending.settled(context), nodes_since=stamp(now), nodes_away=away)
    asked = context.away_since if gone or not context.state.nodes_since else moment(context.state.nodes_since)
    late = now - context.away_since >= _GRACE
    if late and (issue := current_issue(group, context.aws, since=asked)) is not None:
        kind = NoCapacityError if waiting.is_no_capacity(issue) else StepError
        raise kind(f"{group.name}: no nodes ({issue}); {_remedy(context.experiment, issue)}")
    waits = f"{group.name}: {len(names)} of {count(wanted, 'node')} are ready"
    if now - context.away_since >= timedelta(seconds=NODES_S):
        remedy = "read ./trnspec status, which shows the issues of the node group"
        raise StepError(f"{waits}, for {NODES_S // 60} minutes; {remedy}")
    return waits


def _remember(context: Context, names: tuple[str, ...], gone: list[str]) -> None:
    """Which nodes there are; a replacement is an event of the run."""
    state, now = context.state, context.clock.now()
    if not gone and state.node_names and not state.nodes_away:
        return
    changes: dict[str, object] = {"node_names": names}
    if state.nodes_away:
        launched = max(now - _BOOT, moment(state.nodes_since))
        changes |= {**spending.settled(context, launched), "nodes_away": 0, "nodes_since": stamp(launched)}
    if gone:
        came = tuple(sorted({*names} - {*state.node_names}))
        event = NodesReplaced(at=stamp(now), step=state.step, gone=tuple(gone), came=came)
        changes["node_changes"] = (*state.node_changes, event)
        context.say(f"    {event.text}")
    context.save(**changes)


def _remedy(experiment: Experiment, issue: str) -> str:
    """For what EC2 or EKS says of a group that does not get its nodes."""
    if waiting.is_no_capacity(issue):
        return (
            f"EC2 has no {experiment.cluster.instance} here now: run this again with --wait 12h, or see what else there is "
            f"(./trnspec capacity experiments/{experiment.name}.yaml)"
        )
    if any(words in issue for words in ("LimitExceeded", "vCPU limit", "MaxSpotInstanceCountExceeded")):
        return "the quota is too small: ./trnspec preflight prints the command that asks for more"
    return "fix what it names, then run this again"


def until_there(context: Context) -> None:
    """Wait until all nodes are there."""
    context.wait(lambda: missing(context), patience_s=NODES_S, remedy="read ./trnspec status")


def on_same_nodes(context: Context) -> Callable[[], bool]:
    """Whether the nodes of now are all still there, asked as often as one likes."""
    before = context.state.node_names
    return lambda: missing(context) is None and context.state.node_names == before


class JobOnNodes:
    """A Job that works on the Trn2 nodes, created. Kubernetes gives it another pod where its node goes away; where the Job failed
    of that, it is created again."""

    def __init__(self, context: Context, job: kubernetes.Object) -> None:
        self._context, self._job = context, job
        self._changes = len(context.state.node_changes)
        self.name = create(context, job, ended=ENDED)

    def progress(self) -> str | None:
        """What it still does, None once it is complete. Raises `StepError` where it failed on its own."""
        try:
            return job_progress(self._context, self.name)
        except StepError:
            if self._changes == (changes := len(self._context.state.node_changes)):
                raise
            self._changes = changes
            create(self._context, self._job)
            return f"job {self.name}: was cut with its node, and is created again"
