"""List prices of `prices.yaml`, dated, in US dollars an hour."""

from __future__ import annotations

from dataclasses import dataclass

from experiment.catalogue.models import table_beside


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one unit of something costs for an hour."""

    item: str
    usd_per_hour: float
    as_of: str
    """ISO date on which the source stated it, `undated`, `an estimate`, or what begins with `UNKNOWN`."""
    source: str


UNKNOWN = "price unknown"
"""Marks a price that was not read; the price that counts instead follows."""
MONTH_H = 730
"""Hours of a month, as AWS's calculator takes them."""
SYSTEM_INSTANCE_TYPE, WAY_IN_INSTANCE_TYPE = "m7i.xlarge", "t4g.nano"
PRICES = {
    name: Price(
        item=row["item"],
        usd_per_hour=row["hour"] if "hour" in row else row["month"] / MONTH_H,
        as_of=row["as_of"],
        source=row["source"],
    )
    for name, row in table_beside(__file__)["prices"].items()
}
TRN2_ON_DEMAND = {name: price for name, price in PRICES.items() if name.startswith("trn2.")}
