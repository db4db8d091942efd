"""The verbs on a real control plane: a run from the stacks to the records, a Job that fails, status, a promotion.

AWS is moto, and kubelets and Jobs' programs are played; API server, controllers, scheduler, device allocator and kubectl
are real.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdk8s_charts.manifests import read
from experiment.finding import Refusal, State
from experiment.model import Serve
from experiment.naming import NAME
from operations import promotion, verification
from operations.__main__ import main
from operations.cloud.aws import Aws
from operations.cloud.kubernetes import Kubernetes
from operations.running import job_control
from operations.running.steps import carry_out
from tests.apiserver.kubectl import wait_until
from tests.apiserver.objects import filled
from tests.apiserver.real_world import RealWorld
from tests.conftest import ROOT
from tests.operations.api_server import ApiServer
from tests.operations.clients import shared_client
from tests.operations.conftest import account, aws, credentials  # noqa: F401 # fixtures
from tests.operations.driver import Driver, interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiment import Arm, Experiment
    from tests.apiserver.control_plane import ControlPlane


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
    """`scripts/run` on that world."""
    kubectl = world.plane.kubectl
    cluster = Kubernetes(
        kubectl=Path(kubectl.program), kubeconfig=Path(kubectl.config), namespace=world.experiment.name
    )
    return Driver(world, aws, cluster, tmp_path / "results")


def _deployments(world: RealWorld) -> dict[str, Any]:
    found = world.plane.kubectl.items("deployments", world.experiment.name)
    return {item["metadata"]["name"]: item for item in found}


def test_a_run_goes_from_the_stacks_to_the_records_and_back_to_no_node(
    driver: Driver, world: RealWorld
) -> None:
    standing: set[str] = set()
    world.on_tick.append(
        lambda: standing.update(
            name for name, item in _deployments(world).items() if item["status"].get("readyReplicas")
        )
    )
    answer = driver.run()
    assert standing == {arm.name for arm in world.experiment.arms}
    assert world.nodes == 0
    assert json.loads((driver.out / "summary.json").read_text())["by"].startswith("qwen-llmperf-")
    assert [item["spec"]["replicas"] for item in _deployments(world).values()] == [0, 0]
    assert driver.store.current() is None
    assert f"runs/{answer.id}/run.json" in world.stored("results")


def test_killed_around_compiling_raising_and_measuring_it_goes_on_to_the_same_end(
    driver: Driver, world: RealWorld
) -> None:
    for step in ("compile", "arms-1", "benchmark-1"):
        for when in ("begins", "ends"):
            context = driver.context()
            interrupt(context, step, when)
            with pytest.raises(KeyboardInterrupt):
                carry_out(context, keep_nodes=False)
    driver.run()
    assert world.nodes == 0
    assert len([key for key in world.stored("results") if key.endswith("summary.json")]) == 1


def _compiling(world: RealWorld, arm: Arm) -> str:
    found = filled(item for file in world.files for item in file.objects)
    return str(job_control.compiling(found, arm)["metadata"]["name"])


def test_a_compile_that_no_retry_would_fix_stops_the_run_and_is_made_anew_by_the_next(
    driver: Driver, world: RealWorld
) -> None:
    speculating = world.experiment.arms[1]
    job = _compiling(world, speculating)
    world.failing_jobs = {job: 2}
    with pytest.raises(Refusal, match=rf"job {job} failed \(PodFailurePolicy: .*exit code 2"):
        driver.run()
    assert world.nodes == 0
    assert len(world.stored("artifacts")) == 1
    world.failing_jobs = {}
    driver.run()
    assert len(world.stored("artifacts")) == 2


@pytest.fixture
def raised(world: RealWorld, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> RealWorld:
    """Both arms stand, as a run with --keep-nodes leaves them; verbs reach the cluster with EKS's own tokens."""
    if not world.plane.endpoint:
        pytest.skip("this cluster does not take the tokens of EKS")
    monkeypatch.setattr(Aws, "_boto_client", lambda _self, service: shared_client(service))
    assert main(["scale", "1", "--hours", "1"]) == 0
    for arm in world.experiment.arms:
        driver.cluster.scale(arm.name, 1)
        world._finish(_compiling(world, arm))
    _until(world, lambda: all(item["status"].get("readyReplicas") for item in _deployments(world).values()))
    return world


def _until(world: RealWorld, condition: Callable[[], bool]) -> None:
    def looked() -> bool:
        world.tick()
        return condition()

    wait_until(looked, "the cluster has settled")


def test_status_shows_nodes_claims_and_arms_as_the_cluster_has_them(
    raised: RealWorld, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert main(["status", "--json"]) == 0
    page = json.loads(capfd.readouterr().out)
    assert sorted((node["name"], node["role"], node["ready"]) for node in page["cluster"]["nodes"]) == [
        ("system-0", "system", True),
        ("system-1", "system", True),
        ("trn2-0", "neuron", True),
    ]
    held = sorted(claim["state"] for claim in page["cluster"]["claims"])
    halves = (range(8), range(8, 16))
    assert held == [
        f"allocated: {', '.join(f'neuron-device-{number}' for number in half)} on trn2-0" for half in halves
    ]
    assert [(arm["replicas"], arm["ready"], arm["trouble"]) for arm in page["cluster"]["arms"]] == [
        (1, 1, None)
    ] * 2


def test_a_promotion_lowers_the_loser_and_keeps_the_winner(raised: RealWorld, aws: Aws) -> None:  # noqa: F811
    serve = Serve(arm="qwen-sd-vllm", replicas=1, max_replicas=1, certificate_arn=None, client_cidrs=())
    changes = promotion.raise_winner(raised.experiment, serve, aws)
    assert changes == [
        {"arm": "qwen-vllm", "before": 1, "after": 0},
        {"arm": "qwen-sd-vllm", "before": 1, "after": 1},
    ]
    kubectl, where = raised.plane.kubectl, raised.experiment.name
    _until(raised, lambda: len(kubectl.items("pods", where)) == 1)
    (pod,) = kubectl.items("pods", where)
    assert pod["metadata"]["labels"][NAME] == "qwen-sd-vllm"


def test_verify_reads_nodes_and_devices_in_the_form_in_which_a_server_keeps_them(
    raised: RealWorld, driver: Driver
) -> None:
    experiment, cluster = raised.experiment, driver.cluster
    nodes = cluster.list("node")
    found = [
        *verification.device_class(experiment, cluster.list("deviceclass"), nodes),
        *verification.device_attributes(experiment, cluster.list("resourceslice"), nodes),
    ]
    assert found
    assert [one for one in found if one.state is not State.FINE] == []


def test_who_is_no_administrator_of_the_cluster_is_told_so_in_one_line(
    raised: RealWorld, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAI44QH8DHBEXAMPLE")
    capfd.readouterr()
    assert main(["kubectl", "get", "pods"]) == 1
    assert main(["status", "--json"]) == 3
    out, err = capfd.readouterr()
    assert json.loads(out)["cluster"] is None
    (line,) = (line for line in err.splitlines() if line.startswith("status: "))
    assert "the cluster does not know this identity; write its ARN into admins of deployment.yaml" in line
