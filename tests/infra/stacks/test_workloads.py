"""What is applied to the cluster is what was reviewed, with images built from this repository."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.manifests import PLACEHOLDERS, fill, names_in, tags_in_names, with_tags
from cdk8s_charts.render import render
from experiment import Experiment
from infra.stacks.workloads import IMAGES, Image, images_in
from tests.infra.conftest import Variants
from tests.infra.templates import ACCOUNT, ROOT, Deployment, Deployments, Resource, resolved

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


def _of_codebuild(deployment: Deployment) -> dict[str, Resource]:
    """The resources that build images, by placeholder."""
    return {
        image.placeholder: found
        for found in deployment.resources("Custom::ContainerImage")
        for image in IMAGES
        if found.logical_id.startswith(f"Images{image.construct_id}")
    }


def test_applied_objects_equal_the_rendered_ones_with_placeholders_filled(
    made: Deployments, experiment: Experiment, variants: Variants
) -> None:
    images = _of_codebuild(made.opened)
    tags = {name: found.properties["Tag"] for name, found in images.items()}
    built = {name: f"<{found.logical_id}.Uri>" for name, found in images.items()} | tags_in_names(tags)
    by_docker = _built_by_docker(made.reference)
    for found, example, values in (
        (made.reference, experiment, with_tags(by_docker)),
        (made.opened, variants["opened"][0], built),
    ):
        files = render(example)
        filled = dict.fromkeys(PLACEHOLDERS, "") | values | {"AWS_ACCOUNT": ACCOUNT}
        assert _applied(found) == [fill(file.objects, filled) for file in files]
        assert names_in(_applied(found)) == set(), "no placeholder is left for the cluster"
        other = replace(example, benchmark=example.benchmark.model_copy(update={"lm_eval": None}))
        assert {one.placeholder for one in images_in(files)} == {"BENCHMARK_IMAGE", "LMEVAL_IMAGE"}
        assert {one.placeholder for one in images_in(render(other))} == {"BENCHMARK_IMAGE"}
    # Another repository holds an image that is built the other way, and of an address only the tag is in a Job's name.
    assert {address.rpartition(":")[2] for address in by_docker.values()}.isdisjoint(tags.values())


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


def test_codebuild_builds_each_image_for_its_own_repository_and_pushes_nothing_that_failed(
    made: Deployments,
) -> None:
    """Tagged with the hash of its sources. Versions of one image never push out another that is in use, because no other is counted
    in its repository; and the end of each build reaches who started it."""
    found = made.opened
    images, assets = found.properties("Custom::ContainerImage"), found.assets["workloads"]
    for one in images:
        assert one["Tag"] in assets["files"]
        assert str(resolved(one["Uri"])).endswith(f":{one['Tag']}")
    assert not assets.get("dockerImages")
    repositories = [one.logical_id for one in found.resources("AWS::ECR::Repository")]
    assert len(images) > 1
    assert sorted(one["Repository"]["Ref"] for one in images) == sorted(repositories)
    rights = [str(statements) for statements in found.rights("workloads").values()]
    pushing = [one for one in rights if "ecr:PutImage" in one]
    assert [sum(f"'{name}'" in one for name in repositories) for one in pushing] == [1] * len(images)
    for project in found.properties("AWS::CodeBuild::Project"):
        phases = json.loads(project["Source"]["BuildSpec"])["phases"]
        succeeded, push = phases["post_build"]["commands"]
        assert succeeded == 'test "$CODEBUILD_BUILD_SUCCEEDING" = 1'
        assert push.startswith("docker push")
    rules = [one["EventPattern"] for one in found.properties("AWS::Events::Rule")]
    assert [rule["source"] for rule in rules] == [["aws.codebuild"]] * len(images)
    assert all({"SUCCEEDED", "FAILED"} <= set(rule["detail"]["build-status"]) for rule in rules)
