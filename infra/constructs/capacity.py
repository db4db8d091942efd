"""How the Trn2 nodes are bought, as launch template and node group say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks

if TYPE_CHECKING:
    from constructs import Construct

    from experiment import Experiment

_Template = ec2.CfnLaunchTemplate


def capacity_type(experiment: Experiment) -> eks.CapacityType:
    """A reservation is used by on-demand instances; a block is a kind of its own
    (https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html)."""
    if experiment.cluster.capacity.kind == "capacity-block":
        return eks.CapacityType.CAPACITY_BLOCK
    return eks.CapacityType.ON_DEMAND


def launch_options(scope: Construct, experiment: Experiment) -> dict[str, Any]:
    """What the launch template adds for this capacity."""
    options: dict[str, Any] = {}
    capacity = experiment.cluster.capacity
    if capacity.kind == "capacity-block":
        options["instance_market_options"] = _Template.InstanceMarketOptionsProperty(
            market_type="capacity-block"
        )
    if capacity.reservation_id is not None:
        options["capacity_reservation_specification"] = _Template.CapacityReservationSpecificationProperty(
            capacity_reservation_target=_Template.CapacityReservationTargetProperty(
                capacity_reservation_id=capacity.reservation_id
            )
        )
    if needs_placement_group(experiment):
        group = ec2.CfnPlacementGroup(scope, "Placement", strategy="cluster")
        options["placement"] = _Template.PlacementProperty(group_name=group.ref)
    return options


def needs_placement_group(experiment: Experiment) -> bool:
    """Several nodes on demand profit from standing close together where EFA joins them. A capacity block is close
    already, and a reservation that was not made inside the same placement group could not be used from it
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-cpg.html)."""
    cluster = experiment.cluster
    joined = cluster.max_nodes > 1 and experiment.instance.efa_interfaces > 0
    return joined and cluster.capacity.kind == "on-demand"
