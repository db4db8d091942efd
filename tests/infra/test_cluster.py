from __future__ import annotations

import json

from tests.infra.conftest import ADMIN
from tests.infra.templates import Deployment, Resource

LOGS = ["api", "audit", "authenticator", "controllerManager", "scheduler"]


def _addon(deployment: Deployment, name: str) -> Resource:
    (found,) = [a for a in deployment.resources("AWS::EKS::Addon") if a.properties["AddonName"] == name]
    return found


def test_the_endpoint_is_private_unless_networks_are_named(
    deployment: Deployment, open_deployment: Deployment
) -> None:
    closed = deployment.only("AWS::EKS::Cluster").properties["ResourcesVpcConfig"]
    assert closed["EndpointPrivateAccess"] is True
    assert closed["EndpointPublicAccess"] is False
    public = open_deployment.only("AWS::EKS::Cluster").properties["ResourcesVpcConfig"]
    assert public["EndpointPrivateAccess"] is True
    assert public["EndpointPublicAccess"] is True
    assert public["PublicAccessCidrs"] == ["203.0.113.7/32"]


def test_the_control_plane_runs_the_version_of_the_experiment(
    deployment: Deployment, open_deployment: Deployment
) -> None:
    assert deployment.only("AWS::EKS::Cluster").properties["Version"] == "1.35"
    assert open_deployment.only("AWS::EKS::Cluster").properties["Version"] == "1.36"


def test_secrets_are_encrypted_with_a_key_that_rotates(deployment: Deployment) -> None:
    (encryption,) = deployment.only("AWS::EKS::Cluster").properties["EncryptionConfig"]
    assert encryption["Resources"] == ["secrets"]
    key = deployment.only("AWS::KMS::Key", stack="cluster")
    assert encryption["Provider"]["KeyArn"] == {"Fn::GetAtt": [key.logical_id, "Arn"]}
    assert key.properties["EnableKeyRotation"] is True


def test_all_control_plane_logs_go_to_a_group_that_exists_before_and_forgets(deployment: Deployment) -> None:
    cluster = deployment.only("AWS::EKS::Cluster")
    enabled = cluster.properties["Logging"]["ClusterLogging"]["EnabledTypes"]
    assert [entry["Type"] for entry in enabled] == LOGS
    group = deployment.only("AWS::Logs::LogGroup", stack="cluster")
    assert group.properties["LogGroupName"] == "/aws/eks/qwen3-32b/cluster"
    assert group.logical_id in cluster.waits_for


def test_every_log_group_forgets_after_a_while(deployment: Deployment) -> None:
    groups = deployment.resources("AWS::Logs::LogGroup")
    assert len(groups) >= 8
    assert {group.properties.get("RetentionInDays") for group in groups} == {90}


def test_only_named_principals_administer_the_cluster(
    deployment: Deployment, open_deployment: Deployment
) -> None:
    access = deployment.only("AWS::EKS::Cluster").properties["AccessConfig"]
    assert access == {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False}
    assert deployment.resources("AWS::EKS::AccessEntry", stack="cluster") == []
    entry = open_deployment.only("AWS::EKS::AccessEntry", stack="cluster").properties
    assert entry["PrincipalArn"] == ADMIN


def test_network_plugin_and_identity_agent_come_before_the_nodes_and_dns_after_them(
    deployment: Deployment,
) -> None:
    nodes = deployment.only("AWS::EKS::Nodegroup", stack="cluster")
    for name in ("vpc-cni", "kube-proxy", "eks-pod-identity-agent"):
        assert _addon(deployment, name).logical_id in nodes.waits_for
    for name in ("coredns", "aws-mountpoint-s3-csi-driver"):
        assert nodes.logical_id in _addon(deployment, name).waits_for
    assert len(deployment.resources("AWS::EKS::Addon")) == 5
    assert deployment.only("AWS::EKS::Cluster").properties["BootstrapSelfManagedAddons"] is False


def test_the_network_plugin_enforces_network_policies(deployment: Deployment) -> None:
    values = json.loads(_addon(deployment, "vpc-cni").properties["ConfigurationValues"])
    assert values == {"enableNetworkPolicy": "true"}


def test_system_nodes_are_two_small_ones_with_their_label(deployment: Deployment) -> None:
    group = deployment.only("AWS::EKS::Nodegroup", stack="cluster").properties
    assert group["InstanceTypes"] == ["m7i.large"]
    assert group["ScalingConfig"] == {"MinSize": 2, "DesiredSize": 2, "MaxSize": 3}
    assert group["Labels"] == {"speculation.trn2/role": "system"}
    assert "Taints" not in group


def test_the_command_for_kubectl_is_an_output(deployment: Deployment) -> None:
    command = deployment.templates["cluster"]["Outputs"]["KubeconfigCommand"]["Value"]
    assert command == "aws eks update-kubeconfig --name qwen3-32b --region us-east-2"
