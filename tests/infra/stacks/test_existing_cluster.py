"""The reference in a VPC that exists; in a cluster that exists, and two more beside it: one on nodes of its own, one on those
of the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aws_cdk.assertions import Template

from cdk8s_charts.render import render
from experiment import Experiment
from experiment.forms import INSTALLABLE
from experiment.naming import NODE_ROLE_LABEL, neuron_nodegroup
from infra.deployment_file import DeploymentSettings
from infra.stacks.software import AFTER_NODES, BEFORE_NODES
from infra.stacks.workloads import WorkloadsStack
from infra.synthesis import cdk_app
from tests.infra.conftest import PIPELINE, Variants
from tests.infra.templates import STACKS, Deployment, Deployments, Properties, json_of, resolved

RULES = ("AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress")
OF_CLUSTER = ("Addon", "Nodegroup", "AccessEntry", "PodIdentityAssociation")
NAMED = ("BucketName", "RoleName", "DashboardName", "AlarmName", "TopicName", "NodegroupName", "LogGroupName")


def _handlers(found: Deployment) -> list[Properties]:
    """Where the functions are that apply the manifests."""
    functions = [one["VpcConfig"] for one in found.properties("AWS::Lambda::Function") if "VpcConfig" in one]
    assert functions
    return functions


def _labels(*deployments: Deployment) -> list[dict[str, str]]:
    return [one["Labels"] for each in deployments for one in each.properties("AWS::EKS::Nodegroup")]


def test_in_a_vpc_that_exists_everything_is_in_its_named_subnets_and_nothing_of_it_is_made_or_changed(
    made: Deployments, variants: Variants, assembly: Path
) -> None:
    network, found = variants["within"][0].cluster.network, made.within
    assert {*found.templates} == {*STACKS} - {"network"}
    types = {one.type for one in found.resources() if one.type.startswith("AWS::EC2::")}
    assert types == {*RULES, "AWS::EC2::SecurityGroup", "AWS::EC2::LaunchTemplate"}
    subnets = [*network.private_subnets.values()]
    assert found.only("AWS::EKS::Cluster").properties["ResourcesVpcConfig"]["SubnetIds"] == subnets
    assert all(one["SubnetIds"] == subnets for one in _handlers(found))
    assert found.only("AWS::AutoScaling::AutoScalingGroup").properties["VPCZoneIdentifier"] == subnets
    system, neuron = (found.only("AWS::EKS::Nodegroup", stack).properties for stack in ("cluster", "nodes"))
    assert (system["Subnets"], neuron["Subnets"]) == (subnets, [network.private_subnets["us-east-2c"]])
    assert {str(group["VpcId"]) for group in found.properties("AWS::EC2::SecurityGroup")} == {network.vpc}
    for one in found.artifacts.values():
        metadata = json_of(assembly / "assembly-within" / one["additionalMetadataFile"])
        kinds = {entry["type"] for path in metadata.values() for entry in path}
        assert kinds.isdisjoint({"aws:cdk:warning", "aws:cdk:error"})


def test_what_is_made_in_the_cluster_names_it_and_changes_nothing_of_it(
    made: Deployments, variants: Variants
) -> None:
    found, group = made.joined, variants["joined"][0].cluster.security_group
    assert {*found.templates} == {*STACKS} - {"network", "cluster"}
    there = [one for kind in OF_CLUSTER for one in found.properties(f"AWS::EKS::{kind}")]
    assert len(there) > 10
    assert {one["ClusterName"] for one in there} == {"team"}
    by_reference = made.reference.properties("AWS::EKS::PodIdentityAssociation", "identity")
    assert all(isinstance(one["ClusterName"], dict) for one in by_reference), "as `deploy` tells them apart"
    assert not [one for kind in RULES for one in found.properties(kind) if one["GroupId"] == group]
    assert not found.resources("AWS::EKS::Cluster")
    # Its members reach the endpoint: the nodes, and the functions that apply the manifests.
    assert f"['{group}', " in str(found.resources("AWS::EC2::LaunchTemplate", "nodes"))
    assert {str(one["SecurityGroupIds"]) for one in _handlers(found)} == {f"['{group}']"}
    # The pipeline's role, and that which applies the manifests.
    entries = {one.stack: one.properties for one in found.resources("AWS::EKS::AccessEntry")}
    assert entries.keys() == {"identity", "workloads"}
    assert entries["identity"]["PrincipalArn"] == PIPELINE


def test_only_what_the_cluster_lacks_is_installed_and_software_of_somebody_else_is_not_overwritten(
    made: Deployments,
) -> None:
    def addons(found: Deployment, key: str = "AddonName") -> set[str]:
        return {one[key] for one in found.properties("AWS::EKS::Addon")}

    assert addons(made.joined) == {*BEFORE_NODES, *AFTER_NODES} & {*INSTALLABLE}
    assert addons(made.joined).isdisjoint({"vpc-cni", "kube-proxy", "coredns", "metrics-server"})
    assert addons(made.beside) == {"eks-node-monitoring-agent"}
    for found, charts in ((made.joined, 1), (made.beside, 0)):
        assert len(found.resources("Custom::AWSCDK-EKS-HelmChart")) == charts
    assert len(made.beside.resources("AWS::EKS::Nodegroup")) == 1  # no system nodes
    assert not made.beside.resources("AWS::Logs::LogGroup", "nodes")
    assert "nodes" not in made.sharing.templates
    assert not addons(made.sharing)
    assert addons(made.reference, "ResolveConflicts") == {"OVERWRITE"}
    assert addons(made.joined, "ResolveConflicts") == {"NONE"}


def test_the_neuron_driver_runs_on_our_trn2_nodes_alone_under_a_name_of_our_own(made: Deployments) -> None:
    """The affinity of its chart admits all nodes with Neuron devices, and Helm upgrades and removes what has the name."""
    chart = made.joined.only("Custom::AWSCDK-EKS-HelmChart").properties
    selector = json.loads(resolved(chart["Values"]))["draDriver"]["nodeSelector"]
    groups = _labels(made.joined, made.beside, made.reference)
    reached = {labels[NODE_ROLE_LABEL] for labels in groups if selector.items() <= labels.items()}
    assert reached == {"joined-neuron", "beside-neuron", "neuron"}
    assert len(groups) == 5, "the second brings nodes and no driver"
    of_team = {"node.kubernetes.io/instance-type": "trn2.48xlarge", NODE_ROLE_LABEL: "system"}
    assert not selector.items() <= of_team.items()
    assert chart["Release"] == "joined-neuron"


def test_nodes_become_ready_whether_or_not_the_network_plugin_has_a_role(made: Deployments) -> None:
    for found, wanted in ((made.reference, 0), (made.joined, 2)):
        roles = [one for one in found.resources("AWS::IAM::Role", "nodes") if "ec2.amazonaws" in str(one)]
        assert roles
        assert sum("AmazonEKS_CNI_Policy" in str(one) for one in roles) == wanted


def test_what_gitops_applies_to_a_cluster_that_has_everything_gives_nothing_of_ours_rights_in_it(
    variants: Variants, tmp_path: Path
) -> None:
    app, gitops = cdk_app({}, outdir=str(tmp_path), validation=False), DeploymentSettings(workloads="gitops")
    beside, _ = variants["beside"]
    files = render(beside)
    stack = WorkloadsStack(app, experiment=beside, settings=gitops, files=files, cluster=None, made=None)
    made = Template.from_stack(stack).to_json()
    assert {one["Type"] for one in made["Resources"].values()} == {"AWS::CloudFormation::WaitConditionHandle"}
    assert made["Outputs"]


def _objects(found: Deployment) -> list[dict[str, Any]]:
    applied = found.properties("Custom::AWSCDK-EKS-KubernetesResource")
    return [one for properties in applied for one in json.loads(resolved(properties["Manifest"]))]


def _values(value: Any, key: str) -> set[str]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    own = {str(value[key])} if isinstance(value, dict) and key in value else set()
    return own.union(*(_values(one, key) for one in inner))


def test_pods_find_the_nodes_of_their_own_experiment_and_those_of_another_where_they_are_the_same(
    made: Deployments, variants: Variants, experiment: Experiment
) -> None:
    roles = {labels[NODE_ROLE_LABEL] for labels in _labels(made.joined, made.beside)}
    assert roles == {"joined-neuron", "joined-system", "beside-neuron"}
    for found, wanted in (
        (made.joined, {"joined-neuron", "joined-system"}),
        (made.beside, {"beside-neuron", "system"}),  # the cluster's have the plain label
        (made.sharing, {"joined-neuron", "joined-system"}),
    ):
        assert _values(_objects(found), NODE_ROLE_LABEL) == wanted
    first, third = (neuron_nodegroup(variants[name][0]) for name in ("joined", "sharing"))
    assert first == third != neuron_nodegroup(experiment)


def test_names_of_experiments_in_one_cluster_do_not_collide(made: Deployments) -> None:
    def names(found: Deployment) -> set[str]:
        given = [f"{key} {resolved(one.properties.get(key))}" for one in found.resources() for key in NAMED]
        of_aws = {text for text in given if "<" not in text and not text.endswith("None")}  # `<`: a reference
        objects = [(one["kind"], one["metadata"]) for one in _objects(found)]
        return of_aws | {f"{kind} {meta.get('namespace')} {meta['name']}" for kind, meta in objects}

    first, second, third = named = [names(found) for found in (made.joined, made.beside, made.sharing)]
    assert all(len(each) > 40 for each in named)
    assert first & second == first & third == second & third == set()


def test_alarms_of_a_shared_cluster_say_nothing_about_nodes_of_others(made: Deployments) -> None:
    first, second = (
        {one["AlarmName"].split("-", 1)[1] for one in found.properties("AWS::CloudWatch::Alarm")}
        for found in (made.joined, made.sharing)
    )
    assert "paid-nodes" not in first | second
    assert first - second == {"switch-off-failed"}  # the schedules are those of whose the nodes are
