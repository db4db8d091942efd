from __future__ import annotations

import json

import pytest

from infra.configuration import ROOT, configure
from infra.errors import InfraError


def test_cdk_json_names_the_reference_experiment_and_no_administrator() -> None:
    configuration = configure({})
    assert configuration.experiment.name == "qwen3-32b"
    assert configuration.admins == ()


def test_feature_flags_of_cdk_json_are_part_of_the_context() -> None:
    context = configure({}).context
    assert context["@aws-cdk/core:defaultCrossStackReferences"] == "strong"
    assert context["@aws-cdk/aws-s3:serverAccessLogsUseBucketPolicy"] is True


def test_the_command_line_has_nothing_to_warn_of_in_cdk_json() -> None:
    context = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    assert not [
        key for key in context if key.startswith("aws:")
    ]  # reserved; the warning ends in what others read


def test_the_command_line_overrides_cdk_json() -> None:
    first, second = "arn:aws:iam::111122223333:role/ops", "arn:aws:iam::111122223333:user/eve"
    assert configure({"admins": f"{first}, {second},{first}"}).admins == (first, second)


@pytest.mark.parametrize(
    "admins",
    [
        "me",
        "arn:aws:iam::1:role/x",
        "arn:aws:sts::111122223333:assumed-role/x/y",
        "arn:aws:iam::111122223333:role/aws-service-role/eks.amazonaws.com/AWSServiceRoleForAmazonEKS",
        "arn:aws:iam::１１１１２２２２３３３３:role/x",
    ],
)
def test_an_administrator_that_is_no_principal_is_refused(admins: str) -> None:
    with pytest.raises(InfraError, match="is no ARN of an IAM role or user; use -c admins="):
        configure({"admins": admins})


@pytest.mark.parametrize("path", ["", 7])
def test_an_experiment_that_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(InfraError, match="is no path; use -c experiment="):
        configure({"experiment": path})


def test_an_experiment_of_the_lab_is_not_deployed_although_it_is_rendered() -> None:
    with pytest.raises(
        InfraError, match=r"lab-tiny runs in the lab only, .*; run scripts/lab, or use -c experiment="
    ):
        configure({"experiment": "experiments/lab-tiny.yaml"})


def test_a_pipeline_has_one_role_or_none() -> None:
    role = "arn:aws:iam::111122223333:role/pipeline"
    assert configure({}).pipeline_role is None
    assert configure({"pipeline_role": role}).pipeline_role == role
    with pytest.raises(InfraError, match="names 2 roles; a pipeline has one"):
        configure({"pipeline_role": f"{role},{role}-2"})
    with pytest.raises(InfraError, match="context pipeline_role = 'me': is no ARN"):
        configure({"pipeline_role": "me"})


def test_everything_that_is_wrong_is_said_at_once() -> None:
    wrong = {"admins": "me", "alarm_email": "me", "build_images": "podman", "manifests": "nowhere"}
    with pytest.raises(InfraError) as caught:
        configure(wrong)
    lines = str(caught.value).splitlines()
    said = ("context admins", "nowhere", "context alarm_email", "context build_images")
    assert len(lines) == len(said)
    assert all(what in line for what, line in zip(said, lines, strict=True))


def test_nobody_is_admitted_twice() -> None:
    role = "arn:aws:iam::111122223333:role/pipeline"
    with pytest.raises(
        InfraError, match="is among the admins too, and EKS keeps one access entry a principal"
    ):
        configure({"pipeline_role": role, "admins": f"arn:aws:iam::111122223333:role/ops,{role}"})


def test_a_boundary_is_named_on_the_command_line_and_reaches_cdk_in_its_own_form() -> None:
    key = "@aws-cdk/core:permissionsBoundary"
    assert key not in configure({}).context
    assert configure({"permissions_boundary": "bounds"}).context[key] == {"name": "bounds"}
    with pytest.raises(InfraError, match=r"permissions_boundary = 'arn:.*is no name of an IAM policy"):
        configure({"permissions_boundary": "arn:aws:iam::111122223333:policy/bounds"})


def test_images_are_built_on_this_machine_or_by_codebuild() -> None:
    assert configure({}).build_images == "docker"
    assert configure({"build_images": "codebuild"}).build_images == "codebuild"
    with pytest.raises(
        InfraError, match="'podman': nobody builds so; use -c build_images=docker or codebuild"
    ):
        configure({"build_images": "podman"})
