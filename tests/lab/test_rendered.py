"""What the demonstration starts is what the rendered Deployments say, read from the committed manifests."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from cdk8s_charts.manifests import ManifestFile, read
from cdk8s_charts.vllm_command import serve_argv
from tests.conftest import REFERENCE, ROOT
from trnspec.core.findings import Refusal
from trnspec.experiment import Experiment
from trnspec.lab.programs import containers, mounted_plan, rendered


@pytest.fixture(scope="module")
def files(reference: Experiment) -> tuple[ManifestFile, ...]:
    return read(reference, ROOT / "manifests")


def test_every_arm_is_there_with_its_command_and_the_plan_that_the_pod_mounts(
    reference: Experiment, files: tuple[ManifestFile, ...]
) -> None:
    found = containers(files)
    assert found.keys() == {arm.name for arm in reference.arms}
    plan = mounted_plan(files)
    assert [arm.name for arm in plan.arms] == [arm.name for arm in reference.arms]
    assert [prompt.id for prompt in plan.prompts] == [prompt.id for prompt in reference.prompts]
    for arm in reference.arms:
        assert found[arm.name].command == tuple(serve_argv(arm))
        assert found[arm.name].startup_s == 1800


def test_an_edited_deployment_is_what_would_be_started(files: tuple[ManifestFile, ...]) -> None:
    changed = copy.deepcopy(files)
    items = [item for file in changed for item in file.objects]
    (arm,) = [one for one in items if (one["kind"], one["metadata"]["name"]) == ("Deployment", "qwen-vllm")]
    (rendered_server,) = arm["spec"]["template"]["spec"]["containers"]
    rendered_server["command"].append("--disable-log-stats")
    rendered_server["readinessProbe"]["httpGet"]["path"] = "/ready"
    server = containers(changed)["qwen-vllm"]
    assert server.command[-1] == "--disable-log-stats"
    assert server.health == "/ready"


@pytest.mark.slow
def test_an_experiment_that_cannot_be_rendered_gives_one_line(reference: Experiment, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with pytest.raises(Refusal, match=r"^rendering failed: .+"):
        rendered(REFERENCE, reference, blocked)
