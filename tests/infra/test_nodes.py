from __future__ import annotations

import base64
from email import message_from_bytes, policy
from typing import Any

import yaml

from tests.infra.templates import Deployment


def _group(deployment: Deployment) -> dict[str, Any]:
    return deployment.only("AWS::EKS::Nodegroup", stack="nodes").properties


def _launch(deployment: Deployment) -> dict[str, Any]:
    template = deployment.only("AWS::EC2::LaunchTemplate", stack="nodes")
    data: dict[str, Any] = template.properties["LaunchTemplateData"]
    return data


def test_every_network_card_has_one_efa_interface_and_the_first_carries_ip(deployment: Deployment) -> None:
    interfaces = _launch(deployment)["NetworkInterfaces"]
    assert [i["NetworkCardIndex"] for i in interfaces] == list(range(16))
    assert [i["InterfaceType"] for i in interfaces] == ["efa"] + ["efa-only"] * 15
    assert [i["DeviceIndex"] for i in interfaces] == [0] + [1] * 15


def test_efa_traffic_is_allowed_within_its_group_both_ways(deployment: Deployment) -> None:
    group = {"Fn::GetAtt": [deployment.only("AWS::EC2::SecurityGroup", "nodes").logical_id, "GroupId"]}
    ingress = deployment.only("AWS::EC2::SecurityGroupIngress", "nodes").properties
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


def test_nodes_and_disks_say_whose_they_are(deployment: Deployment) -> None:
    specifications = _launch(deployment)["TagSpecifications"]
    assert [entry["ResourceType"] for entry in specifications] == ["instance", "volume"]
    assert all({"Key": "experiment", "Value": "qwen3-32b"} in entry["Tags"] for entry in specifications)


def test_local_disks_become_one_for_images_and_scratch(deployment: Deployment) -> None:
    assert _node_config(deployment)["spec"] == {"instance": {"localStorage": {"strategy": "RAID0"}}}


def test_the_device_plugin_finds_the_logical_cores_in_a_file_and_claims_do_not(
    deployment: Deployment, rented_deployment: Deployment
) -> None:
    (script,) = _parts(rented_deployment, "text/x-shellscript")
    assert "echo NEURON_LOGICAL_NC_CONFIG=1 > /opt/aws/neuron/logical_nc_config" in script
    assert _node_config(rented_deployment)["spec"]["instance"]["localStorage"]["strategy"] == "RAID0"
    assert _parts(deployment, "text/x-shellscript") == []


def _node_config(deployment: Deployment) -> dict[str, Any]:
    (part,) = _parts(deployment, "application/node.eks.aws")
    (config,) = [document for document in yaml.safe_load_all(part) if document]
    assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
    found: dict[str, Any] = config
    return found


def _parts(deployment: Deployment, kind: str) -> list[str]:
    """As cloud-init and nodeadm would split the user data: by Python's own reader of MIME."""
    message = message_from_bytes(base64.b64decode(_launch(deployment)["UserData"]), policy=policy.default)
    assert message.is_multipart()
    assert message.defects == []
    contents = [part.get_content() for part in message.iter_parts() if part.get_content_type() == kind]
    return [content if isinstance(content, str) else content.decode() for content in contents]


def test_reserved_nodes_start_in_the_zone_of_their_reservation(
    rented_deployment: Deployment, later_deployment: Deployment
) -> None:
    assert (_zone(rented_deployment), _zone(later_deployment)) == ("us-east-2b", "us-east-2c")


def _zone(deployment: Deployment) -> str:
    """Where the group's one subnet lies."""
    (subnet,) = _group(deployment)["Subnets"]
    (export,) = [
        output
        for output in deployment.templates["network"]["Outputs"].values()
        if output["Export"]["Name"] == subnet["Fn::ImportValue"]
    ]
    found = deployment.templates["network"]["Resources"][export["Value"]["Ref"]]
    return str(found["Properties"]["AvailabilityZone"])


def test_only_several_nodes_on_demand_stand_close_together(
    deployment: Deployment,
    open_deployment: Deployment,
    rented_deployment: Deployment,
    later_deployment: Deployment,
) -> None:
    placement = open_deployment.only("AWS::EC2::PlacementGroup")
    assert placement.properties["Strategy"] == "cluster"
    assert _launch(open_deployment)["Placement"] == {"GroupName": {"Ref": placement.logical_id}}
    for alone_bought_or_reserved in (deployment, rented_deployment, later_deployment):
        assert "Placement" not in _launch(alone_bought_or_reserved)
