"""When its dollars end a run: above the most that a node may cost an hour, and before a budget is passed."""

from __future__ import annotations

from datetime import datetime, timedelta

from core.findings import Finding
from experiment.cost import NODE_START_H, node_price, per_hour, running
from experiment.placement import nodes_needed
from operations.cloud.aws import AwsError
from operations.cloud.clock import stamp
from operations.cloud.spot_price import SpotPrices, above
from operations.running.bill import Bill, bill, known_prices, open_hours
from operations.running.context import BudgetError, Context, NoCapacityError

_ASK_EVERY = timedelta(minutes=1)
_ENDING_H = 0.1
"""Hours that nodes bill on once a run has decided to end: a poll, EKS, EC2. An estimate."""
_FIRST_H = 0.05
"""So much earlier than the schedule of the nodes a run ends itself, which keeps more than a schedule does."""
KEPT = "what was compiled and measured is kept"
_MORE = "run this again with more to go on"


def _prices(context: Context, *, newer_than: timedelta = _ASK_EVERY) -> SpotPrices | None:
    """`known_prices`, asked once a minute at most. Where EC2 does not say, the run goes on without them."""
    now, (asked, since, prices) = context.clock.now(), context.spot
    if asked is not None and since == context.state.nodes_since and now - asked < newer_than:
        return prices
    first, why, cluster = asked is None or prices is not None, "", context.experiment.cluster
    try:
        prices = known_prices(context.experiment, context.aws, context.state, now)
        if prices is not None and prices.newest_usd is None:
            why = f"EC2 has none of {cluster.instance} in {cluster.trn2_zone}"
    except AwsError as error:
        why = str(error)
    if why:
        prices = None
        if first:  # not every minute
            held = "" if cluster.capacity.max_usd_per_hour is None else ", and max_usd_per_hour is not held"
            context.say(f"    the spot price is not known: {why}; the quoted one counts{held}")
    context.spot = now, context.state.nodes_since, prices
    return prices


def cost(context: Context) -> Bill:
    """What the run of this context has cost by now."""
    return bill(context.experiment, context.state, now=context.clock.now(), prices=_prices(context))


def rate(context: Context) -> tuple[float, str]:
    """What a node costs per hour now, and which price that is, in brackets."""
    prices = _prices(context)
    if prices is not None and prices.newest_usd is not None:
        return prices.newest_usd, " (spot price now)"
    price = node_price(context.experiment)
    return price.usd_per_hour, f" ({price.quoted})"


def asked_for(context: Context, nodes: int, *, off_at: str = "") -> None:
    """Remember that nodes bill, or that they no longer do."""
    since = stamp(context.clock.now()) if nodes else ""
    names = context.state.node_names if nodes else ()
    about = {"nodes": nodes, "nodes_since": since, "nodes_away": 0, "node_names": names, "off_at": off_at}
    context.save(**settled(context), **about)
    context.away_since = None


def settled(context: Context, until: datetime | None = None) -> dict[str, float]:
    """The state's sums with the hours since nodes last changed, until then or now, which are over."""
    state, now = context.state, until or context.clock.now()
    if not open_hours(state, now):
        return {}
    known = bill(context.experiment, state, now=now, prices=_prices(context, newer_than=timedelta(0)))
    quoted_hours = known.quoted_usd / context.usd_per_hour
    return {"node_hours": known.node_hours, "paid_usd": known.paid_usd, "quoted_hours": quoted_hours}


def _too_dear(context: Context) -> str:
    """Why the spot price forbids nodes now; empty where it does not."""
    cluster, prices = context.experiment.cluster, _prices(context)
    now = prices.newest_usd if prices else None
    if not above(context.experiment, now):
        return ""
    where = f"spot price of {cluster.instance} in {cluster.trn2_zone}"
    most = cluster.capacity.max_usd_per_hour
    why = f"is ${now:.2f} an hour, and cluster.capacity.max_usd_per_hour is {most:g}; {KEPT}"
    return Finding(where, None, why, "run this again with --wait 12h, or raise it").line()


def refuse(context: Context) -> None:
    """`NoCapacityError` above the most that a node may cost an hour, and `BudgetError` before the run costs more than its budget."""
    if dear := _too_dear(context):
        raise NoCapacityError(dear)
    if context.max_usd is None:
        return
    spent, each = cost(context).usd, rate(context)[0]
    most = context.max_usd
    if spent + (_ENDING_H + _FIRST_H) * _per_hour(context, each) >= most:
        why = f"has cost ${spent:.2f}, and would pass --max-usd {most:g} before it could end; {KEPT}"
        raise BudgetError(Finding(f"run {context.state.id}", None, why, _MORE))


def within_budget_h(context: Context) -> float:
    """Trn2 hours after which a schedule sets the nodes to 0, whatever becomes of this process: those asked for, or fewer that the rest
    of the budget pays at the price of now.

    Raises `BudgetError` where nodes could not even start in that time."""
    if context.max_usd is None:
        return context.hours
    left = context.max_usd - cost(context).usd
    pays_h = left / _per_hour(context, rate(context)[0]) - _ENDING_H
    if pays_h < NODE_START_H:
        why = f"${left:.2f} are left of --max-usd {context.max_usd:g}, and nodes of so few minutes would do nothing; {KEPT}"
        raise BudgetError(Finding(f"run {context.state.id}", None, why, _MORE))
    return min(context.hours, pays_h)


def _per_hour(context: Context, node_usd: float) -> float:
    """Everything that bills while the nodes run, with nodes at this price."""
    nodes = nodes_needed(context.experiment)
    return per_hour(running(context.experiment)) + nodes * (node_usd - context.usd_per_hour)
