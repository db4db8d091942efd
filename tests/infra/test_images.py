from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.manifests import PLACEHOLDERS
from cdk8s_charts.render import render
from experiment import Experiment
from infra.constructs.images import IMAGES, images_in
from tests.infra.templates import Deployment, resolved

ROOT = Path(__file__).resolve().parents[2]


def test_every_placeholder_of_an_image_is_built_here() -> None:
    named = {name for name in PLACEHOLDERS if name.endswith("_IMAGE")}
    assert named <= {image.placeholder for image in IMAGES}


def test_an_image_is_built_only_for_an_experiment_that_runs_it(experiment: Experiment) -> None:
    other = experiment.benchmark.model_copy(update={"lm_eval": None})
    for one, wanted in (
        (experiment, {"BENCHMARK_IMAGE", "LMEVAL_IMAGE"}),
        (replace(experiment, benchmark=other), {"BENCHMARK_IMAGE"}),
    ):
        assert {image.placeholder for image in images_in(render(one))} == wanted


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.construct_id)
def test_what_an_image_installs_is_pinned_with_hashes(image: Any) -> None:
    text = (ROOT / image.dockerfile).read_text(encoding="utf-8")
    (base,) = re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"public\.ecr\.aws/docker/library/python:\d+\.\d+\.\d+-slim-bookworm", base)
    assert len(re.findall(r"pip install", text)) == 1
    assert "--require-hashes" in text
    requirements = (ROOT / image.dockerfile).with_name("requirements.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^[a-z0-9][\w.-]*==[^\n]*\\\n +--hash=sha256:", requirements, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[a-z0-9]", requirements, re.MULTILINE)) > 0


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.construct_id)
def test_what_a_dockerfile_copies_is_in_its_context(image: Any) -> None:
    text = (ROOT / image.dockerfile).read_text(encoding="utf-8")
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
        if not source.startswith("--")
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(Path(source).is_relative_to(kept) for kept in image.sources), source


def test_only_what_is_copied_reaches_the_builder(deployment: Deployment, assembly: Path) -> None:
    images = {image.dockerfile: image for image in IMAGES}
    for asset in deployment.assets["workloads"]["dockerImages"].values():
        source = asset["source"]
        image = images[source["dockerFile"]]
        folder = assembly / source["directory"]
        files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        kept = (image.dockerfile, *image.sources, ".dockerignore")
        assert Path(image.dockerfile) in files
        assert [file for file in files if not any(file.is_relative_to(one) for one in kept)] == []
        assert all(any(file.is_relative_to(one) for file in files) for one in image.sources)
        assert not [file for file in files if "__pycache__" in file.parts]


def test_codebuild_builds_each_image_from_its_sources_and_tags_it_with_their_hash(
    open_deployment: Deployment,
) -> None:
    images = open_deployment.resources("Custom::ContainerImage")
    assert images
    sources = open_deployment.assets["workloads"]["files"]
    for found in images:
        assert found.properties["Tag"] in sources
        assert str(resolved(found.properties["Uri"])).endswith(f":{found.properties['Tag']}")
        assert found.properties["ServiceTimeout"] == "3600"
    assert (
        "dockerImages" not in open_deployment.assets["workloads"]
        or not (open_deployment.assets["workloads"]["dockerImages"])
    )


def test_a_failed_build_pushes_nothing(open_deployment: Deployment) -> None:
    for project in open_deployment.resources("AWS::CodeBuild::Project"):
        phases = json.loads(project.properties["Source"]["BuildSpec"])["phases"]
        succeeded, push = phases["post_build"]["commands"]
        assert succeeded == 'test "$CODEBUILD_BUILD_SUCCEEDING" = 1'
        assert push.startswith("docker push")


def test_the_end_of_a_build_is_told_to_who_started_it(open_deployment: Deployment) -> None:
    rules = open_deployment.resources("AWS::Events::Rule")
    projects = open_deployment.resources("AWS::CodeBuild::Project")
    assert len(rules) == len(projects)
    for rule in rules:
        pattern = rule.properties["EventPattern"]
        assert pattern["source"] == ["aws.codebuild"]
        assert "SUCCEEDED" in pattern["detail"]["build-status"]
        assert "FAILED" in pattern["detail"]["build-status"]


def test_versions_of_one_image_never_push_out_another_that_is_in_use(open_deployment: Deployment) -> None:
    """Each image has a first version; then one of them changes until its repository expires something."""
    rules = {}
    for one in open_deployment.resources("AWS::ECR::Repository"):
        (rule,) = json.loads(one.properties["LifecyclePolicy"]["LifecyclePolicyText"])["rules"]
        assert (rule["selection"]["tagStatus"], rule["selection"]["countType"]) == (
            "any",
            "imageCountMoreThan",
        )
        rules[one.logical_id] = rule["selection"]["countNumber"]
    images = open_deployment.resources("Custom::ContainerImage")
    repository_of = {one.logical_id: one.properties["Repository"]["Ref"] for one in images}
    assert len(images) > 1
    for changing in repository_of:
        pushed: dict[str, list[str]] = {name: [] for name in rules}
        in_use = {name: f"{name}:0" for name in repository_of}
        for name, tag in in_use.items():
            pushed[repository_of[name]].append(tag)
        for version in range(1, 100):
            in_use[changing] = f"{changing}:{version}"
            pushed[repository_of[changing]].append(in_use[changing])
        for name, tag in in_use.items():
            kept = pushed[repository_of[name]][-rules[repository_of[name]] :]
            assert tag in kept, f"{tag} expired while {changing} changed"


def test_a_build_pushes_to_the_repository_of_its_own_image_only(open_deployment: Deployment) -> None:
    repositories = {one.logical_id for one in open_deployment.resources("AWS::ECR::Repository")}
    for policy in open_deployment.resources("AWS::IAM::Policy"):
        actions = json.dumps(policy.properties)
        if "ecr:PutImage" in actions:
            assert len([name for name in repositories if f'"{name}"' in actions]) == 1
