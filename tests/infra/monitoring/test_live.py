"""A real Prometheus reads emulated arms and the benchmark, and every panel of the dashboard has something to show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiment import Experiment, load
from tests.conftest import ROOT
from tests.infra.monitoring.live import LAB, LAB_ARMS, Shown, emulated_arms, real_arms, show

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus: apt-get install prometheus"),
]

ENGINE = ROOT / ".lab" / "venv" / "bin" / "vllm"


@pytest.fixture(scope="module")
def shown(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    arms = tuple(arm.name for arm in experiment.served_arms)
    folder = tmp_path_factory.mktemp("live")
    return show(experiment, folder, emulated_arms, arms, requests=8, max_tokens=24, warmup=0)


def test_every_panel_shows_something(shown: Shown) -> None:
    empty = [
        f"{row}: {title}"
        for row, panels in shown.panels.items()
        for title, found in panels.items()
        if not found
    ]
    assert empty == []


def test_time_per_token_is_there_for_each_class_and_arm(shown: Shown, experiment: Experiment) -> None:
    found = shown.panels["At a glance"]["Time per output token, p50 (lower is better)"]
    cells = {(dict(labels)["class"], dict(labels)["arm"]) for labels in found}
    assert cells == {(name, arm.name) for name in experiment.classes for arm in experiment.served_arms}
    assert all(values[-1] > 0 for values in found.values()), found


def test_the_relabelling_of_the_monitors_names_arm_and_experiment(
    shown: Shown, experiment: Experiment
) -> None:
    seen = {labels["arm"] for labels in shown.targets["servers"].values()}
    assert seen == {arm.name for arm in experiment.served_arms}
    assert {labels["experiment"] for labels in shown.targets["servers"].values()} == {experiment.name}


def test_the_end_of_the_run_is_read_before_its_page_goes(shown: Shown) -> None:
    assert shown.active == (1.0, 0.0)


def test_prometheus_evaluates_every_rule_and_none_is_in_alarm(shown: Shown) -> None:
    assert len(shown.rules) == 6
    assert set(shown.rules.values()) == {"inactive"}


@pytest.mark.skipif(
    not ENGINE.exists(), reason="no vLLM: the lab's engine is not installed (scripts/lab does it)"
)
def test_the_same_of_a_real_vllm(tmp_path: Path) -> None:
    seen = show(load(LAB), tmp_path, real_arms(str(ENGINE)), LAB_ARMS, requests=3, max_tokens=24, warmup=0)
    empty = [
        f"{row}: {title}"
        for row, panels in seen.panels.items()
        for title, found in panels.items()
        if not found
    ]
    assert empty == []
    (as_counted,) = seen.panels["Servers"]["Tokens of a step as the server counts them"].values()
    assert as_counted[-1] > 1.5
