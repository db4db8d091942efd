"""What a second `cdk deploy`, of a changed experiment or of a later version, changes in place, replaces, or would break on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Literal

import pytest
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from infra.pipeline.pipeline_file import delivery_role_name, read_pipeline
from tests.infra.conftest import ADMIN, SECOND_ADMIN, changed
from tests.infra.templates import REGION, Deployment, Deployments, Resource, listed_data, resolved
from trnspec.experiment import Experiment
from trnspec.experiment.arm_rules import MAX_EXPERIMENT_NAME
from trnspec.experiment.catalogue.instances import ZONES
from trnspec.experiment.catalogue.runtimes import RUNTIMES
from trnspec.experiment.model import Capacity
from trnspec.experiment.naming import dashboard_name, neuron_nodegroup, off_role_name

Pairs = list[tuple[Resource, Resource]]
KINDS: tuple[Literal["reservation", "capacity-block"], ...] = ("reservation", "capacity-block")


def _fixed(type_: str) -> list[list[str]]:
    """Paths of the properties that CloudFormation's own schema says cannot be changed."""
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, type_).schema
    return [path.split("/")[2:] for path in schema.get("createOnlyProperties", [])]


def _at(properties: Any, path: list[str]) -> Any:
    for step in path:
        properties = properties.get(step) if isinstance(properties, dict) else None
    return resolved(properties)


def _by_id(deployment: Deployment) -> dict[tuple[str, str], Resource]:
    return {(one.stack, one.logical_id): one for one in deployment.resources()}


def made_again(before: Deployment, after: Deployment) -> Pairs:
    """Resources that are in both, and that CloudFormation cannot change into the other: it makes the new one before it deletes the
    old one."""
    there = _by_id(after)
    return [
        (old, there[place])
        for place, old in _by_id(before).items()
        if place in there
        and any(_at(old.properties, path) != _at(there[place].properties, path) for path in _fixed(old.type))
    ]


def _names(resource: Resource) -> dict[str, Any]:
    """Physical names that the template chooses."""
    own = [path for path in _fixed(resource.type) if path[-1].endswith("Name") and path != ["ClusterName"]]
    return {"/".join(path): name for path in own if (name := _at(resource.properties, path)) is not None}


def stuck(before: Deployment, after: Deployment) -> list[str]:
    """What the second deployment fails on: CloudFormation makes a resource anew, before it deletes one that has the same name."""
    old, new = before.resources(), after.resources()
    kept = _by_id(before).keys() - {(one.stack, one.logical_id) for one, _ in made_again(before, after)}
    there = {(one.type, path, name) for one in old for path, name in _names(one).items()}
    fresh = [one for one in new if (one.stack, one.logical_id) not in kept]
    return [
        one.logical_id for one in fresh if any((one.type, *name) in there for name in _names(one).items())
    ]


SYSTEM_NODES, TRN2_NODES = "SystemNodesGroup", "NeuronNodesGroup"
SECOND = (
    ("reference", "later", {TRN2_NODES}, set[str]()),
    ("reference", "bought", {TRN2_NODES}, set[str]()),
    ("later", "bought", {TRN2_NODES}, set[str]()),
    ("within", "wider", {TRN2_NODES, SYSTEM_NODES}, set[str]()),
    # `deploy` refuses it before anything is built.
    ("reference", "keyed", {"Cluster"}, {"Cluster"}),
)
"""Two deployments of one experiment; what the second makes anew of what has a name, and what it fails on."""


@pytest.mark.parametrize(("first", "then", "anew", "fails"), SECOND)
def test_a_second_deployment_makes_only_groups_of_nodes_anew_each_under_another_name(
    first: str, then: str, anew: set[str], fails: set[str], made: Deployments
) -> None:
    """By what CloudFormation's schemas call create-only; the other way round too."""
    before, after = getattr(made, first), getattr(made, then)
    for one, other in ((before, after), (after, before)):
        again = {old.logical_id[:-8] for old, _ in made_again(one, other) if _names(old)}
        assert (again, {name[:-8] for name in stuck(one, other)}) == (anew, fails)


def test_a_boundary_that_is_named_later_changes_every_role_in_place(made: Deployments) -> None:
    bound = [one.properties.get("PermissionsBoundary") for one in made.wider.resources("AWS::IAM::Role")]
    assert len(bound) > 10
    assert None not in bound


def test_one_more_zone_in_an_existing_vpc_leaves_the_control_plane_in_the_zones_of_its_creation(
    made: Deployments,
) -> None:
    """EKS refuses others: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html."""
    first, second = (
        found.only("AWS::EKS::Cluster").properties["ResourcesVpcConfig"]["SubnetIds"]
        for found in (made.within, made.wider)
    )
    assert first == ["subnet-0c0123456789abcde", "subnet-0a0123456789abcde"]
    assert second == ["subnet-1c0123456789abcde", "subnet-1a0123456789abcde"]
    for group in made.wider.properties("AWS::EKS::Nodegroup", "cluster"):
        assert group["Subnets"] == [*second, "subnet-1b0123456789abcde"]


@pytest.mark.parametrize("deployment", ["reference", "opened", "later"])
def test_what_holds_data_keeps_its_logical_id_and_what_becomes_of_it(
    deployment: str, made: Deployments
) -> None:
    assert getattr(made, deployment).data() == listed_data("experiment", "run")


def test_no_subnet_moves_or_is_lost_and_the_control_plane_and_its_administrators_keep_their_places(
    made: Deployments,
) -> None:
    """EKS refuses any other subnets: https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html."""
    first, second = (
        {
            one.logical_id: (one.properties["AvailabilityZone"], one.properties["CidrBlock"])
            for one in found.resources("AWS::EC2::Subnet")
        }
        for found in (made.reference, made.later)
    )
    assert first == second
    before, after = (
        found.only("AWS::EKS::Cluster").properties["ResourcesVpcConfig"]["SubnetIds"]
        for found in (made.reference, made.later)
    )
    assert before == after
    assert len(before) == 3
    assert made.later.resources("AWS::EKS::AccessEntry", "cluster", PrincipalArn=SECOND_ADMIN)
    entries = {
        found.only("AWS::EKS::AccessEntry", "cluster", PrincipalArn=ADMIN).logical_id
        for found in (made.opened, made.later)
    }
    assert len(entries) == 1


def test_each_purchase_and_each_line_of_drivers_is_a_group_of_its_own(experiment: Experiment) -> None:
    """Capacity type, subnet and reservation are what EKS does not change, and it rolls no group back to an earlier image;
    see `neuron_nodegroup`. Within one line of drivers the newest release is taken, so a group only ever goes forward."""
    bought = [
        {
            "capacity": Capacity(kind=kind, reservation_id=f"cr-0123456789abcdef{end}"),
            "availability_zones": (zone, "us-east-2a"),
        }
        for kind, end, zone in product(KINDS, "01", ZONES["us-east-2"])
    ]
    names = {neuron_nodegroup(changed(experiment, experiment.name, **one)) for one in bought}
    runtime = RUNTIMES["native-vllm-0.29"]
    newer = replace(experiment, arms=tuple(replace(arm, runtime=runtime) for arm in experiment.arms))
    assert neuron_nodegroup(experiment) == "qwen3-32b-trn2-a-on-demand-d2-28"
    assert neuron_nodegroup(newer) == "qwen3-32b-trn2-a-on-demand-d2-29"
    assert len(names | {neuron_nodegroup(experiment), neuron_nodegroup(newer)}) == len(bought) + 2
    longest = changed(experiment, "x" * MAX_EXPERIMENT_NAME, **bought[-1])
    assert len(neuron_nodegroup(longest)) <= 63


def test_what_may_not_be_deleted_by_mistake_is_protected(made: Deployments) -> None:
    said = {part: one["properties"] for part, one in made.reference.artifacts.items()}
    assert {part for part, one in said.items() if one.get("terminationProtection")} == {"storage", "cluster"}


def test_the_end_of_a_rental_is_there_before_its_first_node_and_follows_a_renamed_role_in_the_same_update(
    made: Deployments,
) -> None:
    """By reference, so that CloudFormation changes it between making the new role and deleting the old one."""
    (role,) = (
        one for one in made.reference.resources("AWS::IAM::Role", "nodes") if "RoleName" in one.properties
    )
    ends = made.reference.resources("AWS::Scheduler::Schedule")
    assert {end.logical_id for end in ends} <= {
        *made.reference.only("AWS::EKS::Nodegroup", "nodes").waits_for
    }
    roles = [one.properties["Target"]["RoleArn"] for one in ends]
    assert roles == [{"Fn::GetAtt": [role.logical_id, "Arn"]}] * 2
    policies = made.reference.resources("AWS::IAM::Policy")
    stacks = {one.stack for one in policies if {"Ref": role.logical_id} in one.properties["Roles"]}
    assert stacks == {role.stack}, "another stack's policy would keep the old role"


ACCOUNT_WIDE = {
    "CloudWatch::Dashboard": "DashboardName",
    "IAM::Group": "GroupName",
    "IAM::InstanceProfile": "InstanceProfileName",
    "IAM::ManagedPolicy": "ManagedPolicyName",
    "IAM::Role": "RoleName",
    "IAM::User": "UserName",
    "S3::Bucket": "BucketName",
}
"""Types whose ARN has no region (https://docs.aws.amazon.com/service-authorization/latest/reference/reference.html), and
the property with which a template would choose the name."""


def test_every_chosen_name_that_is_account_wide_carries_the_region_and_those_of_the_longest_experiment_fit(
    made: Deployments, experiment: Experiment
) -> None:
    for deployment in (made.reference, made.opened, made.rented):
        named = [
            str(resolved(one[key]))
            for type_, key in ACCOUNT_WIDE.items()
            for one in deployment.properties(f"AWS::{type_}")
            if key in one
        ]
        assert len(named) >= 5
        assert [name for name in named if REGION not in name] == []
    pipeline, region = read_pipeline(), "ap-southeast-2"
    longest = changed(experiment, "x" * MAX_EXPERIMENT_NAME, region=region)
    settings = pipeline.settings.model_copy(update={"name": "p" * 31, "region": region})
    stage = replace(pipeline.prod, experiment=longest)
    caller = replace(pipeline, settings=settings).caller_role(stage)
    roles = [off_role_name(longest), delivery_role_name(longest), stage.starter_role, caller]
    dashboard = dashboard_name(longest)
    # https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
    assert max(map(len, roles)) <= 64
    assert len(dashboard) <= 255
    assert [name for name in (*roles, dashboard) if region not in name] == []
