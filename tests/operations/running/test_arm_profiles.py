"""`run --profile`: each arm once, alone, after it was measured, and what opens its profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiment.catalogue.runtimes import RUNTIMES
from operations.running.context import Context, StepError
from operations.running.measuring import viewer
from operations.running.steps import carry_out, steps
from tests.operations.driver import Driver


def _profiled(driver: Driver) -> None:
    context = driver.context()
    context.profile = True
    carry_out(context, keep_nodes=False)


def test_each_arm_is_profiled_alone_after_the_benchmark_and_the_command_that_opens_it_is_said(
    driver: Driver,
) -> None:
    names = [step.name for step in steps(driver.world.experiment, profile=True)]
    assert names.index("benchmark-1") < names.index("profile") < names.index("off")
    _profiled(driver)
    assert driver.world.nodes == 0
    for number, arm in enumerate(driver.world.experiment.arms):
        folder = driver.out / "profiles" / arm.name
        assert (folder / "i-1_pid_2" / "profile_nc_0.ntff").exists()
        assert (folder / "neuron-ls.json").exists()
        (said,) = (line for line in driver.said if f"profile of {arm.name}:" in line)
        assert said.endswith(f"2 files; open it with neuron-profile view -d {folder}")
        assert driver.jobs("profile-")[number]["metadata"]["name"].endswith(f"-{number}")


def test_an_arm_that_cannot_be_profiled_is_a_warning_beside_the_answer(driver: Driver) -> None:
    driver.world.failing = {"profile-": "no profile: the server ended with exit 1; its log says why"}
    _profiled(driver)
    warnings = [line for line in driver.said if "warning" in line]
    assert len(warnings) == len(driver.world.experiment.arms)
    assert "qwen-vllm has no profile: job profile-" in warnings[0]
    assert "the server ended with exit 1" in warnings[0]
    assert driver.reports == [driver.out]
    assert driver.world.nodes == 0


def test_nodes_that_were_taken_away_end_the_profiles_and_not_the_report(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.world.failing = {"profile-": "no profile: the pod is gone"}
    need_nodes = Context.need_nodes

    def taken(context: Context) -> object:
        if driver.jobs("profile-"):
            raise StepError("its schedule set it to 0 nodes")
        return need_nodes(context)

    monkeypatch.setattr(Context, "need_nodes", taken)
    _profiled(driver)
    assert len(driver.jobs("profile-")) == 1
    assert "    warning: no more profiles: its schedule set it to 0 nodes" in driver.said
    assert driver.reports == [driver.out]
    assert driver.world.nodes == 0


def test_without_the_option_nothing_is_profiled(driver: Driver) -> None:
    driver.run()
    assert driver.jobs("profile-") == []
    assert not (driver.out / "profiles").exists()


def test_newer_sdks_have_neuron_explorer(driver: Driver) -> None:
    arm = replace(driver.world.experiment.baseline, runtime=RUNTIMES["native-vllm-0.29"])
    assert viewer(arm, Path("results/a b")) == "neuron-explorer view -d 'results/a b'"
