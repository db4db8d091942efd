"""The reference in a cluster that exists, and two more beside it: one on nodes of its own, one on those of the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aws_cdk.assertions import Template

from cdk8s_charts.render import render
from experiment import Experiment
from experiment.model import INSTALLABLE
from experiment.naming import NODE_ROLE_LABEL, neuron_nodegroup
from infra.constructs.addons import AFTER_NODES, BEFORE_NODES
from infra.stacks.workloads import WorkloadsStack
from infra.synthesis import cdk_app
from tests.infra.conftest import PIPELINE
from tests.infra.templates import STACKS, Deployment, resolved

RULES = ("AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress")
OF_CLUSTER = (
    "AWS::EKS::Addon",
    "AWS::EKS::Nodegroup",
    "AWS::EKS::AccessEntry",
    "AWS::EKS::PodIdentityAssociation",
)


def test_everything_comes_but_the_cluster_and_the_network(joined_deployment: Deployment) -> None:
    assert {*joined_deployment.templates} == {*STACKS} - {"network", "cluster"}


def test_what_is_made_in_the_cluster_names_it_and_changes_nothing_of_it(
    joined_deployment: Deployment, joined: Experiment
) -> None:
    found = joined_deployment
    there = [one for kind in OF_CLUSTER for one in found.resources(kind)]
    assert len(there) > 10
    assert {one.properties["ClusterName"] for one in there} == {"team"}
    group = joined.cluster.security_group
    assert not [one for kind in RULES for one in found.resources(kind) if one.properties["GroupId"] == group]
    assert not found.resources("AWS::EKS::Cluster")
    # Its members reach the endpoint: the nodes, and the functions that apply the manifests.
    assert f"['{group}', " in str(found.resources("AWS::EC2::LaunchTemplate", "nodes"))
    handlers = [
        one.properties for one in found.resources("AWS::Lambda::Function") if "VpcConfig" in one.properties
    ]
    assert handlers
    assert {str(one["VpcConfig"]["SecurityGroupIds"]) for one in handlers} == {f"['{group}']"}


def _addons(found: Deployment) -> set[str]:
    return {one.properties["AddonName"] for one in found.resources("AWS::EKS::Addon")}


def test_only_what_the_cluster_lacks_is_installed(
    joined_deployment: Deployment, beside_deployment: Deployment, sharing_deployment: Deployment
) -> None:
    every = {*BEFORE_NODES, *AFTER_NODES}
    assert _addons(joined_deployment) == every & {*INSTALLABLE}
    assert _addons(joined_deployment).isdisjoint({"vpc-cni", "kube-proxy", "coredns", "metrics-server"})
    assert _addons(beside_deployment) == {"eks-node-monitoring-agent"}
    charts = [
        found.resources("Custom::AWSCDK-EKS-HelmChart") for found in (joined_deployment, beside_deployment)
    ]
    assert [len(one) for one in charts] == [1, 0]
    assert len(beside_deployment.resources("AWS::EKS::Nodegroup")) == 1  # no system nodes
    assert not beside_deployment.resources("AWS::Logs::LogGroup", "nodes")
    assert "nodes" not in sharing_deployment.templates
    assert not _addons(sharing_deployment)


def test_software_of_somebody_else_is_not_overwritten(
    deployment: Deployment, joined_deployment: Deployment
) -> None:
    conflicts = [
        {one.properties["ResolveConflicts"] for one in found.resources("AWS::EKS::Addon")}
        for found in (deployment, joined_deployment)
    ]
    assert conflicts == [{"OVERWRITE"}, {"NONE"}]


def test_nodes_become_ready_whether_or_not_the_network_plugin_has_a_role(
    deployment: Deployment, joined_deployment: Deployment
) -> None:
    for found, wanted in ((deployment, 0), (joined_deployment, 2)):
        roles = [one for one in found.resources("AWS::IAM::Role", "nodes") if "ec2.amazonaws" in str(one)]
        assert roles
        assert sum("AmazonEKS_CNI_Policy" in str(one) for one in roles) == wanted


def test_what_gitops_applies_to_a_cluster_that_has_everything_gives_nothing_of_ours_rights_in_it(
    beside: Experiment, tmp_path: Path
) -> None:
    stack = WorkloadsStack(
        cdk_app({}, outdir=str(tmp_path), validation=False),
        experiment=beside,
        files=render(beside),
        cluster=None,
        made=None,
        build_images="docker",
        gitops=True,
    )
    made = Template.from_stack(stack).to_json()
    assert {one["Type"] for one in made["Resources"].values()} == {"AWS::CloudFormation::WaitConditionHandle"}
    assert made["Outputs"]


def test_pods_find_the_nodes_of_their_own_experiment(
    joined_deployment: Deployment, beside_deployment: Deployment, sharing_deployment: Deployment
) -> None:
    labels = {
        one.properties["Labels"][NODE_ROLE_LABEL]
        for found in (joined_deployment, beside_deployment)
        for one in found.resources("AWS::EKS::Nodegroup")
    }
    assert labels == {"joined-neuron", "joined-system", "beside-neuron"}
    assert _selected(joined_deployment) == {"joined-neuron", "joined-system"}
    assert _selected(beside_deployment) == {
        "beside-neuron",
        "system",
    }  # those of the cluster have the plain label
    assert _selected(sharing_deployment) == {"joined-neuron", "joined-system"}


def _selected(found: Deployment) -> set[str]:
    return {value for one in _objects(found) for value in _values(one, NODE_ROLE_LABEL)}


def _objects(found: Deployment) -> list[dict[str, Any]]:
    applied = found.resources("Custom::AWSCDK-EKS-KubernetesResource")
    return [one for resource in applied for one in json.loads(resolved(resource.properties["Manifest"]))]


def _values(value: Any, key: str) -> set[str]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    own = {str(value[key])} if isinstance(value, dict) and key in value else set()
    return own.union(*(_values(one, key) for one in inner))


def test_only_our_roles_are_let_in(joined_deployment: Deployment) -> None:
    entries = joined_deployment.resources("AWS::EKS::AccessEntry")
    named = {one.stack: one.properties["PrincipalArn"] for one in entries}
    assert named.keys() == {
        "identity",
        "workloads",
    }  # the pipeline's role, and that which applies the manifests
    assert named["identity"] == PIPELINE


def test_names_of_experiments_in_one_cluster_do_not_collide(
    joined_deployment: Deployment, beside_deployment: Deployment, sharing_deployment: Deployment
) -> None:
    named = [_names(found) for found in (joined_deployment, beside_deployment, sharing_deployment)]
    assert all(len(names) > 40 for names in named)
    first, second, third = named
    assert first & second == first & third == second & third == set()


NAMED = ("BucketName", "RoleName", "DashboardName", "AlarmName", "TopicName", "NodegroupName", "LogGroupName")


def _names(found: Deployment) -> set[str]:
    texts = [f"{key} {resolved(one.properties.get(key))}" for one in found.resources() for key in NAMED]
    of_aws = {
        text for text in texts if "<" not in text and not text.endswith("None")
    }  # a reference is our own's
    objects = [(one["kind"], one["metadata"]) for one in _objects(found)]
    return of_aws | {f"{kind} {meta.get('namespace')} {meta['name']}" for kind, meta in objects}


def test_nodes_of_another_are_shared_where_image_zone_and_purchase_are_the_same(
    joined: Experiment, sharing: Experiment, experiment: Experiment
) -> None:
    assert neuron_nodegroup(sharing) == neuron_nodegroup(joined)
    assert neuron_nodegroup(sharing) != neuron_nodegroup(experiment)


def test_alarms_of_a_shared_cluster_say_nothing_about_nodes_of_others(
    joined_deployment: Deployment, sharing_deployment: Deployment
) -> None:
    first, second = (
        {one.properties["AlarmName"].split("-", 1)[1] for one in found.resources("AWS::CloudWatch::Alarm")}
        for found in (joined_deployment, sharing_deployment)
    )
    assert "paid-nodes" not in first | second
    assert first - second == {"switch-off-failed"}  # the schedules are those of whose the nodes are
