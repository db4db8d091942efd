"""Pods that can never start end their step within minutes with the remedy that fits; what passes by itself is waited for."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.operations.driver import Driver
from trnspec.experiment import Experiment, naming
from trnspec.operations.cloud.pod_trouble import trouble, troubles

pytestmark = pytest.mark.slow


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {
        "containerStatuses": [{"name": "only", "state": {"waiting": {"reason": reason, "message": message}}}]
    }


def _unplaced(message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


PULL = 'failed to pull and unpack image "x": not found'
FULL = "failed to extract layer: write /var/lib/containerd/x: no space left on device"
MOUNT = 'MountVolume.SetUp failed for volume "artifacts": rpc error: Access Denied'
STARTS = _waiting("ContainerCreating")
NEVER = {
    "image": (_waiting("ErrImagePull", PULL), None, "cannot pull its image .*not found.*trnspec preflight"),
    "image's name": (_waiting("InvalidImageName", "couldn't parse"), None, "cannot pull its image"),
    "disk": (_waiting("ErrImagePull", FULL), None, "no space left on device.*empty Trn2 node"),
    "secret": (
        _waiting("CreateContainerConfigError", 'secret "hf-token" not found'),
        None,
        "create the Secret",
    ),
    "config map": (
        _waiting("CreateContainerConfigError", 'configmap "plan" not found'),
        None,
        "deploy the workloads",
    ),
    "container": (
        _waiting("CreateContainerError", "no command specified"),
        None,
        "fix what it names, deploy",
    ),
    "claim": (_unplaced("0/3 nodes are available: 1 cannot allocate all claims"), None, "device-plugin"),
    "room": (_unplaced("0/3 nodes are available: 1 Insufficient memory"), None, "another pod holds"),
    "template": ({}, ("FailedResourceClaimCreation", 'claim template "x" not found'), "deploy the workloads"),
    "mount": (STARTS, ("FailedMount", MOUNT), "Access Denied.*trnspec verify.*mounts-readable"),
    "devices": (STARTS, ("FailedPrepareDynamicResources", "not registered"), "daemons-ready"),
}


def _stop(driver: Driver, prefix: str) -> tuple[str, timedelta]:
    """The line with which a run ends whose Job cannot start, and how long after the Job was created."""
    seen: list[datetime] = []
    driver.world.on_tick.append(lambda: seen.append(driver.clock.now()) if driver.jobs(prefix) else None)
    line = driver.line()
    return line, seen[-1] - seen[0]


@pytest.mark.parametrize("prefix", ["compile-", "fetch-"])
@pytest.mark.parametrize("cause", NEVER)
def test_a_pod_that_can_never_start_ends_its_step_within_minutes_and_a_later_run_goes_on(
    cause: str, prefix: str, driver: Driver
) -> None:
    status, event, says = NEVER[cause]
    driver.world.stuck[prefix] = status, event
    line, after = _stop(driver, prefix)
    assert (re.search(says, line) is not None, "\n" in line, driver.world.nodes) == (True, False, 0), line
    assert after <= timedelta(minutes=6)
    driver.world.stuck.clear()
    driver.world.on_tick.clear()
    driver.run()


def test_an_image_that_cannot_be_pulled_ends_the_run_before_a_node_is_paid_for(driver: Driver) -> None:
    """Memory that a system node lacks is only a warning: a Trn2 node has it."""
    driver.world.stuck["arguments-"] = NEVER["image"][:2]
    asked: list[int] = []
    driver.world.on_tick.append(lambda: asked.append(driver.world.nodes))
    line, after = _stop(driver, "arguments-")
    assert "cannot pull its image" in line
    assert (after <= timedelta(minutes=6), max(asked)) == (True, 0)
    driver.world.on_tick.clear()
    driver.world.stuck = {"arguments-": NEVER["room"][:2]}
    driver.run()
    assert any("cannot be asked here" in said for said in driver.said)


def test_an_arm_that_can_never_start_ends_the_run_within_minutes(driver: Driver) -> None:
    driver.world.stuck["qwen-sd-vllm"] = NEVER["mount"][:2]
    begun = driver.clock.now()
    line = driver.line()
    assert line.startswith("arm qwen-sd-vllm starts: pod qwen-sd-vllm-pod cannot start: MountVolume.SetUp")
    assert (driver.world.nodes, driver.clock.now() - begun < timedelta(minutes=12)) == (0, True)


def test_a_job_whose_pod_is_refused_ends_its_step_within_minutes(driver: Driver) -> None:
    """A quota that allows one measuring pod is waited for; a service account that does not exist is not."""
    world, name = driver.world, next(iter(driver.files[0].objects))["metadata"]["name"]
    why = f'pods "{name}-" is forbidden: error looking up service account x/fetch: serviceaccount "fetch" not found'
    work = world._move_job

    def refused(job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        world.event("Job", name, "FailedCreate", why) if name.startswith("fetch-") else work(job)

    world._move_job = refused  # pyrefly: ignore[method-assign]  # of this world alone
    line, after = _stop(driver, "fetch-")
    assert "serviceaccount" in line
    assert "deploy the workloads" in line
    assert after <= timedelta(minutes=6)
    quota = [{"metadata": {"name": "e", "namespace": "x"}, "reason": "FailedCreate", "message": "exceeded quota: one-run",
              "involvedObject": {"kind": "Job", "name": "b"}}]  # fmt: skip
    assert [one.lasting for one in troubles(driver.world.experiment, [], "b", quota)] == [False]


PASSING = {
    "a registry that fails for four minutes": (_waiting("ErrImagePull", PULL), None, 16),
    "an image that is pulled for half an hour after a volume was not there at first": (
        STARTS,
        ("Pulling", "image"),
        120,
    ),
    "a node that does not take the pod yet": (
        _unplaced("1 node(s) had untolerated taint not-ready"),
        None,
        40,
    ),
}


@pytest.mark.parametrize("cause", PASSING)
def test_what_passes_by_itself_is_waited_for(cause: str, driver: Driver) -> None:
    status, event, ticks = PASSING[cause]
    world = driver.world
    world.stuck["compile-"] = status, event
    waited: list[int] = []

    def tick() -> None:
        for job in driver.compiling():
            waited.append(1)
            if event:
                world.event("Pod", f"{job['metadata']['name']}-pod", "FailedMount", MOUNT, minutes_ago=1)
        if len(waited) >= 2 * ticks:  # two Jobs
            world.stuck.clear()

    world.on_tick.append(tick)
    driver.run()
    assert len(driver.artifacts()) == 2


def test_a_pod_without_room_waits_for_its_turn_while_another_of_its_step_works(driver: Driver) -> None:
    world, waited = driver.world, list[int]()
    (first, *_) = world.experiment.weights
    world.stuck[f"{naming.fetch_job(first)}"] = NEVER["room"][:2]

    def tick() -> None:
        if driver.jobs("fetch-"):
            waited.append(1)
            other = {"metadata": {"labels": {naming.STEP: "fetch"}}, "spec": {"nodeName": "system-0"}}
            world.api.put("pods", "at-work", {**other, "status": {"phase": "Running"}}, namespace="qwen3-32b")
        if len(waited) == 60:
            world.stuck.clear()

    world.on_tick.append(tick)
    driver.run()
    assert len(waited) >= 60, "a quarter of an hour"


def test_several_reasons_are_one_line_and_what_lasts_is_first(experiment: Experiment) -> None:
    labels = {"labels": {"job-name": "a"}, "namespace": "qwen3-32b"}
    killed = {"name": "c", "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    pods = [
        {"metadata": {"name": "a-1", **labels}, "status": {"containerStatuses": [killed]}},
        {"metadata": {"name": "a-2", **labels}, "status": _waiting("ErrImagePull", PULL)},
        {"metadata": {"name": "a-3", **labels}, "status": _waiting("ErrImagePull", FULL)},
    ]
    line = trouble(experiment, pods, "a")
    assert line.startswith("pod a-2 cannot pull its image")
    assert line.endswith(f"; also pod a-3 cannot start: {FULL}; also pod a-1, container c, ran out of memory")
