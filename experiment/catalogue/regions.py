"""Zones of the regions in which Trn2 was seen.

us-east-2: https://docs.aws.amazon.com/global-infrastructure/latest/regions/aws-availability-zones.html, which also says
that every region has three at least; ap-southeast-4: as moto 5.2.5 records what EC2 answers. `scripts/preflight` asks
in which of them the account is offered Trn2. Local zones are left out: EKS places no control plane there.
"""

from __future__ import annotations

from types import MappingProxyType

ZONES = MappingProxyType(
    {region: tuple(f"{region}{letter}" for letter in "abc") for region in ("us-east-2", "ap-southeast-4")}
)
"""By region, in the order of their letters."""
