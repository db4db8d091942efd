"""An upgrade from stacks that stand: what is replaced has another name first, what is retained stays, nothing is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab.aws.moto_server import client, rehearsal_server
from tests.infra.templates import ROOT, Deployment, Resource, resolved
from tests.infra.test_second_deployment import _at, _fixed, _pairs, made_again

DEPLOYED = ROOT / "tests" / "data" / "deployed" / "2026-11-22.json"
RETAINED = ("Retain", "RetainExceptOnCreate", "Snapshot")
REGION = "us-east-2"


@pytest.fixture(scope="module")
def deployed() -> Deployment:
    """The reference experiment as an earlier version of this repository deployed it."""
    return Deployment(json.loads(DEPLOYED.read_text(encoding="utf-8")), {}, {})


@pytest.fixture(scope="module")
def replaced(deployed: Deployment, deployment: Deployment) -> list[tuple[Resource, Resource]]:
    """Resources that CloudFormation makes again, the new one before it deletes the old one."""
    return made_again(deployed, deployment)


def _names(resource: Resource) -> dict[str, Any]:
    """Physical names that the template chooses."""
    own = [path for path in _fixed(resource.type) if path[-1].endswith("Name") and path != ["ClusterName"]]
    return {"/".join(path): name for path in own if (name := _at(resource.properties, path)) is not None}


def _keeps(resource: Resource) -> bool:
    return bool(
        {resource.body.get(policy) for policy in ("DeletionPolicy", "UpdateReplacePolicy")} & {*RETAINED}
    )


def test_no_logical_id_becomes_another_type(deployed: Deployment, deployment: Deployment) -> None:
    """CloudFormation refuses that."""
    for before, after in _pairs(deployed, deployment):
        assert before.type == after.type, (before.stack, before.logical_id)


def test_what_is_made_again_has_another_name(replaced: list[tuple[Resource, Resource]]) -> None:
    """Of one name there cannot be two at a time."""
    assert {(before.stack, before.type) for before, _ in replaced} >= {
        ("nodes", "AWS::IAM::Role"),
        ("observability", "AWS::CloudWatch::Dashboard"),
    }
    for before, after in replaced:
        old, new = _names(before), _names(after)
        assert not old or all(old[path] != new.get(path) for path in old), (before.stack, before.logical_id)


def test_a_resource_that_moves_to_another_logical_id_has_another_name(
    deployed: Deployment, deployment: Deployment
) -> None:
    """The new one is made before the old one goes."""
    there = {(one.stack, one.logical_id) for one in deployed.resources()}
    old = {
        (one.type, str(resolved(name))): one.logical_id
        for one in deployed.resources()
        for name in _names(one).values()
    }
    for one in deployment.resources():
        if (one.stack, one.logical_id) not in there:
            for name in _names(one).values():
                assert (one.type, str(resolved(name))) not in old, one.logical_id


def test_nothing_that_is_retained_is_made_again_or_leaves_its_stack(
    deployed: Deployment, deployment: Deployment, replaced: list[tuple[Resource, Resource]]
) -> None:
    """It would stay, with nothing that knows of it: weights, artifacts, results, keys."""
    assert [before.logical_id for before, _ in replaced if _keeps(before)] == []
    there = {(one.stack, one.logical_id) for one in deployment.resources()}
    kept = [one for one in deployed.resources() if _keeps(one)]
    assert len([one for one in kept if one.type == "AWS::S3::Bucket"]) >= 3
    assert [one.logical_id for one in kept if (one.stack, one.logical_id) not in there] == []


def test_what_uses_a_renamed_role_follows_it_in_the_same_update(deployment: Deployment) -> None:
    """By reference, so that CloudFormation changes it between making the new role and deleting the old one."""
    (role,) = (one for one in deployment.resources("AWS::IAM::Role") if "RoleName" in one.properties)
    arn = {"Fn::GetAtt": [role.logical_id, "Arn"]}
    schedules = deployment.resources("AWS::Scheduler::Schedule")
    assert schedules
    assert all(one.properties["Target"]["RoleArn"] == arn for one in schedules)
    policies = [
        one
        for one in deployment.resources("AWS::IAM::Policy")
        if {"Ref": role.logical_id} in one.properties["Roles"]
    ]
    assert policies
    assert {one.stack for one in policies} == {role.stack}, "another stack's policy would keep the old role"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with rehearsal_server() as endpoint:
        yield endpoint


def _without_policies(resources: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Moto takes another deletion policy for another resource; CloudFormation does not."""
    left_out = ("DeletionPolicy", "UpdateReplacePolicy")
    return {
        name: {key: value for key, value in one.items() if key not in left_out}
        for name, one in resources.items()
    }


def test_after_an_upgrade_the_account_has_the_new_dashboard_alone_and_the_same_buckets(
    server: str, deployed: Deployment, deployment: Deployment
) -> None:
    cloudformation, cloudwatch, s3 = (
        client(service, endpoint=server, region=REGION) for service in ("cloudformation", "cloudwatch", "s3")
    )

    def apply(found: Deployment, call: Any) -> tuple[list[str], list[str]]:
        for stack in ("observability", "storage"):
            body = json.dumps({"Resources": _without_policies(found.templates[stack]["Resources"])})
            call(StackName=f"qwen3-32b-{stack}", TemplateBody=body, Capabilities=["CAPABILITY_IAM"])
        dashboards = cloudwatch.list_dashboards()["DashboardEntries"]
        buckets = s3.list_buckets()["Buckets"]
        return [one["DashboardName"] for one in dashboards], sorted(one["Name"] for one in buckets)

    before = apply(deployed, cloudformation.create_stack)
    after = apply(deployment, cloudformation.update_stack)
    assert (before[0], after[0]) == (["qwen3-32b"], ["qwen3-32b-us-east-2"])
    assert before[1] == after[1]
    assert len(after[1]) == 4
