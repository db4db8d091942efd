"""Hours and dollars of a run's nodes, and the most that a spot node may cost an hour."""

from __future__ import annotations

from datetime import datetime, timedelta

from trnspec.core.findings import Finding
from trnspec.operations.cloud import ec2
from trnspec.operations.cloud.aws import AwsError
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.running.context import Context, NoCapacityError
from trnspec.operations.running.state import RunState

_ASK_EVERY = timedelta(minutes=1)
KEPT = "what was compiled and measured is kept"


def node_hours(state: RunState, now: datetime) -> float:
    """Node hours of a run; the nodes of now count no longer than their time to live."""
    if not state.nodes or not state.nodes_since:
        return state.node_hours
    until = min(now, moment(state.off_at)) if state.off_at else now
    open_h = max(timedelta(), until - moment(state.nodes_since)) / timedelta(hours=1)
    return state.node_hours + max(0, state.nodes - state.nodes_away) * open_h


def asked_for(context: Context, nodes: int, *, off_at: str = "") -> None:
    """Remember that nodes bill, or that they no longer do."""
    since = stamp(context.clock.now()) if nodes else ""
    names = context.state.node_names if nodes else ()
    about = {"nodes": nodes, "nodes_since": since, "nodes_away": 0, "node_names": names, "off_at": off_at}
    context.save(**settled(context), **about)
    context.away_since = None


def settled(context: Context, until: datetime | None = None) -> dict[str, float]:
    """The state's sum with the hours since nodes last changed, until then or now, which are over."""
    return {"node_hours": node_hours(context.state, until or context.clock.now())}


def refuse(context: Context) -> None:
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
