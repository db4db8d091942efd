"""The price of a run: what a user pays for its nodes by spot or by a Capacity Block, at published rates or at those of EC2 now."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trnspec.experiment.arms import Experiment
from trnspec.experiment.catalogue.prices import NODE_RATES, NodeRate, block_rates
from trnspec.experiment.cost import BLOCK_END_H, file_spot_rates, node_price, per_hour, running


@dataclass(frozen=True, kw_only=True)
class RunPrice:
    """What a whole run costs with one purchase option in one place."""

    rate: NodeRate
    """The rate of one node."""
    low_usd: float
    """At the lowest price of 30 days; equal to `usd` if the price does not change."""
    usd: float
    """All nodes, and everything else that is billed while they run."""
    high_usd: float
    hours_used: float
    hours_billed: float
    """Billed hours of a node: a block is billed to its end."""

    def as_json(self) -> dict[str, Any]:
        """Return the price with its rate as one JSON object."""
        place = {name: getattr(self.rate, name) for name in ("kind", "region", "zone", "usd_per_hour")}
        usd = {
            name: getattr(self, name) for name in ("low_usd", "usd", "high_usd", "hours_used", "hours_billed")
        }
        return {**place, **usd, "as_of": self.rate.as_of, "source": self.rate.source}

    @property
    def text(self) -> str:
        """The price as a part of a sentence."""
        if self.rate.kind == "capacity-block":
            block = f"a Capacity Block of {self.hours_billed:g} hours in {self.rate.place}"
            return f"${self.usd:,.0f} for {block} (the run uses {self.hours_used:.1f})"
        spot = usd_range(self.low_usd, self.high_usd)
        return f"{spot} by spot in {self.rate.place}, if EC2 has a node"


def usd_range(low: float, high: float, decimals: int = 0) -> str:
    """Return `$25 to $41`, or one figure where both are the same."""
    ends = dict.fromkeys(f"${each:,.{decimals}f}" for each in (low, high))
    return " to ".join(ends)


def run_prices(
    experiment: Experiment, hours: float, rates: Iterable[NodeRate] = NODE_RATES
) -> tuple[RunPrice, ...]:
    """Return what a run of `hours` costs at each rate of its instance type in any region, the cheapest first."""
    nodes = experiment.nodes
    other_usd = hours * (per_hour(running(experiment)) - nodes * node_price(experiment).usd_per_hour)
    prices = [
        _price(rate, hours, nodes=nodes, other_usd=other_usd)
        for rate in rates
        if rate.instance == experiment.instance.name
    ]
    return tuple(sorted(prices, key=lambda price: price.usd))


def _price(rate: NodeRate, hours: float, *, nodes: int, other_usd: float) -> RunPrice:
    billed = hours
    if rate.smallest_h:
        billed = rate.smallest_h + 24 * max(0, math.ceil((hours + BLOCK_END_H - rate.smallest_h) / 24))
    low, usd, high = (
        nodes * billed * (rate.usd_per_hour if price is None else price) + other_usd
        for price in (rate.low_usd, rate.usd_per_hour, rate.high_usd)
    )
    return RunPrice(rate=rate, low_usd=low, usd=usd, high_usd=high, hours_used=hours, hours_billed=billed)


def file_prices(experiment: Experiment, hours: float) -> tuple[RunPrice, ...]:
    """Return what a run of so many Trn2 hours costs at published rates, the option of the file first.

    There are two at most: spot, if a price of a zone of the file is published, and the cheapest Capacity Block, preferably in the
    file's region. A part of a block cannot be bought, so it has no price.
    """
    cluster = experiment.cluster
    spot = run_prices(experiment, hours, file_spot_rates(experiment))
    blocks = [*run_prices(experiment, hours, block_rates(experiment.instance.name))]
    blocks.sort(key=lambda price: price.rate.region != cluster.region)
    found = (*spot[:1], *blocks[:1])
    return found if cluster.capacity.kind == "spot" else found[::-1]


def price_text(prices: Iterable[RunPrice]) -> str:
    """Return the prices in one sentence."""
    return "; or ".join(price.text for price in prices)
