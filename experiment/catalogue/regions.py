"""Zones of the regions in which Trn2 was seen.

Letters are the account's own names for them; how many there are is AWS's
(https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-availability-zones.html, read 2026-11). Local zones
are left out: EKS places no control plane there.
"""

from __future__ import annotations

from types import MappingProxyType

ZONES = MappingProxyType(
    {region: tuple(f"{region}{letter}" for letter in "abc") for region in ("us-east-2", "ap-southeast-4")}
)
"""By region, in the order of their letters."""
