"""Prices of `prices.yaml`, dated, in US dollars an hour: of a Trn2 node by each way of buying it, and of everything beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from experiment.catalogue.models import table_of


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one unit of something costs for an hour."""

    item: str
    usd_per_hour: float
    as_of: str
    """ISO date on which the source stated it, `undated` or `an estimate`."""
    source: str
    note: str = ""
    """What has to be said beside it: that it counts instead of one that nobody published, or that it changes."""


@dataclass(frozen=True, kw_only=True)
class NodeRate:
    """What a Trn2 node costs an hour in one place, by one way of buying it."""

    instance: str
    kind: Literal["spot", "capacity-block", "on-demand"]
    region: str
    zone: str | None = None
    usd_per_hour: float
    low_usd: float | None = None
    """Spot: the lowest price of 30 days, and the highest."""
    high_usd: float | None = None
    smallest_h: float = 0
    """Hours of the smallest unit that can be bought; 0 where seconds are billed. Blocks grow by whole days
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html)."""
    as_of: str
    source: str

    @property
    def place(self) -> str:
        """The zone, or the region where no zone is named."""
        return self.zone or self.region


MONTH_H = 730
"""Hours of a month, as AWS's calculator takes them."""
SYSTEM_INSTANCE_TYPE, BASTION_INSTANCE_TYPE = "m7i.xlarge", "t4g.nano"
_TABLE = table_of(__file__)
PRICES = {
    name: Price(
        item=row["item"],
        usd_per_hour=row["hour"] if "hour" in row else row["month"] / MONTH_H,
        as_of=row["as_of"],
        source=row["source"],
    )
    for name, row in _TABLE["prices"].items()
}
NODE_RATES = tuple(NodeRate(**row) for row in _TABLE["node_rates"])
"""The published ones. For on-demand capacity there is none."""
BLOCK_RATES = {
    name: min(
        (rate for rate in NODE_RATES if rate.kind == "capacity-block" and rate.instance == name),
        key=lambda one: one.usd_per_hour,
    )
    for name in dict.fromkeys(rate.instance for rate in NODE_RATES)
}
"""The lowest Capacity Block rate of each instance type. It counts wherever no other price is known."""
