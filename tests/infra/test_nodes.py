from __future__ import annotations

from typing import Any

from tests.infra.templates import Deployment


def _group(deployment: Deployment) -> dict[str, Any]:
    return deployment.only("AWS::EKS::Nodegroup", stack="nodes").properties


def _launch(deployment: Deployment, stack: str = "nodes") -> dict[str, Any]:
    data: dict[str, Any] = deployment.only("AWS::EC2::LaunchTemplate", stack).properties["LaunchTemplateData"]
    return data


def test_no_trainium_node_starts_unless_the_experiment_asks(deployment: Deployment) -> None:
    assert _group(deployment)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 1}


def test_the_group_can_grow_to_the_nodes_that_the_arms_need(open_deployment: Deployment) -> None:
    assert _group(open_deployment)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 1, "MaxSize": 2}


def test_the_instance_type_stands_in_the_launch_template_only(deployment: Deployment) -> None:
    assert "InstanceTypes" not in _group(deployment)
    assert _launch(deployment)["InstanceType"] == "trn2.48xlarge"


def test_nodes_run_the_neuron_image_in_one_zone(deployment: Deployment) -> None:
    group = _group(deployment)
    assert group["AmiType"] == "AL2023_x86_64_NEURON"
    assert len(group["Subnets"]) == 1


def test_nodes_are_tainted_and_labelled_as_the_pods_expect(deployment: Deployment) -> None:
    group = _group(deployment)
    assert group["Taints"] == [{"Key": "aws.amazon.com/neuron", "Value": "true", "Effect": "NO_SCHEDULE"}]
    assert group["Labels"] == {"speculation.trn2/role": "neuron"}


def test_every_network_card_has_one_efa_interface_and_the_first_carries_ip(deployment: Deployment) -> None:
    interfaces = _launch(deployment)["NetworkInterfaces"]
    assert [i["NetworkCardIndex"] for i in interfaces] == list(range(16))
    assert [i["InterfaceType"] for i in interfaces] == ["efa"] + ["efa-only"] * 15
    assert [i["DeviceIndex"] for i in interfaces] == [0] + [1] * 15
    assert "SecurityGroupIds" not in _launch(deployment), "EC2 takes groups in one of the two places"


def test_efa_traffic_is_allowed_within_its_group_both_ways(deployment: Deployment) -> None:
    group = {"Fn::GetAtt": [deployment.only("AWS::EC2::SecurityGroup", "nodes").logical_id, "GroupId"]}
    ingress = deployment.only("AWS::EC2::SecurityGroupIngress").properties
    egress = deployment.only("AWS::EC2::SecurityGroupEgress").properties
    assert (ingress["GroupId"], ingress["SourceSecurityGroupId"], ingress["IpProtocol"]) == (
        group,
        group,
        "-1",
    )
    assert (egress["GroupId"], egress["DestinationSecurityGroupId"], egress["IpProtocol"]) == (
        group,
        group,
        "-1",
    )
    assert all(group in interface["Groups"] for interface in _launch(deployment)["NetworkInterfaces"])


def test_pods_cannot_take_the_credentials_of_any_node(deployment: Deployment) -> None:
    for stack in ("cluster", "nodes"):
        options = _launch(deployment, stack)["MetadataOptions"]
        assert options["HttpTokens"] == "required"
        assert options["HttpPutResponseHopLimit"] == 1


def test_disks_of_all_nodes_are_encrypted(deployment: Deployment) -> None:
    for stack in ("cluster", "nodes"):
        (disk,) = _launch(deployment, stack)["BlockDeviceMappings"]
        assert disk["Ebs"]["Encrypted"] is True
        assert disk["Ebs"]["VolumeType"] == "gp3"
