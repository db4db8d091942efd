"""What the labs start is what the rendered Deployments say, read from the committed manifests."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from cdk8s_charts.manifests import ManifestFile, read
from cdk8s_charts.vllm_command import serve_argv, serve_environment
from core.findings import Refusal
from experiment import Experiment, load
from lab.programs import containers, mounted_plan, rendered
from tests.conftest import ROOT

TINY = ROOT / "experiments" / "lab-tiny.yaml"


@pytest.fixture(scope="module")
def tiny() -> Experiment:
    return load(TINY)


@pytest.fixture(scope="module")
def files(tiny: Experiment) -> tuple[ManifestFile, ...]:
    return read(tiny, ROOT / "manifests")


def test_every_arm_is_there_with_command_environment_and_port_and_the_plan_that_the_pod_mounts(
    tiny: Experiment, files: tuple[ManifestFile, ...]
) -> None:
    found = containers(files)
    assert found.keys() == {arm.name for arm in tiny.arms}
    plan = mounted_plan(files)
    assert [arm.name for arm in plan.arms] == [arm.name for arm in tiny.arms]
    assert [prompt.id for prompt in plan.prompts] == [prompt.id for prompt in tiny.prompts]
    for arm in tiny.arms:
        assert found[arm.name].command == tuple(serve_argv(arm))
        assert found[arm.name].environment == serve_environment(arm)
        assert found[arm.name].port == 8000
        assert found[arm.name].secrets == ()


def test_an_edited_deployment_is_what_would_be_started(files: tuple[ManifestFile, ...]) -> None:
    changed = copy.deepcopy(files)
    items = [item for file in changed for item in file.objects]
    (tiny,) = [one for one in items if (one["kind"], one["metadata"]["name"]) == ("Deployment", "tiny")]
    (rendered_server,) = tiny["spec"]["template"]["spec"]["containers"]
    rendered_server["command"].append("--disable-log-stats")
    rendered_server["env"].append({"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys"}}})
    rendered_server["readinessProbe"]["httpGet"]["path"] = "/ready"
    server = containers(changed)["tiny"]
    assert server.command[-1] == "--disable-log-stats"
    assert server.secrets == ("VLLM_API_KEY",)
    assert server.health == "/ready"
    assert (server.startup[:2], server.startup[-1]) == (("python3", "-c"), "lab/target")
    assert server.startup_s == 1800


def test_an_experiment_that_cannot_be_rendered_gives_one_line(tiny: Experiment, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with pytest.raises(Refusal, match=r"^rendering failed: .+"):
        rendered(TINY, tiny, blocked)
