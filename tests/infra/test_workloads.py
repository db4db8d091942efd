"""What is applied to the cluster is what was reviewed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.manifests import PLACEHOLDERS, fill, names_in, tags_in_names, with_tags
from cdk8s_charts.render import render
from experiment import Experiment
from infra.constructs.images import IMAGES, images_in
from tests.infra.templates import ACCOUNT, Deployment, Resource, resolved

MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"
HELM = "Custom::AWSCDK-EKS-HelmChart"


def _applied(deployment: Deployment) -> list[list[dict[str, Any]]]:
    """The objects of every manifest resource, as the account would get them."""
    return [json.loads(resolved(found.properties["Manifest"])) for found in deployment.resources(MANIFEST)]


def _built_by_docker(deployment: Deployment) -> dict[str, str]:
    """Where `cdk deploy` pushes the images, by placeholder, from the list of what it publishes."""
    builds = {image.dockerfile: image.placeholder for image in IMAGES}
    found = {}
    for tag, asset in deployment.assets["workloads"]["dockerImages"].items():
        (destination,) = asset["destinations"].values()
        repository = destination["repositoryName"].replace("${AWS::AccountId}", ACCOUNT)
        assert destination["imageTag"] == tag
        address = f"{ACCOUNT}.dkr.ecr.us-east-2.amazonaws.com/{repository}:{tag}"
        found[builds[asset["source"]["dockerFile"]]] = address
    return found


def _built_by_codebuild(deployment: Deployment) -> dict[str, str]:
    return {name: f"<{found.logical_id}.Uri>" for name, found in _images_of_codebuild(deployment)}


def _tags_of_codebuild(deployment: Deployment) -> dict[str, str]:
    return {name: found.properties["Tag"] for name, found in _images_of_codebuild(deployment)}


def _images_of_codebuild(deployment: Deployment) -> Iterator[tuple[str, Resource]]:
    for found in deployment.resources("Custom::ContainerImage"):
        for image in IMAGES:
            if found.logical_id.startswith(f"Images{image.construct_id}"):
                yield image.placeholder, found


@pytest.mark.parametrize("which", ["reference", "opened"])
def test_applied_objects_equal_the_rendered_ones_with_placeholders_filled(
    request: pytest.FixtureRequest, which: str
) -> None:
    deployment, experiment = (
        request.getfixturevalue(name)
        for name in {"reference": ("deployment", "experiment"), "opened": ("open_deployment", "opened")}[
            which
        ]
    )
    if which == "reference":
        images = _built_by_docker(deployment)
        values = with_tags(images)
    else:
        images = _built_by_codebuild(deployment)
        values = images | tags_in_names(_tags_of_codebuild(deployment))
    assert images.keys() == {image.placeholder for image in images_in(render(experiment))}
    values = dict.fromkeys(PLACEHOLDERS, "") | values | {"AWS_ACCOUNT": ACCOUNT}
    rendered = [fill(file.objects, values) for file in render(experiment)]
    assert _applied(deployment) == rendered


def test_an_image_built_the_other_way_gives_the_jobs_other_names(
    deployment: Deployment, open_deployment: Deployment
) -> None:
    """Another repository holds it, and of an address only the tag is in a name."""
    tags = {address.rpartition(":")[2] for address in _built_by_docker(deployment).values()}
    assert tags
    assert tags.isdisjoint(_tags_of_codebuild(open_deployment).values())


def test_no_placeholder_is_left_for_the_cluster(deployment: Deployment) -> None:
    assert names_in(_applied(deployment)) == set()


def test_manifests_come_one_after_another_behind_the_driver(deployment: Deployment) -> None:
    chain: list[Resource] = [deployment.only(HELM), *deployment.resources(MANIFEST)]
    for earlier, later in pairwise(chain):
        assert earlier.logical_id in later.waits_for


def test_the_autoscaler_comes_behind_the_driver(rented_deployment: Deployment) -> None:
    charts = {one.properties["Release"]: one for one in rented_deployment.resources(HELM)}
    assert charts["neuron"].logical_id in charts["keda"].waits_for


def test_roles_nodes_and_buckets_stand_before_the_first_pod(assembly: Path) -> None:
    """A pod is given its role when it starts; and what goes first on the way down comes last on the way up."""
    artifacts = json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))["artifacts"]
    assert {"storage", "identity", "nodes", "cluster", "network"} <= set(
        artifacts["workloads"]["dependencies"]
    )
    assert "cluster" in artifacts["nodes"]["dependencies"], "add-ons come before the Trn2 nodes"


def test_nothing_is_applied_before_the_provider_may_enter_the_cluster(deployment: Deployment) -> None:
    entry = deployment.only("AWS::EKS::AccessEntry", stack="workloads")
    for found in (deployment.only(HELM), *deployment.resources(MANIFEST)):
        assert entry.logical_id in found.waits_for
    (policy,) = entry.properties["AccessPolicies"]
    assert policy["AccessScope"] == {"Type": "cluster"}
    assert resolved(policy["PolicyArn"]).endswith("/AmazonEKSClusterAdminPolicy")
    provider = entry.properties["PrincipalArn"]["Fn::GetAtt"][0]
    lambdas = deployment.resources("AWS::Lambda::Function", stack="workloads")
    assert [f for f in lambdas if f.properties["Role"] == {"Fn::GetAtt": [provider, "Arn"]}]


def test_the_provider_reaches_a_private_endpoint(deployment: Deployment) -> None:
    for function in deployment.resources("AWS::Lambda::Function", stack="workloads"):
        inside = function.properties["VpcConfig"]
        assert len(inside["SubnetIds"]) == 3
        # The endpoint lets members of the cluster's own group in.
        assert ["ClusterSecurityGroupId" in str(group) for group in inside["SecurityGroupIds"]] == [True]


def test_images_are_built_for_the_system_nodes(deployment: Deployment) -> None:
    images = deployment.assets["workloads"]["dockerImages"].values()
    assert images
    assert all(image["source"]["platform"] == "linux/amd64" for image in images)


def test_stacks_carry_the_name_of_the_experiment(deployment: Deployment, experiment: Experiment) -> None:
    assert deployment.stack_names == {part: f"{experiment.name}-{part}" for part in deployment.templates}
