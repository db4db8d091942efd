"""What AWS answered others about Trn2, in the shapes that botocore knows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.stub import ANY, Stubber

from tests.operations.clients import stubbed
from trnspec.operations.cloud.ec2 import SPOT_QUOTA

ASKED = datetime(2026, 10, 3, 2, 45, tzinfo=UTC)
"""When the makers of Kiln asked (docs/research/trn2-trn3.md of https://github.com/foxl-ai/kiln); what is here is what they print.
The middle of their 30 days is the mean, as nobody has their raw history."""
FIT = "cb-0aaaaaaaaaaaaaaa1"


def offerings(*zones: str, instance: str) -> dict[str, Any]:
    return {
        "InstanceTypeOfferings": [
            {"InstanceType": instance, "LocationType": "availability-zone", "Location": zone}
            for zone in zones
        ]
    }


def history(instance: str, **zones: tuple[float, float, float, float]) -> dict[str, Any]:
    """Price now, low, middle and high, of which the middle held longest."""
    entries = []
    for zone, (now, low, middle, high) in zones.items():
        course = [(31, middle), (8, low), (6, high), (4, middle), (0.1, now)]
        entries += [
            {
                "AvailabilityZone": zone.replace("_", "-"),
                "InstanceType": instance,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{usd:.6f}",
                "Timestamp": ASKED - timedelta(days=ago),
            }
            for ago, usd in course
        ]
    return {"SpotPriceHistory": entries[::-1]}


def block(name: str, *, hours: int, usd: str, zone: str, starts: datetime, **more: Any) -> dict[str, Any]:
    return {
        "CapacityBlockOfferingId": name,
        "InstanceType": "trn2.48xlarge",
        "AvailabilityZone": zone,
        "InstanceCount": 1,
        "StartDate": starts,
        "EndDate": starts + timedelta(hours=hours),
        "CapacityBlockDurationHours": hours,
        "UpfrontFee": usd,
        "CurrencyCode": "USD",
        "Tenancy": "default",
        **more,
    }


class Recorded:
    """Clients that answer as AWS did, in the order in which the verb asks a region."""

    def __init__(self) -> None:
        self.stubs: dict[tuple[str, str], tuple[Any, Stubber]] = {}

    def client(self, service: str, region: str) -> tuple[Any, Stubber]:
        if (service, region) not in self.stubs:
            self.stubs[service, region] = stubbed(service, region)
        return self.stubs[service, region]

    def says(
        self, region: str, operation: str, answer: Any, *, service: str = "ec2", asked: Any = None
    ) -> None:
        """An answer, or the code of a refusal."""
        _, stub = self.client(service, region)
        if isinstance(answer, str):
            code, _, message = answer.partition(": ")
            stub.add_client_error(operation, code, message, expected_params=asked)
        else:
            stub.add_response(operation, answer, asked)

    def place(
        self,
        region: str,
        *zones: str,
        instance: str,
        spot: dict[str, Any],
        blocks: list[Any],
        quota: float = 256,
    ) -> None:
        """Everything that a region is asked, in this order."""
        self.says(region, "describe_instance_type_offerings", offerings(*zones, instance=instance))
        if not zones:
            return
        self.says(region, "describe_spot_price_history", spot)
        for hours, answer in blocks:
            asked = {"InstanceType": instance, "InstanceCount": ANY, "CapacityDurationHours": hours}
            self.says(region, "describe_capacity_block_offerings", answer, asked=asked)
        names = [{"ZoneName": f"{region}{letter}", "ZoneType": "availability-zone"} for letter in "abc"]
        self.says(region, "describe_availability_zones", {"AvailabilityZones": names})
        asked = {"ServiceCode": "ec2", "QuotaCode": SPOT_QUOTA}
        answer = {"Quota": {**asked, "Value": quota}}
        self.says(region, "get_service_quota", answer, service="service-quotas", asked=asked)


def regions(recorded: Recorded, *enabled: str, home: str, off: tuple[str, ...] = ()) -> None:
    known = [{"RegionName": name, "OptInStatus": "opt-in-not-required"} for name in enabled]
    known += [{"RegionName": name, "OptInStatus": "not-opted-in"} for name in off]
    recorded.says(home, "describe_regions", {"Regions": known}, asked={"AllRegions": True})
