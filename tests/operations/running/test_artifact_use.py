"""Artifacts that servers cannot use, and what servers compile themselves."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cdk8s_charts.stores import UNUSABLE
from tests.conftest import ROOT
from tests.operations.driver import Driver, driver_of
from trnspec.benchmark.analyse.attachments import engines_in
from trnspec.experiment import load
from trnspec.experiment.naming import artifact_path
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.running.steps import run_to_end

ARM = "qwen-sd-vllm"


class _Refusing:
    """A world whose server of one arm refuses its artifact until it was compiled so often."""

    def __init__(self, driver: Driver, container: str, code: int, *, until: int) -> None:
        world = driver.world
        self.compiled, move, compiled = 0, world._move_deployment, world.compiled

        def count(name: str) -> None:
            self.compiled += name == ARM
            compiled(name)

        def refuse(deployment: dict[str, Any]) -> None:
            move(deployment)
            if deployment["metadata"]["name"] == ARM and deployment["spec"]["replicas"]:
                ended = {"name": container, "lastState": {"terminated": {"exitCode": code}}}
                refuses = self.compiled < until
                world._pod(ARM, initContainerStatuses=[ended] if refuses else [])
                world.api.logs[f"{ARM}-pod"] = "artifact 0a: model.pt is missing"
                deployment["status"] = {"readyReplicas": int(not refuses)}

        world.compiled, world._move_deployment = count, refuse  # pyrefly: ignore[method-assign]  # of this world alone


@pytest.mark.parametrize(("container", "code"), [("check-artifact", UNUSABLE), ("copy-artifact", 1)])
def test_an_artifact_that_no_server_can_use_is_compiled_once_more(
    driver: Driver, container: str, code: int
) -> None:
    refusing = _Refusing(driver, container, code, until=2)
    driver.run()
    assert refusing.compiled == 2
    (said,) = (line for line in driver.said if "it is compiled once more" in line)
    path = next(artifact_path(arm) for arm in driver.world.experiment.arms if arm.name == ARM)
    assert f"/{path}/ cannot be used: artifact 0a: model.pt is missing" in said
    assert f"{path}/COMPLETE" in driver.artifacts()


def test_it_is_not_compiled_for_ever(driver: Driver) -> None:
    refusing = _Refusing(driver, "check-artifact", UNUSABLE, until=9)
    line = driver.line()
    assert "although this run compiled it again" in line
    assert "aws s3 rm --recursive s3://" in line
    assert (refusing.compiled, driver.world.nodes) == (2, 0)


def test_a_run_that_is_killed_while_it_compiles_again_goes_on(driver: Driver) -> None:
    refusing = _Refusing(driver, "check-artifact", UNUSABLE, until=2)

    def stop() -> None:
        if driver.compiling() and any("once more" in line for line in driver.said):
            raise KeyboardInterrupt

    driver.world.on_tick.append(stop)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(driver.take_run(), keep_nodes=True)
    driver.world.on_tick.clear()
    driver.run()
    assert refusing.compiled == 2


def test_another_end_of_a_server_is_not_about_its_artifact(driver: Driver) -> None:
    refusing = _Refusing(driver, "check-artifact", 1, until=9)
    assert "for " in driver.line()
    assert refusing.compiled == 1


def test_what_a_native_server_compiled_itself_is_told_and_goes_into_the_report(
    aws: Aws, tmp_path: Path
) -> None:
    driver = driver_of(load(ROOT / "experiments/llama-3.3-70b-native.yaml"), aws, tmp_path)
    plain, drafting = (arm.name for arm in driver.world.experiment.arms)
    said = {
        plain: ["INFO up", json.dumps({"compiled_at_serving": 0})],
        drafting: ['{"compiled_at_serving": 3}', "INFO"],
    }

    def log() -> None:
        for name, lines in said.items():
            driver.world._pod(name)
            driver.world.api.logs[f"{name}-pod"] = "\n".join(lines)

    driver.world.on_tick.append(log)
    driver.run()
    assert any(f"{drafting}: its server compiled 3 graphs, which s3://" in line for line in driver.said)
    found = engines_in(driver.out, (plain, drafting))
    assert {arm: one.compiled_at_serving for arm, one in found.items()} == {drafting: 3}
    said[plain] = []
    log()
    driver.clock.time += timedelta(days=1)
    driver.run()
    assert any(f"{plain}: its server did not say" in line for line in driver.said)
