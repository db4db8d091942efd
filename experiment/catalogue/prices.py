"""List prices, dated, in US dollars an hour; quoted, never fetched here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one unit of something costs for an hour."""

    item: str
    usd_per_hour: float
    as_of: str
    """ISO date on which the source stated it, `undated`, `an estimate`, or what begins with `UNKNOWN`."""
    source: str


UNKNOWN = "price unknown"
"""Of a price that was not read; what counts instead follows."""
MONTH_H = 730
"""Hours of a month, as AWS's calculator takes them."""
_UNREAD = "commonly quoted for us-east-1; AWS's own page was not read"
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
PUBLIC_IPV4 = Price(
    item="public IPv4 address",
    usd_per_hour=0.005,
    as_of="2024-02-01",
    source="aws.amazon.com/blogs/aws/new-aws-public-ipv4-address-charge-public-ip-insights, all regions",
)
INTERFACE_ENDPOINT = Price(
    item="interface endpoint in a zone, without traffic",
    usd_per_hour=0.01,
    as_of="2026-06-13",
    source="factualminds.com/blog/amazon-vpc-pricing-endpoints-peering-transit-gateway, us-east-1",
)
SYSTEM_INSTANCE_TYPE = "m7i.xlarge"
SYSTEM_NODE = Price(  # the cluster's add-ons do not fit two m7i.large
    item=f"{SYSTEM_INSTANCE_TYPE}, on demand, us-east-2",
    usd_per_hour=0.2016,
    as_of="undated",
    source="ten price tables in public repositories agree; AWS's own page was not read",
)
WAY_IN_INSTANCE_TYPE = "t4g.nano"
WAY_IN = Price(
    item=f"{WAY_IN_INSTANCE_TYPE}, on demand, us-east-2",
    usd_per_hour=0.0042,
    as_of="undated",
    source=_UNREAD,
)
GP3_GIB = Price(
    item="gp3 disk, a GiB",
    usd_per_hour=0.08 / MONTH_H,
    as_of="2021-01-13",
    source="saisci.com/aws/gp3-throughput-explained, us-east-1",
)
LOAD_BALANCER = Price(
    item="Network Load Balancer, without traffic", usd_per_hour=0.0225, as_of="undated", source=_UNREAD
)
KMS_KEY = Price(item="KMS key", usd_per_hour=1 / MONTH_H, as_of="undated", source=_UNREAD)
ALARM_METRIC = Price(item="metric of an alarm", usd_per_hour=0.10 / MONTH_H, as_of="undated", source=_UNREAD)
COMPOSITE_ALARM = Price(item="composite alarm", usd_per_hour=0.50 / MONTH_H, as_of="undated", source=_UNREAD)
CONTAINER_INSIGHTS = Price(
    item="usage: Container Insights",
    usd_per_hour=0.03,
    as_of="an estimate",
    source="order of magnitude: 140,000 observations an hour of two idle nodes, at $0.21 a million",
)
CONTROL_PLANE_LOGS = Price(
    item="usage: five logs of the control plane",
    usd_per_hour=0.02,
    as_of="an estimate",
    source="order of magnitude: 1 GB a day at $0.50",
)
FLOW_LOGS = Price(
    item="usage: flow logs",
    usd_per_hour=0.005,
    as_of="an estimate",
    source="order of magnitude: 0.25 GB a day at $0.50",
)
"""Usage at $0.21 a million observations and $0.50 a GB of logs; how much it is nobody has measured on AWS."""
