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


def empty(shown: Shown) -> list[str]:
    """Panels that show nothing."""
    rows = shown.panels.items()
    return [f"{row}: {title}" for row, panels in rows for title, found in panels.items() if not found]


def test_every_panel_shows_something_of_each_arm_and_every_rule_is_silent(
    experiment: Experiment, tmp_path: Path
) -> None:
    arms = tuple(arm.name for arm in experiment.served_arms)
    shown = show(experiment, tmp_path, emulated_arms, arms, requests=8, max_tokens=24, warmup=0)
    assert empty(shown) == []
    found = shown.panels["At a glance"]["Time per output token, p50 (lower is better)"]
    cells = {(dict(labels)["class"], dict(labels)["arm"]) for labels in found}
    assert cells == {(name, arm) for name in experiment.classes for arm in arms}
    assert all(values[-1] > 0 for values in found.values()), found
    servers = shown.targets["servers"].values()
    assert {(one["arm"], one["experiment"]) for one in servers} == {(arm, experiment.name) for arm in arms}
    assert shown.active == (1.0, 0.0), "the end of the run is read before its page goes"
    assert len(shown.rules) == 6
    assert set(shown.rules.values()) == {"inactive"}


@pytest.mark.skipif(
    not ENGINE.exists(), reason="no vLLM: the lab's engine is not installed (scripts/lab does it)"
)
def test_the_same_of_a_real_vllm(tmp_path: Path) -> None:
    seen = show(load(LAB), tmp_path, real_arms(str(ENGINE)), LAB_ARMS, requests=3, max_tokens=24, warmup=0)
    assert empty(seen) == []
    (as_counted,) = seen.panels["Servers"]["Tokens of a step as the server counts them"].values()
    assert as_counted[-1] > 1.5
