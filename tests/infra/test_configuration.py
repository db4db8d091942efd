from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.finding import Misuse
from infra import ROOT
from infra.deployment_file import KEYS, Lasting, read_deployment
from infra.synthesis import DEPLOYMENT, configure

ADMIN = "arn:aws:iam::111122223333:role/ops"


@pytest.fixture
def lasting(tmp_path: Path) -> Callable[[str], Lasting]:
    """What is read from a deployment.yaml with this text."""

    def read(text: str) -> Lasting:
        path = tmp_path / "deployment.yaml"
        path.write_text(text, encoding="utf-8")
        return read_deployment(path)

    return read


def test_the_committed_files_name_the_reference_experiment_and_nobody() -> None:
    configuration = configure({})
    assert configuration.experiment.name == "qwen3-32b"
    assert configuration.lasting == Lasting()
    assert [key for key in KEYS if f"\n{key}: " in DEPLOYMENT.read_text(encoding="utf-8")] == list(KEYS)


def test_who_leaves_the_file_empty_is_told_what_follows() -> None:
    admins, alarms = Lasting().warnings("deployment.yaml")
    assert admins.startswith("deployment.yaml: admins is empty, so nobody can use kubectl")
    assert alarms.startswith("deployment.yaml: alarm_email is empty, so no alarm reaches anybody")
    assert Lasting(admins=(ADMIN,), alarm_email="team@example.com").warnings("x") == []


def test_feature_flags_of_cdk_json_are_part_of_the_context() -> None:
    context = configure({}).context
    assert context["@aws-cdk/core:defaultCrossStackReferences"] == "strong"
    assert context["@aws-cdk/aws-s3:serverAccessLogsUseBucketPolicy"] is True


def test_the_command_line_has_nothing_to_warn_of_in_cdk_json() -> None:
    context = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    assert not [
        key for key in context if key.startswith("aws:")
    ]  # reserved; the warning ends in what others read


@pytest.mark.parametrize("key", KEYS)
def test_what_must_last_is_not_taken_from_the_command_line(key: str) -> None:
    """The next plain `cdk deploy --all` would take it back, and lock the administrators out."""
    with pytest.raises(Misuse) as caught:
        configure({key: ADMIN})
    assert str(caught.value) == (
        f"context {key}: the next deployment would not know it; write {key} into deployment.yaml instead of -c {key}="
    )


def test_everything_that_lasts_is_read_from_the_file(lasting: Callable[[str], Lasting]) -> None:
    found = lasting(
        f"admins: [{ADMIN}, arn:aws:iam::111122223333:user/eve, {ADMIN}]\nalarm_email: team@example.com\n"
        "build_images: codebuild\npipeline_role: arn:aws:iam::111122223333:role/pipeline\n"
        "permissions_boundary: bounds\n"
    )
    assert found == Lasting(
        admins=(ADMIN, "arn:aws:iam::111122223333:user/eve"),
        alarm_email="team@example.com",
        build_images="codebuild",
        pipeline_role="arn:aws:iam::111122223333:role/pipeline",
        permissions_boundary="bounds",
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("admins: me", "deployment.yaml: admins = 'me': is not a list"),
        ("admins: [me]", "deployment.yaml: admins[0] = 'me': is not the ARN of an IAM role or user"),
        (
            f"admins: [{ADMIN}, {{}}]",
            "deployment.yaml: admins[1] = {}: is not the ARN of an IAM role or user",
        ),
        ("admins: [arn:aws:iam::1:role/x]", "admins[0] = 'arn:aws:iam::1:role/x': is not the ARN"),
        (
            "admins: [arn:aws:sts::111122223333:assumed-role/ops/eve]",
            "write the ARN of its role (aws iam get-role --role-name ops --query Role.Arn)",
        ),
        (
            "admins: [arn:aws:iam::111122223333:role/aws-service-role/eks.amazonaws.com/AWSServiceRoleForAmazonEKS]",
            "is not the ARN of an IAM role or user",
        ),
        ("admins: [arn:aws:iam::１１１１２２２２３３３３:role/x]", "is not the ARN of an IAM role or user"),
        ("alarm_email: team", "deployment.yaml: alarm_email = 'team': is not a mail address"),
        ("alarm_email: a@b", "alarm_email = 'a@b': is not a mail address"),
        ("alarm_email: 'a@example.com,b@example.com'", "is not a mail address"),
        ("build_images: podman", "build_images = 'podman': builds nothing; write docker or codebuild"),
        ("pipeline_role: me", "pipeline_role = 'me': is not the ARN of an IAM role or user"),
        (
            f"admins: [{ADMIN}]\npipeline_role: {ADMIN}",
            "is among the admins too, and EKS keeps one access entry",
        ),
        ("permissions_boundary: arn:aws:iam::111122223333:policy/b", "is not the name of an IAM policy"),
        ("admin: []", "deployment.yaml: 'admin' is not a key; use admins, alarm_email, "),
        ("- admins", "has no keys and values; see the committed deployment.yaml"),
        ("", "deployment.yaml = None: has no keys and values"),
        ("admins: [", "is not valid YAML"),
        ("admins: !!timestamp abc", "is not valid YAML"),
        ("admins: !!int ''", "is not valid YAML"),
        ("admins: !!bool x", "is not valid YAML"),
        ("admins: &a [x]\npipeline_role: *a", "has an alias (*); write the value out"),
        ("[" * 5000, "nests more than 10 levels"),
    ],
)
def test_a_wrong_value_is_one_line(lasting: Callable[[str], Lasting], text: str, line: str) -> None:
    with pytest.raises(Misuse) as caught:
        lasting(text)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"deployment.yaml: cannot be read: .*start from the committed"):
        configure({}, deployment=tmp_path / "deployment.yaml")


@pytest.mark.parametrize("path", ["", 7])
def test_an_experiment_that_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(Misuse, match="is no path; use -c experiment="):
        configure({"experiment": path})


def test_an_experiment_of_the_lab_is_not_deployed_although_it_is_rendered() -> None:
    with pytest.raises(
        Misuse, match=r"lab-tiny runs in the lab only, .*; run scripts/lab, or use -c experiment="
    ):
        configure({"experiment": "experiments/lab-tiny.yaml"})


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deployment.yaml"
    path.write_text("admins: [me]\nalarm_email: me\nbuild_images: podman\n", encoding="utf-8")
    with pytest.raises(Misuse) as caught:
        configure({"manifests": "nowhere", "admins": ADMIN}, deployment=path)
    lines = str(caught.value).splitlines()
    said = ("context admins", "admins[0]", "alarm_email", "build_images", "nowhere")
    assert len(lines) == len(said)
    assert all(what in line for what, line in zip(said, lines, strict=True))


def test_a_boundary_reaches_cdk_in_its_own_form(tmp_path: Path) -> None:
    key, path = "@aws-cdk/core:permissionsBoundary", tmp_path / "deployment.yaml"
    path.write_text("permissions_boundary: bounds\n", encoding="utf-8")
    assert key not in configure({}).context
    assert configure({}, deployment=path).context[key] == {"name": "bounds"}
