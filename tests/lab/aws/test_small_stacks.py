"""Deploying small templates into the real moto server and reading them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moto.cloudformation import parsing

from experiment.finding import Outside, Refusal
from lab.aws import moto_models
from lab.aws.moto_models import Outcome
from lab.aws.rehearsal import Rehearsal, rehearse
from tests.lab.aws.assemblies import (
    CLUSTER,
    DASHBOARD,
    MANIFEST,
    NETWORK,
    REGION,
    WORKLOADS,
    role,
    write_assembly,
)

AWS_OWN = "arn:aws:iam::aws:policy"


def test_every_resource_of_every_template_is_in_the_account(rehearsal: Rehearsal) -> None:
    wanted = {
        (stack, name, one["Type"])
        for stack, template in (("network", NETWORK), ("cluster", CLUSTER), ("workloads", WORKLOADS))
        for name, one in template["Resources"].items()
    }
    assert {(one.stack, one.logical_id, one.type) for one in rehearsal.resources} == wanted
    assert len(rehearsal.resources) == len(wanted)
    assert rehearsal.stacks == ("network", "cluster", "workloads")


def test_what_moto_lacks_what_is_recorded_and_what_is_skipped_is_reported(rehearsal: Rehearsal) -> None:
    assert rehearsal.types(Outcome.NOT_MODELLED) == {
        "AWS::EC2::PlacementGroup": 1,
        "Custom::SomethingElse": 1,
    }
    assert rehearsal.types(Outcome.RECORDED) == {
        "AWS::EKS::Addon": 1,
        "Custom::AWSCDK-EKS-HelmChart": 1,
        "Custom::AWSCDK-EKS-KubernetesResource": 2,
    }
    others = {one.physical_id for one in rehearsal.resources if one.outcome is not Outcome.CREATED}
    assert others == {""}
    (skipped,) = [one for one in rehearsal.resources if one.outcome is Outcome.SKIPPED]
    assert (skipped.stack, skipped.logical_id) == ("network", "OnlyInChina")
    assert rehearsal.count("network", Outcome.CREATED) == 2


def test_recorded_manifests_are_read_back_verbatim_and_with_exports_resolved(rehearsal: Rehearsal) -> None:
    later = {"kind": "ConfigMap", "data": {"on": "trainium"}}
    assert rehearsal.facts.objects == (*MANIFEST, later)


def test_buckets_dashboards_and_placeholders_of_lambda_code_are_named(rehearsal: Rehearsal) -> None:
    assert rehearsal.facts.buckets == ("results-of-runs",)
    assert json.loads(rehearsal.facts.dashboards["speed"]) == DASHBOARD
    assert rehearsal.placeholders == ("cdk-hnb659fds-assets-123456789012-us-east-2/0123.zip",)


def single(folder: Path, resources: dict[str, Any]) -> Path:
    return write_assembly(folder, {"one": ({"Resources": resources}, ())})


def test_a_resource_that_moto_leaves_out_silently_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto as it comes: it skips the type, resolves references to nothing, and reports CREATE_COMPLETE."""
    monkeypatch.setattr(moto_models, "model_for", vars(parsing)["resource_class_from_type"])
    group = {"Type": "AWS::EC2::PlacementGroup", "Properties": {"Strategy": "cluster"}}
    with (
        pytest.warns(UserWarning, match="not supported by moto"),
        pytest.raises(Refusal, match=r"stack one: .*Together \(AWS::EC2::PlacementGroup\)"),
    ):
        rehearse(single(tmp_path, {"Together": group}), region=REGION)


def test_an_attribute_that_moto_cannot_answer_is_reported(tmp_path: Path) -> None:
    """moto warns and leaves the reference itself in the property."""
    zone = {"Fn::Join": ["", ["in ", {"Fn::GetAtt": ["Subnet", "AvailabilityZone"]}]]}
    parameter = {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": zone}}
    resources = {name: NETWORK["Resources"][name] for name in ("Vpc", "Subnet")}
    rehearsed = rehearse(single(tmp_path, {**resources, "Zone": parameter}), region=REGION)
    assert rehearsed.unresolved == ('"Fn::GetAtt" : [ "Subnet" , "AvailabilityZone" ]"',)


GROUP = {**CLUSTER["Resources"]["Nodes"]["Properties"], "ClusterName": "nowhere", "Subnets": ["subnet-1"]}
ROLE = {**role("ec2.amazonaws.com")["Properties"], "ManagedPolicyArns": [f"{AWS_OWN}/AmazonEKSNothing"]}
BUCKET = {"BucketName": {"Fn::ImportValue": "nobody:Name"}}
ALARM = {"ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": 3, "Metrics": [{"Idd": "q"}]}


@pytest.mark.parametrize(
    ("kind", "properties", "reason"),
    [
        ("EKS::Nodegroup", {**GROUP, "LaunchTemplate": {"Id": "lt-1"}}, "create_nodegroup: .*nowhere"),
        ("IAM::Role", ROLE, ".*AmazonEKSNothing"),
        ("S3::Bucket", BUCKET, "No export named nobody:Name"),
        ("EC2::Subnet", {"VpcId": "vpc-1"}, ""),
        ("CloudWatch::Alarm", ALARM, "put_metric_alarm: .*Idd"),
    ],
    ids=["no such cluster", "no such policy", "nothing exports it", "an error inside moto", "no such key"],
)
def test_a_stack_that_fails_is_one_line_with_its_resource_and_the_reason(
    kind: str, properties: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {
        "Role": CLUSTER["Resources"]["Role"],
        "Broken": {"Type": f"AWS::{kind}", "Properties": properties},
    }
    with pytest.raises(Refusal, match=rf"^stack one: Broken \(AWS::{kind}\): {reason}.*$") as caught:
        rehearse(single(tmp_path, broken), region=REGION)
    assert caught.value.exit_code == 1
    assert "Traceback" not in capsys.readouterr().err


def test_an_attribute_that_eks_does_not_have_fails(tmp_path: Path) -> None:
    resources = {**NETWORK["Resources"], **CLUSTER["Resources"]}
    resources = {name: resources[name] for name in ("Vpc", "Subnet", "Role", "Cluster")}
    imported, own = '{"Fn::ImportValue": "network:Subnet"}', '{"Ref": "Subnet"}'
    resources["Cluster"] = json.loads(json.dumps(resources["Cluster"]).replace(imported, own))
    value = {"Type": "String", "Value": {"Fn::GetAtt": ["Cluster", "X"]}}
    resources["Reader"] = {"Type": "AWS::SSM::Parameter", "Properties": value}
    with pytest.raises(
        Refusal, match=r"Reader \(AWS::SSM::Parameter\): AWS::EKS::Cluster has no attribute X"
    ):
        rehearse(single(tmp_path, resources), region=REGION)


def test_a_server_that_does_not_answer_is_not_a_finding_about_the_templates(three_stacks: Path) -> None:
    with pytest.raises(Outside) as caught:
        rehearse(three_stacks, region=REGION, endpoint="http://localhost:1")
    assert caught.value.exit_code == 3
