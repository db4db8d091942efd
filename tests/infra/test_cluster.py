from __future__ import annotations

from typing import Any

from cdk8s_charts.workloads.namespace import watching
from experiment import Experiment
from experiment.catalogue.node_images import NODE_IMAGES
from infra.constructs.addons import AFTER_NODES, BEFORE_NODES
from infra.pins import ADDON_VERSIONS
from tests.infra.conftest import ADMIN, PIPELINE
from tests.infra.templates import Deployment, Resource, resolved


def _addon(deployment: Deployment, name: str) -> Resource:
    (found,) = [a for a in deployment.resources("AWS::EKS::Addon") if a.properties["AddonName"] == name]
    return found


def test_secrets_are_encrypted_with_the_clusters_own_key(deployment: Deployment) -> None:
    (encryption,) = deployment.only("AWS::EKS::Cluster").properties["EncryptionConfig"]
    key = deployment.only("AWS::KMS::Key", stack="cluster")
    assert encryption["Provider"]["KeyArn"] == {"Fn::GetAtt": [key.logical_id, "Arn"]}


def test_control_plane_logs_go_to_a_group_that_exists_before(deployment: Deployment) -> None:
    cluster = deployment.only("AWS::EKS::Cluster")
    (group,) = [
        group
        for group in deployment.resources("AWS::Logs::LogGroup", stack="cluster")
        if group.properties["LogGroupName"] == "/aws/eks/qwen3-32b/cluster"
    ]
    assert group.logical_id in cluster.waits_for


def test_only_named_principals_administer_the_cluster(
    deployment: Deployment, open_deployment: Deployment
) -> None:
    assert deployment.resources("AWS::EKS::AccessEntry", stack="cluster") == []
    entry = _entry(open_deployment, ADMIN)
    (policy,) = entry["AccessPolicies"]
    assert resolved(policy["PolicyArn"]).endswith("/AmazonEKSClusterAdminPolicy")
    assert policy["AccessScope"] == {"Type": "cluster"}


def test_the_pipeline_changes_the_namespace_of_the_experiment_and_sees_nodes_and_devices_only(
    open_deployment: Deployment, opened: Experiment
) -> None:
    entry = _entry(open_deployment, PIPELINE)
    (policy,) = entry["AccessPolicies"]
    assert resolved(policy["PolicyArn"]).endswith("/AmazonEKSEditPolicy")
    assert policy["AccessScope"] == {"Type": "namespace", "Namespaces": ["opened"]}
    role, binding = watching(opened)
    (group,) = binding["subjects"]
    assert entry["KubernetesGroups"] == [group["name"]]
    seen = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert seen == {"nodes", "daemonsets", "deviceclasses", "resourceclaims", "resourceslices"}
    assert all(rule["verbs"] == ["get", "list", "watch"] for rule in role["rules"])


def _entry(deployment: Deployment, principal: str) -> dict[str, Any]:
    (found,) = [
        entry.properties
        for entry in deployment.resources("AWS::EKS::AccessEntry", stack="cluster")
        if entry.properties["PrincipalArn"] == principal
    ]
    return found


def test_network_plugin_and_identity_agent_come_before_the_nodes_and_dns_after_them(
    deployment: Deployment,
) -> None:
    nodes = deployment.only("AWS::EKS::Nodegroup", stack="cluster")
    for name in ("vpc-cni", "kube-proxy", "eks-pod-identity-agent"):
        assert _addon(deployment, name).logical_id in nodes.waits_for
    for name in AFTER_NODES:
        assert nodes.logical_id in _addon(deployment, name).waits_for
    assert len(deployment.resources("AWS::EKS::Addon")) == len({*BEFORE_NODES, *AFTER_NODES}) == 8


def test_every_addon_is_pinned_for_every_version_of_kubernetes(
    deployment: Deployment, open_deployment: Deployment
) -> None:
    assert ADDON_VERSIONS.keys() == {image.kubernetes for image in NODE_IMAGES}
    for found, kubernetes in ((deployment, "1.35"), (open_deployment, "1.36")):
        versions = {
            addon.properties["AddonName"]: addon.properties["AddonVersion"]
            for addon in found.resources("AWS::EKS::Addon")
        }
        assert versions == ADDON_VERSIONS[kubernetes]
        assert versions["kube-proxy"].startswith(f"v{kubernetes}.")
    assert versions.keys() == {*BEFORE_NODES, *AFTER_NODES}


def test_the_observability_agent_writes_to_the_log_groups_of_its_cluster_only(
    deployment: Deployment,
) -> None:
    (role,) = [
        role
        for role in deployment.resources("AWS::IAM::Role", stack="cluster")
        if "ObservabilityRole" in role.logical_id
    ]
    ((write, *_),) = [policy["PolicyDocument"]["Statement"] for policy in role.properties["Policies"]]
    prefix = "arn:aws:logs:us-east-2:111122223333:log-group:/aws/containerinsights/qwen3-32b/"
    assert all(str(arn).startswith(prefix) for arn in resolved(write["Resource"]))
    addon = _addon(deployment, "amazon-cloudwatch-observability")
    groups = {
        group.logical_id
        for group in deployment.resources("AWS::Logs::LogGroup", stack="cluster")
        if str(group.properties["LogGroupName"]).startswith("/aws/containerinsights/qwen3-32b/")
    }
    assert len(groups) == 4
    assert groups <= set(addon.waits_for)


def test_a_private_endpoint_is_reached_through_an_instance_that_lets_nobody_in(
    deployment: Deployment,
) -> None:
    group = deployment.only("AWS::AutoScaling::AutoScalingGroup").properties
    assert {"Key": "Name", "Value": "qwen3-32b-way-in", "PropagateAtLaunch": True} in group["Tags"]
    (outwards,) = [
        found
        for found in deployment.resources("AWS::EC2::SecurityGroup", stack="cluster")
        if "WayIn" in found.logical_id
    ]
    assert "SecurityGroupIngress" not in outwards.properties
    (egress,) = outwards.properties["SecurityGroupEgress"]
    assert (egress["FromPort"], egress["ToPort"]) == (443, 443)
    to_endpoint = deployment.only("AWS::EC2::SecurityGroupIngress", stack="cluster").properties
    assert to_endpoint["SourceSecurityGroupId"] == {"Fn::GetAtt": [outwards.logical_id, "GroupId"]}
    assert to_endpoint["GroupId"]["Fn::GetAtt"][1] == "ClusterSecurityGroupId"
    assert (to_endpoint["FromPort"], to_endpoint["ToPort"]) == (443, 443)


def test_the_way_in_may_hold_sessions_and_nothing_more(deployment: Deployment) -> None:
    (policy,) = [
        policy
        for policy in deployment.resources("AWS::IAM::Policy", stack="cluster")
        if "WayIn" in policy.logical_id
    ]
    (statement,) = policy.properties["PolicyDocument"]["Statement"]
    services = {action.partition(":")[0] for action in statement["Action"]}
    assert services == {"ssm", "ssmmessages"}
    assert "ssm:GetParameter" not in statement["Action"]


def test_the_command_for_kubectl_is_an_output(deployment: Deployment) -> None:
    command = deployment.templates["cluster"]["Outputs"]["KubeconfigCommand"]["Value"]
    assert command == "aws eks update-kubeconfig --name qwen3-32b --region us-east-2"
