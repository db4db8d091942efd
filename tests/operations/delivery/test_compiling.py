"""The pipeline's compilation on moto and an API server, with the world that runs are driven on."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment import Experiment
from operations.aws import Aws
from operations.delivery.compiling import compile_artifacts
from operations.errors import OperationsError
from operations.kubernetes import Kubernetes
from tests.operations.api_server import ApiServer
from tests.operations.running.test_run import Driver
from tests.operations.world import World


@pytest.fixture
def driver(experiment: Experiment, api: ApiServer, aws: Aws, cluster: Kubernetes, tmp_path: Path) -> Driver:
    return Driver(World(experiment, api), aws, cluster, tmp_path / "results")


def test_every_artifact_is_made_and_no_node_is_left(driver: Driver) -> None:
    compile_artifacts(driver.context(), fresh=True)
    markers = [key for key in driver.world.stored("artifacts") if key.endswith("/COMPLETE")]
    assert len(markers) == len(driver.world.experiment.arms)
    assert driver.world.nodes == 0
    assert driver.verified == 1
    assert driver.store.current() is None
    assert [item["spec"]["replicas"] for item in driver.world.api.of("deployments")] == [0, 0]


def test_a_compilation_that_fails_leaves_no_node_either(driver: Driver) -> None:
    driver.world.failing["compile-"] = "out of memory"
    with pytest.raises(OperationsError):
        compile_artifacts(driver.context(), fresh=True)
    assert driver.world.nodes == 0


def test_a_run_that_somebody_left_unfinished_stays_to_be_finished(driver: Driver) -> None:
    driver.context()
    compile_artifacts(driver.context(), fresh=False)
    held = driver.store.current()
    assert held is not None
    assert held.state.owner == ""
    driver.run()
    assert driver.store.current() is None
