"""What a run has cost: its node hours, the spot prices of those hours, and what bills beside them; and what is left of a block."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from experiment import Experiment
from experiment.cost import node_price, per_hour, running
from experiment.placement import nodes_needed
from infra.off_schedules import block_over
from operations.cloud.aws import Aws
from operations.cloud.clock import moment
from operations.cloud.spot_price import SpotPrices, spot_prices
from operations.running.state import RunState


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
    since, until = open_since(state, now)
    return max(0, state.nodes - state.nodes_away) * ((until - since) / timedelta(hours=1))


def open_since(state: RunState, now: datetime) -> tuple[datetime, datetime]:
    if not state.nodes or not state.nodes_since:
        return now, now
    since, until = moment(state.nodes_since), min(now, moment(state.off_at)) if state.off_at else now
    return since, max(since, until)


def bill(experiment: Experiment, state: RunState, *, now: datetime, prices: SpotPrices | None) -> Bill:
    """`prices` are those since nodes last changed; None where nodes are not bought by spot, or the prices are not known."""
    hours, (since, until) = open_hours(state, now), open_since(state, now)
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


def known_prices(
    experiment: Experiment, aws: Aws, state: RunState | None, now: datetime
) -> SpotPrices | None:
    """The spot prices since nodes last changed, or of now without a run; None where nodes are not bought by spot. Raises `AwsError`."""
    if experiment.cluster.capacity.kind != "spot":
        return None
    return spot_prices(experiment, aws, since=open_since(state, now)[0] if state else now, until=now)


@dataclass(frozen=True, kw_only=True)
class BlockLeft:
    """What is left of a capacity block, which is paid already."""

    hours: float
    node_hours: float
    """Hours in which nodes can still run: they are set to 0 an hour before the end."""
    usd: float
    """Its part of the price, at the quoted rate, of as many nodes as the file may have."""

    @property
    def text(self) -> str:
        left = f"{self.hours:.1f} hours left, in {self.node_hours:.1f} of which nodes can run"
        return f"{left}; ${self.usd:.2f} of what was paid, at the quoted rate"


def block_left(experiment: Experiment, *, now: datetime) -> BlockLeft | None:
    """None where nodes are bought another way."""
    capacity, over = experiment.cluster.capacity, block_over(experiment)
    if over is None or capacity.ends_at is None:
        return None
    hours, usable = (
        max(timedelta(), end - now) / timedelta(hours=1) for end in (moment(capacity.ends_at), over)
    )
    usd = hours * experiment.cluster.max_nodes * node_price(experiment).usd_per_hour
    return BlockLeft(hours=hours, node_hours=usable, usd=usd)
