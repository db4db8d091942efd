"""The first native arm serves before another is compiled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.operations.driver import Driver, driver_of, interrupt
from trnspec.experiment import load
from trnspec.experiment.compilation import native_arms
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.running.state import MEASURING
from trnspec.operations.running.steps import run_to_end, steps

PLAIN, DRAFTED = "llama-vllm", "llama-eagle3"


@pytest.fixture
def native(aws: Aws, tmp_path: Path) -> Driver:
    """Two native arms, and what they do at each tick."""
    return driver_of(load(ROOT / "experiments" / "llama-3.3-70b-native.yaml"), aws, tmp_path)


def _history(driver: Driver) -> list[tuple[set[str], tuple[int, ...]]]:
    """The compile Jobs that were created and the replicas of the arms, whenever one of them changes."""
    seen: list[tuple[set[str], tuple[int, ...]]] = []

    def look() -> None:
        jobs = {job["metadata"]["name"].rpartition("-")[0] for job in driver.jobs("compile-")}
        now = jobs, tuple(one["spec"]["replicas"] for one in driver.world.api.of("deployments"))
        if now not in seen[-1:]:
            seen.append(now)

    driver.world.on_tick.append(look)
    return seen


def test_the_first_native_arm_answers_and_is_down_again_before_another_is_compiled(native: Driver) -> None:
    seen = _history(native)
    native.run()
    shown = [(len(jobs), *replicas) for jobs, replicas in seen]
    assert shown == [(0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 1)]
    assert any(line.endswith(f"{PLAIN}: started and answered") for line in native.said)
    native.said.clear()
    native.clock.time = native.clock.time.replace(day=2)
    native.run()
    assert any("skipped: every other native arm is compiled" in line for line in native.said)


def test_a_first_arm_that_does_not_serve_ends_the_run_before_more_is_compiled(native: Driver) -> None:
    native.world.unplaced = {PLAIN: "0/2 nodes are available: 2 Insufficient aws.amazon.com/neuron"}
    assert re.match(rf"arm {PLAIN} starts: pod {PLAIN}-pod is not scheduled", native.line())
    assert "stopped at first; no Trn2 node bills" in native.said[-1]
    assert (len(native.jobs("compile-")), len(native.artifacts()), native.world.nodes) == (1, 1, 0)
    assert [one["spec"]["replicas"] for one in native.world.api.of("deployments")] == [0, 0]
    native.world.unplaced = {}
    native.run()
    assert len(native.artifacts()) == 2


@pytest.mark.parametrize("when", ["begins", "ends", "up"])
def test_interrupted_anywhere_the_first_arm_is_asked_again_and_nothing_stays_up(
    native: Driver, when: str
) -> None:
    run = native.take_run()

    def up() -> None:
        if any(one["spec"]["replicas"] for one in native.world.api.of("deployments")):
            native.world.on_tick.clear()
            raise KeyboardInterrupt

    native.world.on_tick.append(up) if when == "up" else interrupt(run, "first", when)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(run, keep_nodes=False)
    assert len(native.artifacts()) == (0 if when == "begins" else 1)
    seen = _history(native)
    native.run()
    compiled_beside_an_arm = [one for one in seen if len(one[0]) == 2 and sum(one[1]) == 1]
    assert compiled_beside_an_arm == []
    assert len(native.artifacts()) == 2
    assert "first".startswith(MEASURING), "no deployment lowers it meanwhile"


def test_one_native_arm_and_other_runtimes_are_compiled_as_before(native: Driver, driver: Driver) -> None:
    def names(one: Driver) -> list[Any]:
        return [step.name for step in steps(one.world.experiment)]

    assert names(native)[3:5] == ["verify", "first"]
    assert "first" not in names(driver)
    assert native_arms(driver.world.experiment) == []
