"""Spot prices of a Trn2 node in the zone where the experiment's nodes start: the current price, and the history of 90 days from EC2."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from experiment import Experiment
from operations.cloud.aws import Aws

_LINUX = "Linux/UNIX"


@dataclass(frozen=True)
class SpotPrices:
    """Dollars per hour of one node, each with its start; the oldest first."""

    changes: tuple[tuple[datetime, float], ...]

    @property
    def newest_usd(self) -> float | None:
        """The price now; None where none is known."""
        return self.changes[-1][1] if self.changes else None

    def usd(self, since: datetime, until: datetime) -> float | None:
        """Return what a node cost in that time; None if its price at the beginning is not known. A price applies to every second until
        the next price, also for a running node (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-instances-history.html)."""
        if not self.changes or self.changes[0][0] > since:
            return None
        ends = [at for at, _ in self.changes[1:]] + [until]
        spans = (
            (max(at, since), min(end, until), usd) for (at, usd), end in zip(self.changes, ends, strict=True)
        )
        return sum(usd * ((end - begin) / timedelta(hours=1)) for begin, end, usd in spans if end > begin)


def spot_prices(experiment: Experiment, aws: Aws, *, since: datetime, until: datetime) -> SpotPrices:
    """The prices of a Trn2 node of this experiment; the first is the one that held at `since`.

    The last change before `since` is in the answer
    (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html). Raises `AwsError`.
    """
    found = aws.client("ec2").every(
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=[experiment.instance.name],
        ProductDescriptions=[_LINUX],
        AvailabilityZone=experiment.cluster.trn2_zone,
        StartTime=since,
        EndTime=until,
    )
    return SpotPrices(
        tuple(sorted((one["Timestamp"].astimezone(UTC), float(one["SpotPrice"])) for one in found))
    )


def usd_per_hour(experiment: Experiment, aws: Aws, *, now: datetime) -> float | None:
    """Return the current dollars per hour; None if EC2 has no spot price for the type in that zone. Raises `AwsError`."""
    return spot_prices(experiment, aws, since=now, until=now).newest_usd


def above(experiment: Experiment, usd: float | None) -> bool:
    """Return whether a node costs more than the file allows."""
    maximum = experiment.cluster.capacity.max_usd_per_hour
    return maximum is not None and usd is not None and usd > maximum
