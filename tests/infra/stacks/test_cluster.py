from __future__ import annotations

import json

from cdk8s_charts.render import render
from infra.pins import ADDON_VERSIONS
from infra.stacks.software import AFTER_NODES, BEFORE_NODES
from tests.infra.conftest import ADMIN, Variants
from tests.infra.templates import Deployment, Deployments, resolved
from trnspec.experiment.catalogue.runtimes import NODE_IMAGES


def _groups(deployment: Deployment, beginning: str) -> set[str]:
    """Log groups of the cluster's stack by logical id."""
    groups = deployment.resources("AWS::Logs::LogGroup", "cluster")
    return {one.logical_id for one in groups if str(one.properties["LogGroupName"]).startswith(beginning)}


def test_secrets_have_the_clusters_own_key_and_logs_a_group_that_exists_before(made: Deployments) -> None:
    cluster = made.reference.only("AWS::EKS::Cluster")
    (encryption,) = cluster.properties["EncryptionConfig"]
    key = made.reference.only("AWS::KMS::Key", "cluster")
    assert encryption["Provider"]["KeyArn"] == {"Fn::GetAtt": [key.logical_id, "Arn"]}
    assert _groups(made.reference, "/aws/eks/qwen3-32b/cluster") <= set(cluster.waits_for)


def test_only_named_principals_enter_and_the_builds_by_rendered_roles_alone(
    made: Deployments, variants: Variants
) -> None:
    assert made.reference.resources("AWS::EKS::AccessEntry", "cluster") == []
    entries = made.opened.properties("AWS::EKS::AccessEntry", "cluster")
    assert [one["PrincipalArn"] for one in entries] == [ADMIN]
    (admin,) = entries[0]["AccessPolicies"]
    assert resolved(admin["PolicyArn"]).endswith("/AmazonEKSClusterAdminPolicy")
    builds = made.opened.only("AWS::EKS::AccessEntry", "run").properties
    assert "AccessPolicies" not in builds
    objects = [one for file in render(variants["opened"][0]) for one in file.objects]
    (binding,) = (one for one in objects if one["kind"] == "ClusterRoleBinding")
    (role,) = (one for one in objects if one["kind"] == "ClusterRole")
    (here,) = (one for one in objects if one["kind"] == "RoleBinding")
    for one in (binding, here):
        assert builds["KubernetesGroups"] == [subject["name"] for subject in one["subjects"]]
    assert here["metadata"]["namespace"] == "opened"
    seen = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert seen == {"nodes", "pods", "daemonsets", "deviceclasses", "resourceclaims", "resourceslices"}
    assert all(rule["verbs"] == ["get", "list", "watch"] for rule in role["rules"])
    (role,) = (one for one in objects if one["kind"] == "Role")
    changes = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    # With `update` of ConfigMaps it could write what the admission policy allows.
    assert changes == {
        *(("jobs", "create"), ("jobs", "delete"), ("configmaps", "create"), ("deployments/scale", "patch"))
    }
    assert "secrets" not in str(role["rules"])


def test_addons_are_pinned_for_every_version_and_those_that_nodes_need_come_before_them(
    made: Deployments,
) -> None:
    nodes = made.reference.only("AWS::EKS::Nodegroup", "cluster")
    addons = {one.properties["AddonName"]: one for one in made.reference.resources("AWS::EKS::Addon")}
    assert {*BEFORE_NODES} == {"vpc-cni", "kube-proxy", "eks-pod-identity-agent"}
    assert all(addons[name].logical_id in nodes.waits_for for name in BEFORE_NODES)
    assert all(nodes.logical_id in addons[name].waits_for for name in AFTER_NODES)
    assert ADDON_VERSIONS.keys() == {image.kubernetes for image in NODE_IMAGES}
    for found, kubernetes in ((made.reference, "1.35"), (made.opened, "1.36")):
        installed = found.properties("AWS::EKS::Addon")
        versions = {one["AddonName"]: one["AddonVersion"] for one in installed}
        assert versions == ADDON_VERSIONS[kubernetes]
        assert versions["kube-proxy"].startswith(f"v{kubernetes}.")
        assert versions.keys() == {*BEFORE_NODES, *AFTER_NODES}


def test_the_cluster_is_closed_and_supported_and_its_addons_are_set_as_decided(made: Deployments) -> None:
    cluster = made.reference.only("AWS::EKS::Cluster").properties
    access = {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False}
    assert (cluster["AccessConfig"], cluster["BootstrapSelfManagedAddons"]) == (access, False)
    assert cluster["UpgradePolicy"] == {"SupportType": "STANDARD"}
    assert cluster["ResourcesVpcConfig"]["EndpointPublicAccess"] is False
    public = made.opened.only("AWS::EKS::Cluster").properties["ResourcesVpcConfig"]
    assert (public["EndpointPublicAccess"], public["PublicAccessCidrs"]) == (True, ["203.0.113.7/32"])
    assert {one["EnableKeyRotation"] for one in made.reference.properties("AWS::KMS::Key")} == {True}
    given = {
        one["AddonName"]: json.loads(one["ConfigurationValues"])
        for one in made.reference.properties("AWS::EKS::Addon")
        if "ConfigurationValues" in one
    }
    assert given["vpc-cni"] == {"enableNetworkPolicy": "true"}
    assert given["aws-mountpoint-s3-csi-driver"] == {"node": {"tolerateAllTaints": True}}
    agent = given["amazon-cloudwatch-observability"]
    assert agent["containerLogs"] == {"enabled": True}
    insights = agent["agent"]["config"]["logs"]["metrics_collected"]["kubernetes"]
    assert insights == {"enhanced_container_insights": True, "accelerated_compute_metrics": True}


def test_the_observability_agent_writes_to_the_log_groups_of_its_cluster_only(made: Deployments) -> None:
    rights = made.reference.rights("cluster").items()
    ((write, *_),) = [statements for role, statements in rights if "ObservabilityRole" in role]
    prefix = "/aws/containerinsights/qwen3-32b/"
    arn = f"arn:aws:logs:us-east-2:111122223333:log-group:{prefix}"
    assert all(str(one).startswith(arn) for one in resolved(write["Resource"]))
    groups = _groups(made.reference, prefix)
    assert len(groups) == 4
    agent = made.reference.only("AWS::EKS::Addon", AddonName="amazon-cloudwatch-observability")
    assert groups <= set(agent.waits_for)


def test_a_private_endpoint_is_reached_through_an_instance_that_lets_nobody_in(made: Deployments) -> None:
    group = made.reference.only("AWS::AutoScaling::AutoScalingGroup").properties
    assert {"Key": "Name", "Value": "qwen3-32b-way-in", "PropagateAtLaunch": True} in group["Tags"]
    assert (group["DesiredCapacity"], group["MaxSize"]) == ("1", "1")
    assert made.opened.resources("AWS::AutoScaling::AutoScalingGroup") == []
    groups = made.reference.resources("AWS::EC2::SecurityGroup", "cluster")
    (outwards,) = [one for one in groups if "WayIn" in one.logical_id]
    assert "SecurityGroupIngress" not in outwards.properties
    to_endpoint = made.reference.only("AWS::EC2::SecurityGroupIngress", "cluster").properties
    for rule in (*outwards.properties["SecurityGroupEgress"], to_endpoint):
        assert (rule["FromPort"], rule["ToPort"]) == (443, 443)
    assert to_endpoint["SourceSecurityGroupId"] == {"Fn::GetAtt": [outwards.logical_id, "GroupId"]}
    assert to_endpoint["GroupId"]["Fn::GetAtt"][1] == "ClusterSecurityGroupId"
