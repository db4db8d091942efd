"""`run --until compile`, on moto and a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.operations.api_server import ApiServer
from tests.operations.driver import Driver, interrupt
from tests.operations.world import World
from trnspec.core.findings import Refusal
from trnspec.experiment import Experiment
from trnspec.experiment.naming import artifact_path
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.running.steps import all_compiled, run_until_compile, steps_until_compile


def test_every_artifact_is_made_by_the_steps_up_to_there_and_no_node_is_left(driver: Driver) -> None:
    run_until_compile(driver.take_run(), fresh=True)
    taken = [line.partition(" ")[2] for line in driver.said if line.startswith("==>")]
    titles = [step.title for step in steps_until_compile(driver.world.experiment)]
    assert taken == [f"{number}/{len(titles)} {title}" for number, title in enumerate(titles, start=1)]
    assert len(driver.artifacts()) == len(driver.world.experiment.arms)
    assert (driver.world.nodes, driver.verified, driver.store.current()) == (0, 1, None)
    assert [item["spec"]["replicas"] for item in driver.world.api.of("deployments")] == [0, 0]


def _failing(driver: Driver) -> None:
    driver.world.failing = {"compile-": "out of memory"}
    with pytest.raises(Refusal, match="out of memory"):
        run_until_compile(driver.take_run(), fresh=True)


def _interrupted(driver: Driver) -> None:
    run = driver.take_run()
    interrupt(run, "compile", "begins")
    with pytest.raises(KeyboardInterrupt):
        run_until_compile(run, fresh=True)


@pytest.mark.parametrize(
    "broken_off", [_failing, _interrupted, lambda driver: run_until_compile(driver.take_run(), fresh=False)]
)
def test_a_compilation_that_fails_is_interrupted_or_is_part_of_a_run_lets_nodes_and_run_go(
    broken_off: Callable[[Driver], object], driver: Driver
) -> None:
    broken_off(driver)
    held = driver.store.current()
    assert (driver.world.nodes, held is not None) == (0, True), "the run stays to be finished"
    assert broken_off is _interrupted or (held and held.state.owner) == ""


def test_where_every_artifact_is_there_no_node_starts_and_none_is_let_go(
    experiment: Experiment, account: None, aws: Aws
) -> None:
    world = World(experiment, ApiServer())
    world.deploy()
    said: list[str] = []
    assert not all_compiled(experiment, aws, said.append)
    for arm in experiment.arms:
        world.compiled(arm.name)
    assert all_compiled(experiment, aws, said.append)
    assert world.stored("results") == {}, "no run was begun"
    name = f"qwen3-32b-artifacts-{aws.account}-us-east-2"
    stale_tag = {"TagSet": [{"Key": "lifecycle", "Value": "stale"}]}
    key = f"{artifact_path(experiment.baseline)}/COMPLETE"
    world.client("s3").put_object_tagging(Bucket=name, Key=key, Tagging=stale_tag)
    assert all_compiled(experiment, aws, said.append)
    assert world.client("s3").get_object_tagging(Bucket=name, Key=key)["TagSet"] == []
    assert len(said) == 1
