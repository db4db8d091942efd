"""What a second `cdk deploy` changes in place, replaces, or would break on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from experiment import Experiment
from experiment.catalogue.instances import ZONES
from experiment.catalogue.runtimes import RUNTIMES
from experiment.checks.names import MAX_EXPERIMENT_NAME
from experiment.model import Capacity
from experiment.naming import neuron_nodegroup
from tests.infra.conftest import ADMIN, SECOND_ADMIN
from tests.infra.templates import REGION, Deployment, Resource, resolved


def _fixed(type_: str) -> list[list[str]]:
    """Paths of the properties that CloudFormation's own schema says cannot be changed."""
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, type_).schema
    return [path.split("/")[2:] for path in schema.get("createOnlyProperties", [])]


def _at(properties: Any, path: list[str]) -> Any:
    for step in path:
        properties = properties.get(step) if isinstance(properties, dict) else None
    return resolved(properties)


def _pairs(before: Deployment, after: Deployment) -> Iterator[tuple[Resource, Resource]]:
    there = {(resource.stack, resource.logical_id): resource for resource in after.resources()}
    for resource in before.resources():
        if (resource.stack, resource.logical_id) in there:
            yield resource, there[resource.stack, resource.logical_id]


def made_again(before: Deployment, after: Deployment) -> list[tuple[Resource, Resource]]:
    """Resources that stand in both, and that CloudFormation cannot change into the other."""
    return [
        (old, new)
        for old, new in _pairs(before, after)
        if any(_at(old.properties, path) != _at(new.properties, path) for path in _fixed(old.type))
    ]


@pytest.fixture(scope="module")
def replaced(deployment: Deployment, later_deployment: Deployment) -> list[tuple[Resource, Resource]]:
    return made_again(deployment, later_deployment)


def test_zones_purchase_and_version_change_and_only_the_trn2_group_is_made_anew(
    replaced: list[tuple[Resource, Resource]],
) -> None:
    assert [(before.stack, before.type) for before, _ in replaced] == [("nodes", "AWS::EKS::Nodegroup")]


def test_what_is_made_anew_has_another_name(replaced: list[tuple[Resource, Resource]]) -> None:
    """The new one comes before the old one goes, and of one name there cannot be two."""
    for before, after in replaced:
        names = [
            path for path in _fixed(before.type) if path[-1].endswith("Name") and path != ["ClusterName"]
        ]
        given = [path for path in names if _at(before.properties, path) is not None]
        assert given
        assert all(_at(before.properties, path) != _at(after.properties, path) for path in given)


def test_no_subnet_moves_and_none_is_lost(deployment: Deployment, later_deployment: Deployment) -> None:
    first, second = (
        {
            one.logical_id: (one.properties["AvailabilityZone"], one.properties["CidrBlock"])
            for one in found.resources("AWS::EC2::Subnet")
        }
        for found in (deployment, later_deployment)
    )
    assert first == second


def test_the_control_plane_keeps_to_its_zones(deployment: Deployment, later_deployment: Deployment) -> None:
    """EKS refuses any others: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html."""
    subnets = [
        found.only("AWS::EKS::Cluster").properties["ResourcesVpcConfig"]["SubnetIds"]
        for found in (deployment, later_deployment)
    ]
    assert subnets[0] == subnets[1]
    assert len(subnets[0]) == 3


def test_whoever_administers_keeps_the_entry_when_others_come(
    open_deployment: Deployment, later_deployment: Deployment
) -> None:
    first, second = (
        {
            str(entry.properties["PrincipalArn"]): entry.logical_id
            for entry in found.resources("AWS::EKS::AccessEntry", stack="cluster")
        }
        for found in (open_deployment, later_deployment)
    )
    assert second.keys() == {SECOND_ADMIN, ADMIN}
    assert first[ADMIN] == second[ADMIN]


def test_nodes_follow_the_cluster_to_the_next_version(
    deployment: Deployment, later_deployment: Deployment
) -> None:
    """By the release alone EKS refuses: https://github.com/eksctl-io/eksctl/issues/7976."""
    for found, version in ((deployment, "1.35"), (later_deployment, "1.36")):
        groups = found.resources("AWS::EKS::Nodegroup")
        assert len(groups) == 2
        for group in groups:
            assert group.properties["Version"] == version
            assert group.properties["ReleaseVersion"].startswith(f"{version}.")


def test_each_purchase_is_a_group_of_its_own(experiment: Experiment) -> None:
    """Capacity type, subnet and reservation are what EKS does not change; see `neuron_nodegroup`."""
    first, second = "cr-0123456789abcdef0", "cr-0123456789abcdef1"
    bought = [
        Capacity(),
        *(
            Capacity(kind=kind, reservation_id=found, availability_zone=zone)
            for kind in ("reservation", "capacity-block")
            for found in (first, second)
            for zone in ZONES["us-east-2"]
        ),
    ]
    names = {
        neuron_nodegroup(replace(experiment, cluster=experiment.cluster.model_copy(update={"capacity": one})))
        for one in bought
    }
    assert len(names) == len(bought)
    longest = replace(experiment, name="x" * MAX_EXPERIMENT_NAME)
    block = experiment.cluster.model_copy(update={"capacity": bought[-1]})
    assert len(neuron_nodegroup(replace(longest, cluster=block))) <= 63


def test_an_earlier_node_image_is_a_group_of_its_own(experiment: Experiment) -> None:
    """EKS rolls no group back to an earlier image. Within one line of drivers the newest release is taken, so a group
    only ever goes forward."""
    newer = replace(
        experiment, arms=tuple(replace(arm, runtime=RUNTIMES["native-vllm-0.29"]) for arm in experiment.arms)
    )
    assert neuron_nodegroup(experiment) == "qwen3-32b-trn2-a-on-demand-d2-28"
    assert neuron_nodegroup(newer) == "qwen3-32b-trn2-a-on-demand-d2-29"


def test_the_end_of_a_rental_stands_before_its_first_node(deployment: Deployment) -> None:
    group = deployment.only("AWS::EKS::Nodegroup", stack="nodes")
    ends = deployment.resources("AWS::Scheduler::Schedule")
    assert {end.logical_id for end in ends} <= set(group.waits_for)
