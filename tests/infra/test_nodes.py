from __future__ import annotations

import base64
from dataclasses import replace
from email import message_from_bytes, policy
from typing import Any

import yaml

from experiment import Experiment
from experiment.arms import Capacity
from experiment.catalogue.instances import INSTANCES
from infra.constructs.capacity import needs_placement_group
from infra.constructs.node_launch import network
from tests.infra.templates import Deployment


def _group(deployment: Deployment) -> dict[str, Any]:
    return deployment.only("AWS::EKS::Nodegroup", stack="nodes").properties


def _launch(deployment: Deployment) -> dict[str, Any]:
    (data,) = _launches(deployment, "nodes")
    return data


def _launches(deployment: Deployment, stack: str | None = None) -> list[dict[str, Any]]:
    found = deployment.resources("AWS::EC2::LaunchTemplate", stack)
    return [template.properties["LaunchTemplateData"] for template in found]


def test_no_trainium_node_starts_unless_the_experiment_asks(deployment: Deployment) -> None:
    assert _group(deployment)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 1}


def test_the_group_can_grow_to_the_nodes_that_the_experiment_allows(open_deployment: Deployment) -> None:
    assert _group(open_deployment)["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 1, "MaxSize": 2}


def test_the_instance_type_stands_in_the_launch_template_only(deployment: Deployment) -> None:
    assert "InstanceTypes" not in _group(deployment)
    assert _launch(deployment)["InstanceType"] == "trn2.48xlarge"


def test_nodes_run_the_neuron_image_in_one_zone(deployment: Deployment) -> None:
    group = _group(deployment)
    assert group["AmiType"] == "AL2023_x86_64_NEURON"
    assert group["NodegroupName"] == "qwen3-32b-trn2-a-on-demand-d2-28"
    assert group["ReleaseVersion"] == "1.35.6-20260625", "driver 2.28, as runtime 0.9.1 wants it"
    assert len(group["Subnets"]) == 1


def test_a_node_with_a_faulty_device_is_reported_and_replaced(deployment: Deployment) -> None:
    assert _group(deployment)["NodeRepairConfig"] == {"Enabled": True}
    reported = [addon.properties["AddonName"] for addon in deployment.resources("AWS::EKS::Addon")]
    assert "eks-node-monitoring-agent" in reported, "without it repair sees the kubelet only"


def test_system_nodes_run_the_newest_image_whatever_driver_the_arms_want(deployment: Deployment) -> None:
    """EKS takes no group back to an earlier image, and this group is never replaced."""
    (system,) = [
        group.properties
        for group in deployment.resources("AWS::EKS::Nodegroup")
        if group.properties["NodegroupName"] == "qwen3-32b-system"
    ]
    assert system["ReleaseVersion"] == "1.35.6-20260714"


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


def test_an_instance_without_efa_has_its_security_groups_alone() -> None:
    assert INSTANCES["trn2.3xlarge"].efa_interfaces == 0
    assert network(0, ["sg-cluster"]) == {"security_group_ids": ["sg-cluster"]}


def test_pods_cannot_take_the_credentials_of_any_instance(deployment: Deployment) -> None:
    launches = _launches(deployment)
    assert len(launches) == 3
    for launch in launches:
        assert launch["MetadataOptions"]["HttpTokens"] == "required"
        assert launch["MetadataOptions"]["HttpPutResponseHopLimit"] == 1


def test_disks_of_all_instances_are_encrypted(deployment: Deployment) -> None:
    for launch in _launches(deployment):
        (disk,) = launch["BlockDeviceMappings"]
        assert disk["Ebs"]["Encrypted"] is True
        assert disk["Ebs"]["VolumeType"] == "gp3"


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


def test_a_capacity_block_is_bought_in_the_launch_template_and_lives_in_its_zone(
    rented_deployment: Deployment,
) -> None:
    launch, group = _launch(rented_deployment), _group(rented_deployment)
    assert group["NodegroupName"] == "rented-trn2-b-capacity-block-9abcdef0-d2-28"
    assert group["CapacityType"] == "CAPACITY_BLOCK"
    assert launch["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    target = launch["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
    assert "Placement" not in launch
    assert _zone(rented_deployment) == "us-east-2b"


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


def test_a_reservation_is_used_on_demand_in_its_zone(later_deployment: Deployment) -> None:
    launch, group = _launch(later_deployment), _group(later_deployment)
    assert group["CapacityType"] == "ON_DEMAND"
    target = launch["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
    assert not {"InstanceMarketOptions", "Placement"} & launch.keys()
    assert _zone(later_deployment) == "us-east-2c"


def test_nodes_on_demand_reserve_nothing(deployment: Deployment) -> None:
    assert _group(deployment)["CapacityType"] == "ON_DEMAND"
    assert not {"InstanceMarketOptions", "CapacityReservationSpecification"} & _launch(deployment).keys()


def test_only_several_nodes_on_demand_stand_close_together(
    deployment: Deployment, open_deployment: Deployment, experiment: Experiment
) -> None:
    assert "Placement" not in _launch(deployment)
    placement = open_deployment.only("AWS::EC2::PlacementGroup")
    assert placement.properties["Strategy"] == "cluster"
    assert _launch(open_deployment)["Placement"] == {"GroupName": {"Ref": placement.logical_id}}
    reserved = Capacity(kind="reservation", reservation_id="cr-01234567", availability_zone="us-east-2a")
    several = replace(experiment.cluster, max_nodes=2)
    assert needs_placement_group(replace(experiment, cluster=several))
    assert not needs_placement_group(replace(experiment, cluster=replace(several, capacity=reserved)))
    apart = replace(several, instance=INSTANCES["trn2.3xlarge"])
    assert not needs_placement_group(replace(experiment, cluster=apart)), "nothing joins what has no EFA"
