"""What a run has cost, and when that ends it: node hours, the spot prices of those hours, the most an hour, the budget."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from core.findings import Finding
from experiment import Experiment
from experiment.cost import node_price, per_hour, running
from experiment.placement import nodes_needed
from operations.cloud.aws import Aws, AwsError
from operations.cloud.clock import moment, stamp
from operations.cloud.spot_price import SpotPrices, above, spot_prices
from operations.running.context import Context, StepError
from operations.running.state import RunState

_ASK_EVERY = timedelta(minutes=1)
_ENDING_H = 0.1
"""Hours that nodes bill on once a run has decided to end: a poll, EKS, EC2. An estimate."""
KEPT = "what was compiled and measured is kept"


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a run has cost so far."""

    node_hours: float
    paid_usd: float
    """For node hours whose spot price is known."""
    quoted_usd: float
    """For the other node hours, at the quoted price."""
    beside_usd: float
    """For everything else that bills while nodes run, at quoted prices."""

    @property
    def usd(self) -> float:
        return self.paid_usd + self.quoted_usd + self.beside_usd

    @property
    def text(self) -> str:
        """The dollars, with where they are from."""
        if not self.paid_usd:
            return f"${self.usd:.2f} at quoted prices"
        rest = self.quoted_usd + self.beside_usd
        return f"${self.usd:.2f} (${self.paid_usd:.2f} for nodes at the spot prices of their hours, ${rest:.2f} at quoted prices)"

    def as_json(self) -> dict[str, Any]:
        return {key: round(value, 3) for key, value in (asdict(self) | {"usd": self.usd}).items()}


def open_hours(state: RunState, now: datetime) -> float:
    """Node hours since nodes last changed; no longer than their time to live."""
    since, until = _open(state, now)
    return max(0, state.nodes - state.nodes_away) * ((until - since) / timedelta(hours=1))


def _open(state: RunState, now: datetime) -> tuple[datetime, datetime]:
    if not state.nodes or not state.nodes_since:
        return now, now
    since, until = moment(state.nodes_since), min(now, moment(state.off_at)) if state.off_at else now
    return since, max(since, until)


def bill(experiment: Experiment, state: RunState, *, now: datetime, prices: SpotPrices | None) -> Bill:
    """`prices` are those since nodes last changed; None where nodes are not bought by spot, or the prices are not known."""
    hours, (since, until) = open_hours(state, now), _open(state, now)
    each = prices.usd(since, until) if prices and hours else None
    paid = 0.0 if each is None else each * max(0, state.nodes - state.nodes_away)
    before_h = state.node_hours if state.quoted_hours is None else state.quoted_hours
    quoted_h = before_h + (hours if each is None else 0.0)
    nodes, usd = nodes_needed(experiment), node_price(experiment).usd_per_hour
    in_all = state.node_hours + hours
    return Bill(
        node_hours=in_all,
        paid_usd=state.paid_usd + paid,
        quoted_usd=quoted_h * usd,
        beside_usd=in_all / nodes * (per_hour(running(experiment)) - nodes * usd),
    )


def known_prices(experiment: Experiment, aws: Aws, state: RunState, now: datetime) -> SpotPrices | None:
    """The spot prices since nodes last changed; None where nodes are not bought by spot. Raises `AwsError`."""
    if experiment.cluster.capacity.kind != "spot":
        return None
    return spot_prices(experiment, aws, since=_open(state, now)[0], until=now)


def _prices(context: Context, *, newer_than: timedelta = _ASK_EVERY) -> SpotPrices | None:
    """`known_prices`, asked once a minute at most. Where EC2 does not say, the run goes on without them."""
    now, (asked, since, prices) = context.clock.now(), context.spot
    if asked is not None and since == context.state.nodes_since and now - asked < newer_than:
        return prices
    try:
        prices = known_prices(context.experiment, context.aws, context.state, now)
    except AwsError as error:
        context.say(f"    the spot price is not known: {error}")
        prices = None
    context.spot = now, context.state.nodes_since, prices
    return prices


def cost(context: Context) -> Bill:
    """What the run of this context has cost by now."""
    return bill(context.experiment, context.state, now=context.clock.now(), prices=_prices(context))


def rate(context: Context) -> tuple[float, str]:
    """What a node costs an hour now, and a remark where that is not the quoted price."""
    prices = _prices(context)
    if prices is not None and prices.newest_usd is not None:
        return prices.newest_usd, " (spot price now)"
    return context.usd_per_hour, ""


def asked_for(context: Context, nodes: int, *, off_at: str = "") -> None:
    """Remember that nodes bill, or that they no longer do."""
    since = stamp(context.clock.now()) if nodes else ""
    names = context.state.node_names if nodes else ()
    about = {"nodes": nodes, "nodes_since": since, "nodes_away": 0, "node_names": names, "off_at": off_at}
    context.save(**settled(context), **about)
    context.away_since = None


def settled(context: Context) -> dict[str, float]:
    """The state's sums with the hours since nodes last changed, which are over."""
    state, now = context.state, context.clock.now()
    if not open_hours(state, now):
        return {}
    known = bill(context.experiment, state, now=now, prices=_prices(context, newer_than=timedelta(0)))
    quoted_hours = known.quoted_usd / context.usd_per_hour
    return {"node_hours": known.node_hours, "paid_usd": known.paid_usd, "quoted_hours": quoted_hours}


def too_dear(context: Context) -> str:
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
    """`StepError` above the most that a node may cost an hour, and before the run costs more than its budget."""
    if dear := too_dear(context):
        raise StepError(dear)
    if context.max_usd is None:
        return
    spent, each = cost(context).usd, rate(context)[0]
    most = context.max_usd
    if spent + _ENDING_H * _per_hour(context, each) >= most:
        why = f"has cost ${spent:.2f}, and would pass --max-usd {most:g} before it could end; {KEPT}"
        raise StepError(Finding(f"run {context.state.id}", None, why, "run this again with more to go on"))


def within_budget_h(context: Context) -> float:
    """Trn2 hours after which a schedule sets the nodes to 0, whatever becomes of this process: those asked for, or fewer that the rest
    of the budget pays at the price of now."""
    if context.max_usd is None:
        return context.hours
    left = context.max_usd - cost(context).usd
    return min(context.hours, max(0.0, left / _per_hour(context, rate(context)[0]) - _ENDING_H))


def _per_hour(context: Context, node_usd: float) -> float:
    """Everything that bills while the nodes run, with nodes at this price."""
    nodes = nodes_needed(context.experiment)
    return per_hour(running(context.experiment)) + nodes * (node_usd - context.usd_per_hour)
