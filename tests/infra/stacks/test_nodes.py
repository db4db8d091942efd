"""Trn2 nodes start as they were bought and told, and no rental outlives its day."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import datetime
from email import message_from_bytes, policy
from typing import Any

import boto3
import pytest
import yaml
from botocore.stub import Stubber

from infra.scale_to_zero_schedules import next_off, scale_to_zero_expressions
from tests.infra.templates import Deployment, Deployments, Properties, resolved
from trnspec.experiment import Experiment
from trnspec.experiment.model import Capacity
from trnspec.experiment.naming import daily_schedule


def _group(deployment: Deployment) -> Properties:
    return deployment.only("AWS::EKS::Nodegroup", "nodes").properties


def _launch(deployment: Deployment) -> Properties:
    data: Properties = deployment.only("AWS::EC2::LaunchTemplate", "nodes").properties["LaunchTemplateData"]
    return data


def test_every_network_card_has_one_efa_interface_whose_group_lets_in_itself_alone(made: Deployments) -> None:
    """An instance without EFA has its security group alone, and no place of its own."""
    interfaces = _launch(made.reference)["NetworkInterfaces"]
    assert [i["NetworkCardIndex"] for i in interfaces] == list(range(16))
    assert [i["InterfaceType"] for i in interfaces] == ["efa"] + ["efa-only"] * 15, "the first carries IP"
    assert [i["DeviceIndex"] for i in interfaces] == [0] + [1] * 15
    group = {"Fn::GetAtt": [made.reference.only("AWS::EC2::SecurityGroup", "nodes").logical_id, "GroupId"]}
    for kind, other in (("Ingress", "SourceSecurityGroupId"), ("Egress", "DestinationSecurityGroupId")):
        rule = made.reference.only(f"AWS::EC2::SecurityGroup{kind}", "nodes").properties
        assert (rule["GroupId"], rule[other], rule["IpProtocol"]) == (group, group, "-1")
    assert all(group in interface["Groups"] for interface in interfaces)
    launch = _launch(made.small)
    assert launch["InstanceType"] == "trn2.3xlarge"
    assert launch.keys().isdisjoint({"NetworkInterfaces", "Placement"})
    (own,) = launch["SecurityGroupIds"]
    assert "ClusterSecurityGroupId" in str(own)
    assert _group(made.small)["ScalingConfig"]["MaxSize"] > 1


def test_nodes_and_disks_say_whose_they_are_and_metadata_and_disks_are_closed(made: Deployments) -> None:
    tag = {"Key": "experiment", "Value": "qwen3-32b"}
    tagged = {one["ResourceType"]: tag in one["Tags"] for one in _launch(made.reference)["TagSpecifications"]}
    assert tagged == {"instance": True, "volume": True}
    for one in made.reference.properties("AWS::EC2::LaunchTemplate"):
        launch = one["LaunchTemplateData"]
        metadata = launch["MetadataOptions"]
        assert (metadata["HttpTokens"], metadata["HttpPutResponseHopLimit"]) == ("required", 1)
        assert launch["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True


def test_local_disks_become_one_and_the_device_plugin_alone_finds_the_logical_cores_in_a_file(
    made: Deployments,
) -> None:
    for found in (made.reference, made.rented):
        (part,) = _parts(found, "application/node.eks.aws")
        (config,) = [document for document in yaml.safe_load_all(part) if document]
        assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
        assert config["spec"] == {"instance": {"localStorage": {"strategy": "RAID0"}}}
    for found, size in ((made.rented, 1), (made.small, 2)):
        (script,) = _parts(found, "text/x-shellscript")
        assert f"echo NEURON_LOGICAL_NC_CONFIG={size} > /opt/aws/neuron/logical_nc_config" in script
    assert _parts(made.reference, "text/x-shellscript") == []


def _parts(deployment: Deployment, kind: str) -> list[str]:
    """As cloud-init and nodeadm would split the user data: by Python's own reader of MIME."""
    message = message_from_bytes(base64.b64decode(_launch(deployment)["UserData"]), policy=policy.default)
    assert message.is_multipart()
    assert message.defects == []
    contents = [part.get_content() for part in message.iter_parts() if part.get_content_type() == kind]
    return [content if isinstance(content, str) else content.decode() for content in contents]


def test_reserved_nodes_start_in_the_zone_of_their_reservation_and_others_close_together(
    made: Deployments,
) -> None:
    reservation = {"CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}}
    for deployment, zone in ((made.rented, "us-east-2b"), (made.later, "us-east-2c")):
        (subnet,) = _group(deployment)["Subnets"]
        network = deployment.templates["network"]
        exports = {one["Export"]["Name"]: one["Value"]["Ref"] for one in network["Outputs"].values()}
        placed = network["Resources"][exports[subnet["Fn::ImportValue"]]]
        assert placed["Properties"]["AvailabilityZone"] == zone
        assert "Placement" not in _launch(deployment)
        assert _launch(deployment)["CapacityReservationSpecification"] == reservation
    assert _launch(made.rented)["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert _group(made.rented)["CapacityType"] == "CAPACITY_BLOCK"
    placement = made.opened.only("AWS::EC2::PlacementGroup", Strategy="cluster")
    name = {"Fn::GetAtt": [placement.logical_id, "GroupName"]}
    assert _launch(made.opened)["Placement"] == {"GroupName": name}
    plain = {"InstanceMarketOptions", "CapacityReservationSpecification", "Placement"}
    assert plain.isdisjoint(_launch(made.reference))


def test_spot_is_the_type_of_the_group_and_nothing_in_its_template(made: Deployments) -> None:
    """EKS refuses market options beside a spot group, and so a maximum price; EFA is as on demand, without a placement group."""
    group, launch = _group(made.spot), _launch(made.spot)
    assert group["CapacityType"] == "SPOT"
    assert group["NodegroupName"].startswith("spot-trn2-c-spot-")
    assert group["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 2}
    assert len(group["Subnets"]) == 1
    assert launch.keys() == _launch(made.reference).keys()
    assert launch["NetworkInterfaces"][0]["InterfaceType"] == "efa"


def test_the_trn2_group_is_empty_and_repaired_and_takes_what_is_meant_for_it_alone(made: Deployments) -> None:
    group = _group(made.reference)
    assert group["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 1}
    assert _group(made.opened)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 2}
    assert group["NodeRepairConfig"] == {"Enabled": True}
    assert group["UpdateConfig"] == {"MaxUnavailable": 1, "UpdateStrategy": "MINIMAL"}
    assert group["Taints"] == [{"Key": "aws.amazon.com/neuron", "Value": "true", "Effect": "NO_SCHEDULE"}]
    for one in made.later.properties("AWS::EKS::Nodegroup"):
        assert (one["Version"], one["ReleaseVersion"][:5]) == ("1.36", "1.36.")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, ("cron(0 22 * * ? *)", "cron(30 22 * * ? *)")),
        ({"off_at_utc": "23:45"}, ("cron(45 23 * * ? *)", "cron(15 0 * * ? *)")),
        (
            {"capacity": Capacity(kind="capacity-block", ends_at="2026-12-01T00:30:00Z")},
            ("at(2026-11-30T23:30:00)", "at(2026-12-01T00:00:00)"),
        ),
    ],
)
def test_the_group_is_emptied_every_day_once_more_and_an_hour_before_its_block_ends(
    experiment: Experiment, said: dict[str, Any], expected: tuple[str, str]
) -> None:
    found = scale_to_zero_expressions(replace(experiment, cluster=experiment.cluster.model_copy(update=said)))
    assert found == expected


@pytest.mark.parametrize(
    ("expression", "now", "expected"),
    [
        ("cron(0 22 * * ? *)", "2026-04-01T21:00:00", "2026-04-01T22:00:00"),
        ("cron(0 22 * * ? *)", "2026-04-01T22:00:00", "2026-04-01T22:30:00"),  # the one that follows
        ("cron(0 22 * * ? *)", "2026-04-01T22:30:00", "2026-04-02T22:00:00"),
        ("cron(45 23 * * ? *)", "2026-04-02T00:10:00", "2026-04-02T00:15:00"),
        ("at(2026-04-05T10:30:00)", "2026-04-01T21:00:00", "2026-04-05T10:30:00"),
    ],
)
def test_when_the_schedules_act_next(expression: str, now: str, expected: str) -> None:
    moment, wanted = (datetime.fromisoformat(f"{text}+00:00") for text in (now, expected))
    assert next_off(expression, now=moment) == wanted


def test_schedules_of_this_group_and_account_alone_may_change_the_group_as_eks_takes_it_and_keep_what_failed(
    made: Deployments, experiment: Experiment
) -> None:
    name = "qwen3-32b-us-east-2-trn2-off"
    role = made.reference.only("AWS::IAM::Role", "nodes", RoleName=name).properties
    queue = made.reference.only("AWS::SQS::Queue")
    assert queue.properties["MessageRetentionPeriod"] == 14 * 24 * 3600
    group = "nodegroup/qwen3-32b/qwen3-32b-trn2-a-on-demand-d2-28/*"
    assert [(one["Action"], resolved(one["Resource"])) for one in made.reference.rights("nodes")[name]] == [
        ("eks:UpdateNodegroupConfig", f"arn:aws:eks:us-east-2:111122223333:{group}"),
        ("sqs:SendMessage", f"<{queue.logical_id}.Arn>"),
    ]
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    source = "arn:aws:scheduler:us-east-2:111122223333:schedule-group/qwen3-32b-off"
    trusted = {"aws:SourceAccount": "111122223333", "aws:SourceArn": source}
    assert resolved(trust["Condition"]) == {"StringEquals": trusted}
    schedules = made.reference.only("AWS::Scheduler::ScheduleGroup", Name="qwen3-32b-off")
    found = made.reference.resources("AWS::Scheduler::Schedule")
    assert [one.properties.get("Name") for one in found] == [daily_schedule(experiment), None]
    eks = boto3.client("eks", region_name="us-east-2", aws_access_key_id="none", aws_secret_access_key="none")
    for one in found:
        said = one.properties
        assert (said["GroupName"], said["ScheduleExpressionTimezone"]) == ("qwen3-32b-off", "UTC")
        assert schedules.logical_id in one.waits_for
        assert said["Target"]["DeadLetterConfig"]["Arn"] == {"Fn::GetAtt": [queue.logical_id, "Arn"]}
        assert said["Target"]["Arn"] == "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig"
        # Universal targets capitalize each name of the API.
        spelled = re.sub(
            r'"([A-Z])(\w+)":', lambda one: f'"{one[1].lower()}{one[2]}":', said["Target"]["Input"]
        )
        asked = json.loads(spelled)
        assert asked == {
            "clusterName": made.reference.only("AWS::EKS::Cluster").properties["Name"],
            "nodegroupName": _group(made.reference)["NodegroupName"],
            "scalingConfig": {"minSize": 0, "desiredSize": 0},
        }
        with Stubber(eks) as stubber:  # checks the parameters against the model of the service
            stubber.add_response("update_nodegroup_config", {"update": {}}, asked)
            eks.update_nodegroup_config(**asked)
