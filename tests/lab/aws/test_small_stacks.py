"""Deploying small templates into the real moto server, reading them back, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.aws.accounting import account_for
from lab.aws.printing import account_lines, in_one_line
from moto.cloudformation import parsing

from core.findings import Outside, Refusal
from lab.aws import moto_models
from lab.aws.assembly import read_assembly
from lab.aws.moto_models import Outcome
from lab.aws.rehearsal import Rehearsal, not_as_reviewed, rehearse
from lab.aws.surroundings import Remains
from tests.lab.aws.assemblies import (
    CLUSTER,
    DASHBOARD,
    MANIFEST,
    NETWORK,
    REGION,
    STACKS,
    WORKLOADS,
    resource,
    role,
    write_assembly,
)


def test_an_assembly_is_read_in_order_byte_for_byte_with_what_bootstrap_has_to_leave_behind(
    tmp_path: Path,
) -> None:
    images = {"a": {"destinations": {"here": {"repositoryName": "container-assets", "imageTag": "c0ffee"}}}}
    (tmp_path / "n.assets.json").write_text(json.dumps({"dockerImages": images}), encoding="utf-8")
    more = {
        "n.assets": {"type": "cdk:asset-manifest", "properties": {"file": "n.assets.json"}},
        "assembly-Prod": {"type": "cdk:cloud-assembly", "properties": {"directoryName": "assembly-Prod"}},
    }
    assembly = read_assembly(write_assembly(tmp_path, STACKS, more=more))
    assert [stack.name for stack in assembly.stacks] == ["network", "cluster", "workloads"]
    for stack in assembly.stacks:
        assert stack.body == (tmp_path / f"{stack.name}.template.json").read_text(encoding="utf-8")
    code = ("cdk-hnb659fds-assets-123456789012-us-east-2", "0123.zip")
    assert assembly.code_assets(region=REGION) == (code,)
    assert assembly.bootstrap == {"/cdk-bootstrap/hnb659fds/version": 6}
    assert assembly.images == ("container-assets:c0ffee",)
    assert assembly.stages == ("assembly-Prod",)


def test_every_resource_of_every_template_is_in_the_account_with_what_became_of_it(
    rehearsal: Rehearsal,
) -> None:
    wanted = {
        (stack, name, one["Type"])
        for stack, template in (("network", NETWORK), ("cluster", CLUSTER), ("workloads", WORKLOADS))
        for name, one in template["Resources"].items()
    }
    assert {(one.stack, one.logical_id, one.type) for one in rehearsal.resources} == wanted
    assert len(rehearsal.resources) == len(wanted)
    assert rehearsal.stacks == ("network", "cluster", "workloads")
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


@pytest.mark.parametrize(
    ("listed", "absent", "said"),
    [
        ("Metadata", set(), r"not explained: Bucket \(AWS::S3::Bucket\), Role \(.*; there .* for: none"),
        ("Bucket Role Metadata Ghost", set(), "not explained: none; there without being asked for: Ghost"),
        ("Bucket Role Metadata", {"Known"}, "there without being asked for: Metadata"),
    ],
)
def test_what_is_missing_or_not_asked_for_is_refused(listed: str, absent: set[str], said: str) -> None:
    resources = {"Bucket": resource("S3::Bucket"), "Role": role("x"), "Metadata": resource("CDK::Metadata")}
    resources["Metadata"]["Condition"] = "Known"
    with pytest.raises(Refusal, match=f"stack storage: .*{said}"):
        account_for(
            "storage",
            {"Resources": resources},
            listed=dict.fromkeys(listed.split(), "x"),
            false_conditions=absent,
        )


def test_manifests_buckets_and_dashboards_are_read_back_verbatim_and_with_exports_resolved(
    rehearsal: Rehearsal,
) -> None:
    later = {"kind": "ConfigMap", "data": {"on": "trainium"}}
    assert rehearsal.facts.objects == (*MANIFEST, later)
    assert rehearsal.facts.buckets == ("results-of-runs",)
    assert json.loads(rehearsal.facts.dashboards["speed"]) == DASHBOARD
    assert rehearsal.placeholders == ("cdk-hnb659fds-assets-123456789012-us-east-2/0123.zip",)


def test_the_printed_account_names_all_that_a_reader_needs_in_100_columns(rehearsal: Rehearsal) -> None:
    facts = replace(rehearsal.facts, buckets=("results-of-runs", *("a-very-long-name-of-a-bucket",) * 50))
    lines = account_lines(replace(rehearsal, facts=facts, unresolved=("GetAtt Vpc.Colour is unknown",)))
    text = "\n".join(lines)
    for wanted in (
        "Rehearsal of 3 stacks in us-east-2",
        "created   5, recorded   1, not modelled   1",
        "trainium: Kubernetes 1.35, public for 203.0.113.0/24, private",
        "trn2: trn2.48xlarge, desired 0 (0 to 1), 16 network interfaces, taint",
        "aws.amazon.com/neuron=true:NO_SCHEDULE, label example.com/Accelerator=trn2",
        "results-of-runs",
        "4 objects, recorded: 2 ConfigMap, 1 Namespace, 1 ResourceClaimTemplate",
        "neuron-helm-chart 1.3.0 into kube-system, recorded",
        "1 AWS::EC2::PlacementGroup",
        "1 placeholder for Lambda code",
        "GetAtt Vpc.Colour is unknown",
    ):
        assert wanted in text
    assert "deployment" not in text.lower()
    assert "teardown" not in text
    assert max(map(len, lines)) <= 100
    assert sum("a-very-long-name" in line for line in lines) == 3
    counted = "11 resources created, 4 without an emulator, 2 not modelled"
    assert in_one_line(rehearsal) == f"rehearsed 3 stacks against a local AWS: {counted}"


def test_the_account_says_what_is_left_and_what_was_disturbed(rehearsal: Rehearsal) -> None:
    left = Remains(before=9, left=("s3 Buckets: x",), disturbed=())
    for remains, told in ((left, "all as they were"), (replace(left, disturbed=("vpc-1",)), "vpc-1")):
        lines = account_lines(replace(rehearsal, unchanged=7, remains=remains))
        assert "A second deployment changes nothing in 7 stacks." in lines
        assert f"After the teardown: 9 things were there before the deployment, {told}." in lines
        assert "  s3 Buckets: x" in lines


def single(folder: Path, resources: dict[str, Any]) -> Path:
    return write_assembly(folder, {"one": ({"Resources": resources}, ())})


def test_a_resource_that_moto_leaves_out_silently_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto as it comes: it skips the type, resolves references to nothing, and reports CREATE_COMPLETE."""
    monkeypatch.setattr(moto_models, "model_for", vars(parsing)["resource_class_from_type"])
    group = CLUSTER["Resources"]["Together"]
    with (
        pytest.warns(UserWarning, match="not supported by moto"),
        pytest.raises(Refusal, match=r"stack one: .*Together \(AWS::EC2::PlacementGroup\)"),
    ):
        rehearse(single(tmp_path, {"Together": group}), region=REGION)


def test_an_attribute_that_moto_cannot_answer_is_reported_and_one_that_eks_does_not_have_fails(
    tmp_path: Path,
) -> None:
    """moto warns and leaves the reference itself in the property."""

    def reading(*attribute: str) -> dict[str, Any]:
        text = {"Fn::Join": ["", ["in ", {"Fn::GetAtt": list(attribute)}]]}
        return {"Reader": resource("SSM::Parameter", Type="String", Value=text)}

    network = {name: NETWORK["Resources"][name] for name in ("Vpc", "Subnet")}
    zone = single(tmp_path, {**network, **reading("Subnet", "AvailabilityZone")})
    assert rehearse(zone, region=REGION).unresolved == ('"Fn::GetAtt" : [ "Subnet" , "AvailabilityZone" ]"',)
    cluster = {name: CLUSTER["Resources"][name] for name in ("Role", "Cluster")}
    imported, own = '{"Fn::ImportValue": "network:Subnet"}', '{"Ref": "Subnet"}'
    cluster = json.loads(json.dumps(cluster).replace(imported, own))
    said = r"Reader \(AWS::SSM::Parameter\): AWS::EKS::Cluster has no attribute X"
    with pytest.raises(Refusal, match=said):
        rehearse(single(tmp_path, {**network, **cluster, **reading("Cluster", "X")}), region=REGION)


GROUP = {**CLUSTER["Resources"]["Nodes"]["Properties"], "ClusterName": "nowhere", "Subnets": ["subnet-1"]}
NO_SUCH_POLICY = "arn:aws:iam::aws:policy/AmazonEKSNothing"
ROLE = {**role("ec2.amazonaws.com")["Properties"], "ManagedPolicyArns": [NO_SUCH_POLICY]}
BUCKET = {"BucketName": {"Fn::ImportValue": "nobody:Name"}}
ALARM = {"ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": 3, "Metrics": [{"Idd": "q"}]}


@pytest.mark.parametrize(
    ("kind", "properties", "reason"),
    [
        ("EKS::Nodegroup", {**GROUP, "LaunchTemplate": {"Id": "lt-1"}}, "create_nodegroup: .*nowhere"),
        ("IAM::Role", ROLE, ".*AmazonEKSNothing"),
        ("S3::Bucket", BUCKET, "No export named nobody:Name"),
        ("EC2::Subnet", {"VpcId": "vpc-1"}, ""),  # an error inside moto
        ("CloudWatch::Alarm", ALARM, "put_metric_alarm: .*Idd"),
    ],
)
def test_a_stack_that_fails_is_one_line_with_its_resource_and_the_reason(
    kind: str, properties: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"Role": CLUSTER["Resources"]["Role"], "Broken": resource(kind, **properties)}
    with pytest.raises(Refusal, match=rf"^stack one: Broken \(AWS::{kind}\): {reason}.*$") as caught:
        rehearse(single(tmp_path, broken), region=REGION)
    assert caught.value.exit_code == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_not_a_finding_about_the_templates(three_stacks: Path) -> None:
    with pytest.raises(Outside) as caught:
        rehearse(three_stacks, region=REGION, endpoint="http://localhost:1")
    assert caught.value.exit_code == 3


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


def test_an_object_more_or_less_is_a_difference_and_a_placeholder_in_a_name_is_none() -> None:
    other = {"kind": "Namespace", "metadata": {"name": "m"}}
    assert not_as_reviewed([REVIEWED], [job(), other]) == ("Namespace m: applied, not reviewed",)
    assert not_as_reviewed([REVIEWED, other], [job()]) == ("Namespace m: reviewed, not applied",)
    contents = ("0a1b2c3d", "4e5f6a7b")
    named = [job(f"fetch-{content}-${{BENCHMARK_IMAGE_TAG}}") for content in contents]
    first, second = (job(f"fetch-{content}-99999999") for content in contents)
    assert not_as_reviewed(named, [second, first]) == ()
    missing = "Job n/fetch-0a1b2c3d-${BENCHMARK_IMAGE_TAG}: reviewed, not applied"
    assert not_as_reviewed(named, [second]) == (missing,)
