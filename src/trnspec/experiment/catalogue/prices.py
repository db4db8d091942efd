"""The prices of `prices.yaml`, dated, in US dollars per hour: Trn2 nodes by purchase option, and everything else that is billed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trnspec.experiment.catalogue.models import table_of


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one unit for one hour."""

    item: str
    usd_per_hour: float
    as_of: str
    """ISO date on which the source stated it, `undated` or `an estimate`."""
    source: str
    note: str = ""
    """A remark: that it replaces a price that is not published, or that it changes."""
    units: int = 1

    def of(self, units: int) -> Price:
        """Return the same price for a number of units."""
        return replace(self, units=units)

    @property
    def quoted(self) -> str:
        """The purchase option, place and date of a Trn2 node's price, as in `quoted: spot, us-east-2c, 2026-10-03`."""
        return f"quoted: {self.item.partition(', ')[2]}, {self.as_of}"


@dataclass(frozen=True, kw_only=True)
class NodeRate:
    """The price of a Trn2 node per hour in one place, with one purchase option."""

    instance: str
    kind: Literal["spot", "capacity-block"]
    region: str
    zone: str | None = None
    usd_per_hour: float
    low_usd: float | None = None
    """Spot only: the lowest price of 30 days; `high_usd` is the highest."""
    median_usd: float | None = None
    """Spot, as EC2 says now: the median of 30 days, in which each price counts for as long as it held."""
    high_usd: float | None = None
    smallest_h: float = 0
    """Minimum hours of a purchase; 0 if billing is per second. Blocks grow by whole days
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html)."""
    as_of: str
    source: str
    offer_id: str = ""
    """The id of a block that EC2 offers now; `smallest_h` are then all its hours."""
    starts: str = ""
    """Like `ends` a time in ISO form; empty unless EC2 offers the block now."""
    ends: str = ""

    @property
    def place(self) -> str:
        """The zone, or the region if no zone is given."""
        return self.zone or self.region


MONTH_H = 730
"""Hours per month, the number that the AWS Pricing Calculator uses."""
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
"""Published rates of nodes; on demand AWS publishes none."""


def spot_rates(instance: str) -> list[NodeRate]:
    """Return the published spot rates of an instance type."""
    return [rate for rate in NODE_RATES if rate.kind == "spot" and rate.instance == instance]


def block_rates(instance: str) -> list[NodeRate]:
    """Return the published Capacity Block rates of an instance type."""
    return [rate for rate in NODE_RATES if rate.kind == "capacity-block" and rate.instance == instance]


BLOCK_RATES = {
    name: min(block_rates(name), key=lambda one: one.usd_per_hour)
    for name in dict.fromkeys(rate.instance for rate in NODE_RATES)
}
"""The lowest Capacity Block rate of each instance type. It is used wherever no other price is known."""
