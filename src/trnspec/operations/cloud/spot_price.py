"""The spot price of a Trn2 node in the zone where the experiment's nodes start."""

from __future__ import annotations

from datetime import datetime

from trnspec.experiment import Experiment
from trnspec.operations.cloud.aws import Aws


def usd_per_hour(experiment: Experiment, aws: Aws, *, now: datetime) -> float | None:
    """Return the current dollars per hour; None if EC2 has no spot price for the type in that zone. Raises `AwsError`.

    The last change before `now` is in the answer
    (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html).
    """
    found = aws.client("ec2").every(
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=[experiment.instance.name],
        ProductDescriptions=["Linux/UNIX"],
        AvailabilityZone=experiment.cluster.trn2_zone,
        StartTime=now,
        EndTime=now,
    )
    newest = max(found, key=lambda one: one["Timestamp"], default=None)
    return float(newest["SpotPrice"]) if newest else None
