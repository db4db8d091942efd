"""The lab's experiment goes through the same charts; without devices there is nothing to claim, fetch, compile or mount."""

from __future__ import annotations

import pytest

from cdk8s_charts.manifests import ManifestFile
from tests.cdk8s_charts.conftest import EXPERIMENTS, of_kind, pods

Renders = dict[str, tuple[ManifestFile, ...]]
TINY = "lab-tiny"


def test_every_arm_has_the_objects_that_an_arm_has(renders: Renders) -> None:
    arms = {arm.name for arm in EXPERIMENTS[TINY].arms}
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        assert of_kind(renders[TINY], kind).keys() == arms


@pytest.mark.parametrize(
    "kind", ["Job", "ResourceClaimTemplate", "PersistentVolume", "PersistentVolumeClaim"]
)
def test_what_follows_from_devices_is_absent(renders: Renders, kind: str) -> None:
    assert of_kind(renders["qwen3-32b"], kind)
    assert not of_kind(renders[TINY], kind)


def test_servers_ask_for_no_device_and_no_node_that_has_some(renders: Renders) -> None:
    for name, pod in pods(renders[TINY]).items():
        if name.startswith("Deployment/"):
            assert not {"resourceClaims", "nodeSelector", "tolerations", "initContainers"} & pod.keys(), name
            assert [volume["name"] for volume in pod["volumes"]] == ["shm"], name


def test_the_benchmark_is_the_same_pod_with_the_same_plan(renders: Renders) -> None:
    (tiny,) = of_kind(renders[TINY], "CronJob").values()
    reference = of_kind(renders["qwen3-32b"], "CronJob")["qwen-llmperf"]
    ours, theirs = (
        job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["initContainers"] for job in (tiny, reference)
    )
    assert [container["name"] for container in ours] == [container["name"] for container in theirs]
