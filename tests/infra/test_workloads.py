"""What is applied to the cluster is what was reviewed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from cdk8s_charts.placeholders import PLACEHOLDERS, fill, names_in
from cdk8s_charts.render import render
from experiment import Experiment
from tests.infra.templates import ACCOUNT, Deployment, Resource, resolved

MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"
HELM = "Custom::AWSCDK-EKS-HelmChart"


def _applied(deployment: Deployment) -> list[list[dict[str, Any]]]:
    """The objects of every manifest resource, as the account would get them."""
    return [json.loads(resolved(found.properties["Manifest"])) for found in deployment.resources(MANIFEST)]


def _benchmark_image(deployment: Deployment) -> str:
    """Where `cdk deploy` pushes the one image, from the list of what it publishes."""
    ((tag, asset),) = deployment.assets["workloads"]["dockerImages"].items()
    (destination,) = asset["destinations"].values()
    repository = destination["repositoryName"].replace("${AWS::AccountId}", ACCOUNT)
    assert destination["imageTag"] == tag
    return f"{ACCOUNT}.dkr.ecr.us-east-2.amazonaws.com/{repository}:{tag}"


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
    values = {"AWS_ACCOUNT": ACCOUNT, "BENCHMARK_IMAGE": _benchmark_image(deployment)}
    assert values.keys() == PLACEHOLDERS.keys()
    rendered = [fill(file.objects, values) for file in render(experiment)]
    assert _applied(deployment) == rendered


def test_no_placeholder_is_left_for_the_cluster(deployment: Deployment) -> None:
    assert names_in(_applied(deployment)) == set()


def test_manifests_come_one_after_another_behind_the_driver(deployment: Deployment) -> None:
    chain: list[Resource] = [deployment.only(HELM), *deployment.resources(MANIFEST)]
    for earlier, later in pairwise(chain):
        assert earlier.logical_id in later.waits_for


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


def test_nothing_is_added_to_the_objects_and_a_broken_deployment_can_be_repeated(
    deployment: Deployment,
) -> None:
    for found in deployment.resources(MANIFEST):
        assert "PruneLabel" not in found.properties
        assert found.properties["Overwrite"] is True


def test_the_driver_hands_out_devices_by_claims_only(deployment: Deployment) -> None:
    chart = deployment.only(HELM).properties
    assert chart["Repository"] == "oci://public.ecr.aws/neuron/neuron-helm-chart"
    assert chart["Version"] == "1.10.0"
    assert json.loads(chart["Values"]) == {
        "devicePlugin": {"enabled": False},
        "scheduler": {"enabled": False},
        "npd": {"enabled": False},
        "draDriver": {"enabled": True},
    }


def test_the_provider_reaches_a_private_endpoint(deployment: Deployment) -> None:
    for function in deployment.resources("AWS::Lambda::Function", stack="workloads"):
        assert len(function.properties["VpcConfig"]["SubnetIds"]) == 2


def test_the_benchmark_image_is_built_for_the_system_nodes(deployment: Deployment) -> None:
    (image,) = deployment.assets["workloads"]["dockerImages"].values()
    assert image["source"]["platform"] == "linux/amd64"


def test_stacks_carry_the_name_of_the_experiment(deployment: Deployment, experiment: Experiment) -> None:
    assert deployment.stack_names == {part: f"{experiment.name}-{part}" for part in deployment.templates}
