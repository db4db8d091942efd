"""What a Trn2 node costs by spot at this moment, in the zone where the experiment's nodes start."""

from __future__ import annotations

from datetime import datetime

from experiment import Experiment
from operations.cloud.aws import Aws


def usd_per_hour(experiment: Experiment, aws: Aws, *, now: datetime) -> float | None:
    """Dollars an hour; None where EC2 has no spot price for the type in that zone. Raises `AwsError`.

    With one instant as the range the answer is the last change before it, which is the price in effect
    (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html).
    """
    entries = aws.client("ec2").every(
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=[experiment.instance.name],
        ProductDescriptions=["Linux/UNIX"],
        AvailabilityZone=experiment.cluster.trn2_zone,
        StartTime=now,
        EndTime=now,
    )
    latest = max(entries, key=lambda entry: entry["Timestamp"], default=None)
    return float(latest["SpotPrice"]) if latest else None


def above(experiment: Experiment, usd: float | None) -> bool:
    """Whether a node costs more than the file allows."""
    most = experiment.cluster.capacity.max_usd_per_hour
    return most is not None and usd is not None and usd > most
