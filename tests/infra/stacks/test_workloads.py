"""What is applied to the cluster is what was reviewed, with images built from this repository."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.manifests import PLACEHOLDERS, fill, names_in
from cdk8s_charts.render import render
from infra.stacks.workloads import IMAGES, Image, images_in
from tests.infra.templates import ACCOUNT, ROOT, Deployment, Deployments, resolved
from trnspec.experiment import Experiment
from trnspec.operations.teardown import PATIENCE_S

MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"
HELM = "Custom::AWSCDK-EKS-HelmChart"


def _applied(deployment: Deployment) -> list[list[dict[str, Any]]]:
    """The objects of every manifest resource, as the account would get them."""
    return [json.loads(resolved(found["Manifest"])) for found in deployment.properties(MANIFEST)]


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


def test_applied_objects_equal_the_rendered_ones_but_for_jobs_with_placeholders_filled(
    made: Deployments, experiment: Experiment
) -> None:
    files = render(experiment)
    values = _built_by_docker(made.reference) | {"AWS_ACCOUNT": ACCOUNT}
    filled = dict.fromkeys(PLACEHOLDERS, "") | values
    standing = [[item for item in file.objects if item["kind"] != "Job"] for file in files]
    assert _applied(made.reference) == [fill(objects, filled) for objects in standing if objects]
    assert [] in standing, "a file of Jobs alone is no resource"
    assert names_in(_applied(made.reference)) == set(), "no placeholder is left for the cluster"
    other = replace(experiment, benchmark=experiment.benchmark.model_copy(update={"lm_eval": None}))
    assert {one.placeholder for one in images_in(files)} == {"BENCHMARK_IMAGE", "LMEVAL_IMAGE"}
    assert {one.placeholder for one in images_in(render(other))} == {"BENCHMARK_IMAGE"}


def test_cloudformation_waits_longer_than_the_function_runs_and_half_of_what_a_teardown_waits_at_most(
    made: Deployments,
) -> None:
    ends = [one["Timeout"] for one in made.reference.properties("AWS::Lambda::Function", "workloads")]
    waits = [
        int(one.properties["ServiceTimeout"])
        for one in made.reference.resources()
        if one.type.startswith("Custom::")
    ]
    assert len(waits) == 1 + len(made.reference.resources(MANIFEST))
    assert max(ends) < min(waits) <= max(waits) <= PATIENCE_S / 2


def test_manifests_come_one_after_another_behind_the_driver(made: Deployments) -> None:
    for earlier, later in pairwise([made.reference.only(HELM), *made.reference.resources(MANIFEST)]):
        assert earlier.logical_id in later.waits_for
    for one in made.reference.properties(MANIFEST):
        assert (one["Overwrite"], "PruneLabel" in one) == (True, False)


def test_roles_nodes_and_buckets_stand_before_the_first_pod(
    made: Deployments, experiment: Experiment
) -> None:
    """A pod is given its role when it starts; and what goes first on the way down comes last on the way up."""
    artifacts = made.reference.artifacts
    before = {f"qwen3-32b-{part}" for part in ("storage", "identity", "nodes", "cluster", "network")}
    assert before <= set(artifacts["workloads"]["dependencies"])
    assert "qwen3-32b-cluster" in artifacts["nodes"]["dependencies"], "add-ons come before the Trn2 nodes"
    names = {part: one["displayName"] for part, one in artifacts.items()}
    assert names == {part: f"{experiment.name}-{part}" for part in made.reference.templates}


def test_nothing_is_applied_before_the_provider_may_enter_the_cluster_whose_private_endpoint_it_reaches(
    made: Deployments,
) -> None:
    entry = made.reference.only("AWS::EKS::AccessEntry", "workloads")
    for found in (made.reference.only(HELM), *made.reference.resources(MANIFEST)):
        assert entry.logical_id in found.waits_for
    (policy,) = entry.properties["AccessPolicies"]
    assert policy["AccessScope"] == {"Type": "cluster"}
    assert resolved(policy["PolicyArn"]).endswith("/AmazonEKSClusterAdminPolicy")
    provider = entry.properties["PrincipalArn"]["Fn::GetAtt"][0]
    lambdas = made.reference.properties("AWS::Lambda::Function", "workloads")
    assert {"Fn::GetAtt": [provider, "Arn"]} in [function["Role"] for function in lambdas]
    for function in lambdas:
        inside = function["VpcConfig"]
        assert len(inside["SubnetIds"]) == 3
        # The endpoint lets members of the cluster's own group in.
        assert ["ClusterSecurityGroupId" in str(group) for group in inside["SecurityGroupIds"]] == [True]


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.construct_id)
def test_an_image_installs_what_is_pinned_with_hashes_and_only_what_it_copies_reaches_the_builder(
    image: Image, made: Deployments, assembly: Path
) -> None:
    text = (ROOT / image.dockerfile).read_text(encoding="utf-8")
    (base,) = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"public\.ecr\.aws/docker/library/python:\d+\.\d+\.\d+-slim-bookworm", base)
    assert len(re.findall(r"pip install", text)) == len(re.findall("--require-hashes", text)) == 1
    requirements = (ROOT / image.dockerfile).with_name("requirements.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^[a-z0-9][\w.-]*==[^\n]*\\\n +--hash=sha256:", requirements, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[a-z0-9]", requirements, re.MULTILINE)) > 0
    sources = [asset["source"] for asset in made.reference.assets["workloads"]["dockerImages"].values()]
    (source,) = [one for one in sources if one["dockerFile"] == image.dockerfile]
    assert source["platform"] == "linux/amd64", "for the system nodes"
    folder = assembly / source["directory"]
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    kept = (image.dockerfile, *image.sources, ".dockerignore")
    assert [
        one for one in files if "__pycache__" in one.parts or not any(map(one.is_relative_to, kept))
    ] == []
    lines = re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
    copied = [word for line in lines for word in line.split()[:-1] if not word.startswith("--")]
    assert copied
    for one in (image.dockerfile, *image.sources, *copied):
        assert any(file.is_relative_to(one) for file in files), one
