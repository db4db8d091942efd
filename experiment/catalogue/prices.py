"""List prices, dated, in US dollars an hour; quoted, never fetched here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one unit of something costs for an hour."""

    item: str
    usd_per_hour: float
    as_of: str
    """ISO date on which the source stated it, or `undated`."""
    source: str


TRN2_ON_DEMAND = {
    "trn2.48xlarge": Price(
        item="trn2.48xlarge, on demand, us-east-2",
        usd_per_hour=35.76,
        as_of="2025-11-30",
        source="instances.vantage.sh",
    ),
    "trn2.3xlarge": Price(
        item="trn2.3xlarge, on demand, ap-southeast-4",
        usd_per_hour=2.235,
        as_of="2026-05-01",
        source="a public benchmark report; a sixteenth of trn2.48xlarge, to the cent",
    ),
}
LAB = Price(item="your own machine", usd_per_hour=0.0, as_of="undated", source="it is yours")
EKS_CONTROL_PLANE = Price(
    item="EKS control plane, standard support",
    usd_per_hour=0.10,
    as_of="2026-03-13",
    source="cloudburn.io/blog/amazon-eks-pricing, us-east-1",
)
NAT_GATEWAY = Price(
    item="NAT gateway, without traffic",
    usd_per_hour=0.045,
    as_of="2026-04-01",
    source="computingforgeeks.com/aws-costs-explained, us-east-1",
)
SYSTEM_INSTANCE_TYPE = "m7i.xlarge"
SYSTEM_NODE = Price(  # the cluster's add-ons do not fit two m7i.large
    item=f"{SYSTEM_INSTANCE_TYPE}, on demand, us-east-2",
    usd_per_hour=0.2016,
    as_of="undated",
    source="ten price tables in public repositories agree; AWS's own page was not read",
)
