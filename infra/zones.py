"""Which zone the Trn2 nodes stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiment import Experiment


def trn2_zone(experiment: Experiment) -> str:
    """The reservation's where there is one, else the first that the experiment names."""
    return experiment.cluster.capacity.availability_zone or experiment.cluster.availability_zones[0]
