"""Small templates in the real moto server: what became of each resource, what fails, and what is compared afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from moto.cloudformation import parsing

from tests.lab.aws.assemblies import (
    CLUSTER,
    MANIFEST,
    NETWORK,
    REGION,
    STACKS,
    WORKLOADS,
    Resource,
    resource,
    role,
    write_assembly,
)
from tests.lab.aws.conftest import ClientOf
from tests.lab.aws.with_cdk import (
    BOOTSTRAP_STACK,
    EXECUTION_ROLE,
    applied,
    check_roles,
    deploy_policies,
    not_as_reviewed,
)
from trnspec.core.findings import Outside, Refusal
from trnspec.lab.aws import moto_models
from trnspec.lab.aws.moto_server import child_environment, client, rehearsal_server
from trnspec.lab.aws.rehearsal import account_lines, in_one_line, rehearse
from trnspec.lab.aws.stacks import StackTemplate, read_assembly, resources_of


def test_an_assembly_is_read_in_order_byte_for_byte_with_the_images_and_files_that_it_needs(
    tmp_path: Path,
) -> None:
    assembly = read_assembly(write_assembly(tmp_path, STACKS))
    assert [stack.name for stack in assembly.stacks] == ["network", "workloads"]
    for stack in assembly.stacks:
        assert stack.body == (tmp_path / f"{stack.name}.template.json").read_text(encoding="utf-8")
    assert assembly.images == ("container-assets:c0ffee",)
    assert assembly.files == (("cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}", "0123.zip"),)


def test_every_resource_of_every_template_is_created_recorded_or_skipped_and_exports_are_resolved(
    endpoint: str, tmp_path: Path
) -> None:
    found = rehearse(write_assembly(tmp_path, STACKS), region=REGION, endpoint=endpoint)
    assert found.stacks == ("network", "workloads")
    assert {(one.stack, one.logical_id, one.type) for one in found.resources} == {
        (stack, name, entry["Type"])
        for stack, template in (("network", NETWORK), ("workloads", WORKLOADS))
        for name, entry in template["Resources"].items()
    }
    kinds = {"AWS::EC2::PlacementGroup": 1, "Custom::AWSCDK-EKS-HelmChart": 1, "Custom::SomethingElse": 1}
    kinds["Custom::AWSCDK-EKS-KubernetesResource"] = 2
    assert (found.types("recorded"), found.types("skipped")) == (kinds, {"AWS::S3::Bucket": 1})
    assert {one.physical_id for one in found.resources if one.outcome != "created"} == {""}
    (subnet,) = (one.physical_id for one in found.resources if one.logical_id == "Subnet")
    assert applied(found.resources) == [*MANIFEST, {"kind": "ConfigMap", "data": {"on": subnet}}]
    (barrier,) = (one.physical_id for one in found.resources if one.logical_id == "Barrier")
    parameter = client("ssm", endpoint=endpoint, region=REGION).get_parameter(Name=barrier)["Parameter"]
    assert parameter["Value"] == "recorded-Together"
    line = "rehearsed 2 stacks against a local AWS: 5 resources created, 5 without an emulator"
    assert in_one_line(found) == line
    lines = list(account_lines(found))
    assert "  network                              created   2, skipped   1" in lines
    assert max(map(len, lines)) <= 100
    with pytest.raises(Outside, match="must be running, and empty"):
        rehearse(tmp_path, region=REGION, endpoint=endpoint)


def test_an_attribute_that_moto_cannot_answer_is_reported_and_one_that_eks_does_not_have_fails(
    endpoint: str, client_of: ClientOf, tmp_path: Path
) -> None:
    """moto warns and leaves the reference itself in the property."""

    def of(*attribute: str) -> dict[str, Any]:
        text = {"Fn::Join": ["", ["in ", {"Fn::GetAtt": list(attribute)}]]}
        resources = {name: NETWORK["Resources"][name] for name in ("Vpc", "Subnet")}
        resources |= {"Role": role("eks.amazonaws.com"), "Cluster": CLUSTER}
        resources["Reader"] = resource("SSM::Parameter", Type="String", Value=text)
        return {"one": ({"Resources": resources}, ())}

    wrong = write_assembly(tmp_path, of("Cluster", "X"))
    with pytest.raises(
        Refusal, match=r"Reader \(AWS::SSM::Parameter\): AWS::EKS::Cluster has no attribute X"
    ):
        rehearse(wrong, region=REGION, endpoint=endpoint)
    with rehearsal_server() as empty:
        found = rehearse(
            write_assembly(tmp_path, of("Subnet", "AvailabilityZone")), region=REGION, endpoint=empty
        )
        cluster = client("eks", endpoint=empty, region=REGION).describe_cluster(name="trainium")["cluster"]
        group = cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]
        client("ec2", endpoint=empty, region=REGION).describe_security_groups(GroupIds=[group])
    assert found.unresolved == ('"Fn::GetAtt" : [ "Subnet" , "AvailabilityZone" ]"',)
    assert cluster["tags"] == {"team": "llm"}


def test_a_resource_that_moto_leaves_out_silently_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto as it comes: it skips the type and reports CREATE_COMPLETE."""
    monkeypatch.setattr(moto_models, "_model_for", vars(parsing)["resource_class_from_type"])
    body = json.dumps({"Resources": {"Together": WORKLOADS["Resources"]["Together"]}})
    with rehearsal_server() as endpoint:
        cloudformation = client("cloudformation", endpoint=endpoint, region=REGION)
        with pytest.warns(UserWarning, match="not supported by moto"):
            StackTemplate(name="one", body=body).create(cloudformation)
        with pytest.raises(Refusal, match=r"stack one: not created: Together \(AWS::EC2::PlacementGroup\)"):
            resources_of("one", region=REGION)


GROUP = {
    "NodegroupName": "trn2",
    "ClusterName": "nowhere",
    "NodeRole": "arn:aws:iam::123456789012:role/nobody",
    "Subnets": ["subnet-1"],
}
NO_SUCH_POLICY = "arn:aws:iam::aws:policy/AmazonEKSNothing"
ALARM = {"ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": 3, "Metrics": [{"Idd": "q"}]}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (resource("EKS::Nodegroup", **GROUP), ".*nowhere"),
        (role("ec2.amazonaws.com", ManagedPolicyArns=[NO_SUCH_POLICY]), ".*AmazonEKSNothing"),
        (
            resource("S3::Bucket", BucketName={"Fn::ImportValue": "nobody:Name"}),
            "No export named nobody:Name",
        ),
        (resource("EC2::Subnet", VpcId="vpc-1"), ""),  # an error inside moto
        (resource("CloudWatch::Alarm", **ALARM), ".*Idd"),
    ],
    ids=lambda value: value["Type"] if isinstance(value, dict) else "",
)
def test_a_stack_that_fails_is_one_line_with_its_resource_and_the_reason(
    broken: Resource, reason: str, client_of: ClientOf, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"Resources": {"Broken": broken}}
    with pytest.raises(Refusal, match=rf"^stack one: Broken \({broken['Type']}\): {reason}.*$") as caught:
        StackTemplate(name="one", body=str(body).replace("'", '"')).create(client_of("cloudformation"))
    assert caught.value.exit_code == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_not_a_finding_about_the_templates(tmp_path: Path) -> None:
    with pytest.raises(Outside):
        rehearse(write_assembly(tmp_path, STACKS), region=REGION, endpoint="http://localhost:1")


def test_real_credentials_profile_and_proxy_are_never_used_and_each_server_starts_empty_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAREALREALREALREAL",
        "AWS_SECRET_ACCESS_KEY": "real",
        "AWS_SESSION_TOKEN": "real",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_PROFILE": "production",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "no_proxy": "example.com",
    }.items():
        monkeypatch.setenv(name, value)
    program = "import boto3; print(boto3.client('sts').get_caller_identity()['Account'])"
    environment, choice = dict(os.environ), vars(parsing)["resource_class_from_type"]
    for _ in range(2):
        with rehearsal_server() as endpoint:
            s3 = client("s3", endpoint=endpoint, region=REGION)
            assert s3.list_buckets()["Buckets"] == []
            s3.create_bucket(Bucket="mine", CreateBucketConfiguration={"LocationConstraint": REGION})
            signed = s3.generate_presigned_url("get_object", Params={"Bucket": "mine", "Key": "k"})
            child = child_environment(endpoint=endpoint, region=REGION)
        assert signed.startswith(f"{endpoint}/mine/k?")
        assert "AKIAREAL" not in signed
        assert "Security-Token" not in signed
        assert vars(parsing)["resource_class_from_type"] is choice
        assert dict(os.environ) == environment
    with rehearsal_server() as endpoint:
        child = child_environment(endpoint=endpoint, region=REGION)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=child, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "123456789012"


IMAGE = "${AWS_ACCOUNT}.dkr.ecr/x:${TAG}"


def job(name: str = "fetch", **spec: Any) -> dict[str, Any]:
    plain = {"image": "123456789012.dkr.ecr/x:abc", "replicas": 1, "args": ["a", "b"], "on": True}
    return {"kind": "Job", "metadata": {"name": name, "namespace": "n"}, "spec": plain | spec}


REVIEWED = job(image=IMAGE)


@pytest.mark.parametrize(
    ("spec", "lines"),
    [
        ({}, ()),  # a placeholder stands for any text
        ({"replicas": 2}, ("Job n/fetch spec.replicas: 1 became 2",)),
        ({"args": ["a", "c"]}, ("Job n/fetch spec.args[1]: 'b' became 'c'",)),
        ({"args": ["a"]}, ("Job n/fetch spec.args[1]: 'b' became absent",)),
        ({"on": 1}, ("Job n/fetch spec.on: True became 1",)),
        ({"image": ".dkr.ecr/x:abc"}, (f"Job n/fetch spec.image: '{IMAGE}' became '.dkr.ecr/x:abc'",)),
        (
            {"image": "1.dkr.ecr/x:${TAG}"},
            (f"Job n/fetch spec.image: '{IMAGE}' became '1.dkr.ecr/x:${{TAG}}'",),
        ),
    ],
)
def test_what_is_applied_is_what_was_reviewed_but_for_placeholders(
    spec: dict[str, Any], lines: tuple[str, ...]
) -> None:
    assert not_as_reviewed([REVIEWED], [job(**spec)]) == lines


def test_an_object_more_or_less_is_a_difference() -> None:
    other = {"kind": "Namespace", "metadata": {"name": "m"}}
    assert not_as_reviewed([REVIEWED], [job(), other]) == ("Namespace m: applied, not reviewed",)
    assert not_as_reviewed([REVIEWED, other], [job()]) == ("Namespace m: reviewed, not applied",)


ADMINISTRATOR = "arn:aws:iam::aws:policy/AdministratorAccess"
READING = "arn:aws:iam::aws:policy/ReadOnlyAccess"
EXECUTION, BOUNDARY = (
    f"arn:aws:iam::123456789012:policy/speculation-{name}" for name in ("execution", "boundary")
)


def test_roles_of_a_bootstrap_and_of_stacks_must_be_within_the_committed_policies(
    client_of: ClientOf,
) -> None:
    cloudformation, iam = client_of("cloudformation"), client_of("iam")
    policies = deploy_policies(cloudformation)
    assert policies.flags[1::2] == (EXECUTION, "speculation-boundary")
    assert policies.boundary_arn == BOUNDARY
    bootstrap = {
        (EXECUTION_ROLE, EXECUTION, BOUNDARY): True,
        (EXECUTION_ROLE, f"{EXECUTION} {ADMINISTRATOR}", BOUNDARY): False,
        (EXECUTION_ROLE, "", BOUNDARY): False,
        (EXECUTION_ROLE, EXECUTION, ""): False,
        ("LookupRole", READING, ""): True,
        ("LookupRole", ADMINISTRATOR, ""): False,
    }
    stacks = {("Node", READING, BOUNDARY): True, ("Node", READING, ""): False}
    for stack, cases in ((BOOTSTRAP_STACK, bootstrap), ("nodes", stacks)):
        for (name, attached, boundary), within in cases.items():
            body = role("ec2.amazonaws.com", ManagedPolicyArns=attached.split())
            body["Properties"] |= {"PermissionsBoundary": boundary} if boundary else {}
            text = str({"Resources": {name: body}}).replace("'", '"')
            StackTemplate(name=stack, body=text).create(cloudformation)
            resources = resources_of(stack, region=REGION)
            with nullcontext() if within else pytest.raises(AssertionError):
                assert check_roles(resources, policies, iam) == 1
            cloudformation.delete_stack(StackName=stack)
