"""The Trn2 nodes under a run: whether they are there, which they are, and what happens when one is taken away.

A spot node can be taken away at any time, two minutes after its notice, and a broken node is replaced. EKS keeps the group's size, so
another node comes where EC2 has one (https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html#managed-node-group-capacity-types).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from infra.scale_to_zero_schedules import block_over
from trnspec.core.findings import Finding
from trnspec.core.words import count, listed
from trnspec.experiment import Experiment
from trnspec.operations.cloud import ec2, kubernetes, nodegroup
from trnspec.operations.cloud.aws import AwsError
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.cloud.nodegroup import current_issue
from trnspec.operations.running.context import (
    Context,
    NoCapacityError,
    StepError,
)
from trnspec.operations.running.state import NodesReplaced, RunState

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
    refuse_price(context)
    group, off_at = nodegroup.read(context.experiment, context.aws), context.state.off_at
    if off_at and group.desired and moment(off_at) + _GRACE <= context.clock.now():
        raise StepError(
            f"{group.name}: still has {count(group.desired, 'node')}, which its schedule was to set to 0 at {off_at}; the run ends here, and "
            f"sets them to 0: read ./trnspec status {context.experiment.file}, then run this again"
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
            context.say(f"    {listed(gone)} {were} taken away at {stamp(now)}; {KEPT}")
    if gone and (away := max(0, wanted - len(own))) != context.state.nodes_away:
        context.save(**accrued_hours(context), nodes_since=stamp(now), nodes_away=away)
    asked = context.away_since if gone or not context.state.nodes_since else moment(context.state.nodes_since)
    late = now - context.away_since >= _GRACE
    if late and (issue := current_issue(group, context.aws, since=asked)) is not None:
        kind = NoCapacityError if nodegroup.is_no_capacity(issue) else StepError
        raise kind(f"{group.name}: no nodes ({issue}); {_remedy(context.experiment, issue)}")
    waits = f"{group.name}: {len(names)} of {count(wanted, 'node')} are ready"
    if now - context.away_since >= timedelta(seconds=NODES_S):
        remedy = f"read ./trnspec status {context.experiment.file}, which shows the issues of the node group"
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
        changes |= {**accrued_hours(context, launched), "nodes_away": 0, "nodes_since": stamp(launched)}
    if gone:
        came = tuple(sorted({*names} - {*state.node_names}))
        event = NodesReplaced(at=stamp(now), step=state.step, gone=tuple(gone), came=came)
        changes["node_changes"] = (*state.node_changes, event)
        context.say(f"    {event.text}")
    context.save(**changes)


def _remedy(experiment: Experiment, issue: str) -> str:
    """For what EC2 or EKS says of a group that does not get its nodes."""
    if nodegroup.is_no_capacity(issue):
        return (
            f"EC2 has no {experiment.cluster.instance} here now: run this again with --wait 12h, or see what else is offered "
            f"(./trnspec preflight {experiment.file})"
        )
    if any(words in issue for words in ("LimitExceeded", "vCPU limit", "MaxSpotInstanceCountExceeded")):
        return f"the quota is too small: ./trnspec preflight {experiment.file} prints the command that asks for more"
    return "fix what it names, then run this again"


def wait_for_nodes(context: Context) -> None:
    """Wait until all nodes are there."""
    context.wait(
        lambda: missing(context),
        patience_s=NODES_S,
        remedy=f"read ./trnspec status {context.experiment.file}",
    )


def nodes_unchanged(context: Context) -> Callable[[], bool]:
    """Whether the nodes of now are all still there, asked as often as one likes."""
    before = context.state.node_names
    return lambda: missing(context) is None and context.state.node_names == before


_ASK_EVERY = timedelta(minutes=1)
KEPT = "what was compiled and measured is kept"


def node_hours(state: RunState, now: datetime) -> float:
    """Node hours of a run; the nodes of now count no longer than their time to live."""
    if not state.nodes or not state.nodes_since:
        return state.node_hours
    until = min(now, moment(state.off_at)) if state.off_at else now
    open_h = max(timedelta(), until - moment(state.nodes_since)) / timedelta(hours=1)
    return state.node_hours + max(0, state.nodes - state.nodes_away) * open_h


def record_nodes(context: Context, nodes: int, *, off_at: str = "") -> None:
    """Remember that nodes bill, or that they no longer do."""
    since = stamp(context.clock.now()) if nodes else ""
    names = context.state.node_names if nodes else ()
    about = {"nodes": nodes, "nodes_since": since, "nodes_away": 0, "node_names": names, "off_at": off_at}
    context.save(**accrued_hours(context), **about)
    context.away_since = None


def accrued_hours(context: Context, until: datetime | None = None) -> dict[str, float]:
    """The state's sum with the hours since nodes last changed, until then or now, which are over."""
    return {"node_hours": node_hours(context.state, until or context.clock.now())}


def refuse_price(context: Context) -> None:
    """`NoCapacityError` while the spot price is above the most that the file allows."""
    cluster = context.experiment.cluster
    most = cluster.capacity.max_usd_per_hour
    if most is None or (usd := _spot_price(context)) is None or usd <= most:
        return
    where = f"spot price of {cluster.instance} in {cluster.trn2_zone}"
    why = f"is ${usd:.2f} an hour, and cluster.capacity.max_usd_per_hour is {most:g}; {KEPT}"
    raise NoCapacityError(Finding(where, None, why, "run this again with --wait 12h, or raise it"))


def _spot_price(context: Context) -> float | None:
    """The price of now, asked once a minute at most; None where EC2 does not say, which is printed once."""
    now, (asked, usd), cluster = context.clock.now(), context.spot, context.experiment.cluster
    if asked is not None and now - asked < _ASK_EVERY:
        return usd
    before, why = usd, ""
    try:
        usd = ec2.spot_price(context.aws, cluster.instance, cluster.trn2_zone, now=now)
        why = f"EC2 has none of {cluster.instance} in {cluster.trn2_zone}" if usd is None else ""
    except AwsError as error:
        usd, why = None, str(error)
    if why and (asked is None or before is not None):  # not every minute
        context.say(f"    the spot price is not known: {why}; max_usd_per_hour is not held")
    context.spot = now, usd
    return usd
