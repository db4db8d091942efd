"""`run` on a real control plane: from the stacks to the records, through kills, and a Job that fails.

AWS is moto, and kubelets and Jobs' programs are played; API server, controllers, scheduler, device allocator and kubectl
are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.manifests import read
from core.findings import Refusal
from experiment import Experiment
from experiment.naming import weights_path
from operations.cloud import access
from operations.cloud.aws import Aws
from operations.cloud.kubernetes import Kubernetes
from operations.running import job_control
from operations.running.steps import carry_out
from tests.apiserver.control_plane import ControlPlane
from tests.apiserver.kubectl import Kubectl
from tests.apiserver.objects import JOB_LABEL
from tests.apiserver.real_world import RealWorld
from tests.conftest import ROOT
from tests.operations.api_server import ApiServer, serving
from tests.operations.conftest import account, aws, credentials, kubeconfig  # noqa: F401 # fixtures
from tests.operations.driver import Driver, interrupt
from tests.operations.world import World


@pytest.fixture
def experiment(reference: Experiment) -> Experiment:
    """The reference experiment, whose committed manifests are applied."""
    return reference


@pytest.fixture
def world(scheduling: ControlPlane, experiment: Experiment, account: None) -> Iterator[RealWorld]:  # noqa: F811
    world = RealWorld(experiment, ApiServer(), plane=scheduling, files=read(experiment, ROOT / "manifests"))
    yield world
    world.leave()


@pytest.fixture
def driver(world: RealWorld, aws: Aws, tmp_path: Path) -> Driver:  # noqa: F811
    """`./trnspec run` on that world."""
    kubectl = world.plane.kubectl
    cluster = Kubernetes(
        kubectl=Path(kubectl.program), kubeconfig=Path(kubectl.config), namespace=world.experiment.name
    )
    return Driver(world, aws, cluster, tmp_path / "results")


def test_a_played_job_leaves_its_marker_on_the_small_server_too(
    experiment: Experiment,
    account: None,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Kubelets, Jobs' programs and the way to them through kubectl, without a control plane."""
    with serving(ApiServer()) as api:
        files = read(experiment, ROOT / "manifests")
        World(experiment, api, files=files).deploy()
        (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig(api.url)), encoding="utf-8")
        plane = ControlPlane(Kubectl(str(access.kubectl()), str(tmp_path / "kubeconfig")), frozenset())
        world = RealWorld(experiment, ApiServer(), plane=plane, files=files)
        weights = experiment.weights[0]
        job = job_control.fetching(world.filled(files), weights)["metadata"]["name"]
        spec = {"nodeName": "system-0", "containers": [{"name": "only", "image": "a:1"}]}
        for name, labels in (("of-the-job", {JOB_LABEL: job}), ("of-an-arm", {})):
            pod = {"metadata": {"labels": labels}, "spec": spec, "status": {"phase": "Pending"}}
            api.put("pods", name, pod, namespace=experiment.name)
        world.play()
        phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in api.of("pods")}
        assert phases == {"of-the-job": "Succeeded", "of-an-arm": "Running"}
        assert [*world.stored("checkpoints")] == [f"{weights_path(weights)}/COMPLETE"]


def _deployments(world: RealWorld) -> dict[str, Any]:
    found = world.plane.kubectl.items("deployments", world.experiment.name)
    return {item["metadata"]["name"]: item for item in found}


def test_killed_around_compiling_raising_and_measuring_a_run_goes_on_to_the_records_and_to_no_node(
    driver: Driver, world: RealWorld
) -> None:
    standing: set[str] = set()
    world.on_tick.append(
        lambda: standing.update(
            name for name, item in _deployments(world).items() if item["status"].get("readyReplicas")
        )
    )
    for step in ("compile", "arms-1", "benchmark-1"):
        for when in ("begins", "ends"):
            context = driver.context()
            interrupt(context, step, when)
            with pytest.raises(KeyboardInterrupt):
                carry_out(context, keep_nodes=False)
    answer = driver.run()
    assert standing == {arm.name for arm in world.experiment.arms}
    assert world.nodes == 0
    assert json.loads((driver.out / "summary.json").read_text())["by"].startswith("qwen-llmperf-")
    assert [item["spec"]["replicas"] for item in _deployments(world).values()] == [0, 0]
    assert driver.store.current() is None
    assert f"runs/{answer['id']}/run.json" in world.stored("results")
    assert len([key for key in world.stored("results") if key.endswith("summary.json")]) == 1


def test_a_compile_that_no_retry_would_fix_stops_the_run_and_is_made_again_by_the_next(
    driver: Driver, world: RealWorld
) -> None:
    speculating = world.experiment.arms[1]
    job = str(job_control.compiling(world.filled(world.files), speculating)["metadata"]["name"])
    world.failing_jobs = {job: 2}
    with pytest.raises(Refusal, match=rf"job {job} failed \(PodFailurePolicy: .*exit code 2"):
        driver.run()
    assert world.nodes == 0
    assert len(driver.artifacts()) == 1
    world.failing_jobs = {}
    driver.run()
    assert len(driver.artifacts()) == 2
