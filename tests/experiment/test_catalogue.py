"""What the catalogue says of runtimes, heads, instances and prices, against what they must agree on."""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING

import pytest

from experiment import Experiment, cost, load
from experiment.__main__ import main
from experiment.catalogue.instances import INSTANCES
from experiment.catalogue.models import MODELS
from experiment.catalogue.prices import TRN2_ON_DEMAND
from experiment.catalogue.runtimes import MODES, RUNTIMES, Runtime
from experiment.placement import pod_share
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=lambda runtime: runtime.name)
def test_a_runtime_answers_for_every_mode(runtime: Runtime) -> None:
    assert tuple(runtime.modes) == MODES
    for mode in runtime.modes.values():
        assert mode.architectures or mode.reason
        assert mode.architectures <= runtime.architectures
    assert runtime.instances <= INSTANCES.keys()
    assert runtime.lab_only == (runtime.drivers is None)


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=lambda runtime: runtime.name)
def test_an_image_of_a_cluster_is_pinned_by_its_full_tag(runtime: Runtime) -> None:
    if not runtime.lab_only:
        tag = runtime.image.rsplit(":", 1)[-1]
        assert tag.startswith(runtime.vllm)
        assert f"sdk{runtime.neuron_sdk}" in tag


@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=lambda runtime: runtime.name)
def test_an_image_of_a_cluster_states_its_support_with_date_and_source(runtime: Runtime) -> None:
    assert bool(runtime.support) != runtime.lab_only
    dates = [date.fromisoformat(said.date) for said in runtime.support]
    assert dates == sorted(dates)
    assert all(said.source.startswith("https://awsdocs-neuron.") for said in runtime.support)
    ends = "NxD Inference ends on Trn2 with SDK 2.34" in {said.status for said in runtime.support}
    assert ends == bool(runtime.nxd_inference)


def test_check_prints_the_support_of_every_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "experiments" / "qwen3-32b-today.yaml")
    assert main(["check", path]) == 0
    shown = capsys.readouterr().out
    assert "              NxD Inference ends on Trn2 with SDK 2.34 (2026-10-16)\n" in shown
    assert "              vLLM Neuron is a beta in SDK 2.33 (2026-10-19)\n" in shown
    assert main(["check", path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["support"]
    assert {entry["runtime"] for entry in told} == {"native-vllm-0.29", "nxdi-vllm-0.9.1"}
    assert {"runtime", "status", "date", "source"} == set(told[0])


@pytest.mark.parametrize(
    ("runtime", "mode", "k", "most"),
    [
        ("nxdi-vllm-0.9.1", "fused", 7, 7),
        ("nxdi-vllm-0.9.1", "eagle", 7, 7),
        ("nxdi-vllm-0.9.1", "medusa", 4, 5),
        ("nxdi-vllm-0.16", "eagle3", 5, 5),
        ("native-vllm-0.29", "eagle3", 3, 4),
        ("vllm-cpu-0.32", "draft", 7, 8),
    ],
)
def test_a_step_yields_k_or_one_more_by_who_counts_it(runtime: str, mode: str, k: int, most: int) -> None:
    assert RUNTIMES[runtime].tokens_per_step(mode, num_speculative_tokens=k) == most


def test_a_head_has_its_targets_width_and_few_of_its_weights() -> None:
    experiment = load(ROOT / "experiments" / "llama-3.3-70b.yaml")
    speculation = experiment.arms[3].speculation
    assert speculation is not None
    head, target = speculation.draft.model, experiment.baseline.target.model
    assert (head.hidden, head.vocabulary, head.tokenizer) == (
        target.hidden,
        target.vocabulary,
        target.tokenizer,
    )
    assert head.head_for == target.name
    assert head.parameters < target.parameters / 20


def test_the_labs_models_have_the_sizes_that_were_run() -> None:
    """2 bytes a weight of what ships in lab/models/checkpoints, but for norms and the file's header."""
    for name in ("target", "draft", "weak-draft"):
        file = ROOT / "lab/models/checkpoints" / name / "model.safetensors"
        assert MODELS[f"lab/{name}"].parameters == pytest.approx(file.stat().st_size / 2, rel=0.08), name


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_shares_of_a_full_node_leave_room_on_it(path: Path) -> None:
    experiment = load(path)
    instance = experiment.instance
    if instance.neuron:
        share = pod_share(instance, devices=experiment.baseline.serving.devices)
        pods = instance.devices // experiment.baseline.serving.devices
        assert share.cpu * pods < instance.allocatable_cpu
        assert share.memory_gib * pods < instance.allocatable_memory_gib
        assert share.cpu >= 1


def test_the_arms_of_a_node_cost_what_the_node_costs(reference: Experiment) -> None:
    price = TRN2_ON_DEMAND["trn2.48xlarge"].usd_per_hour
    assert sum(cost.arm_usd_per_hour(reference, arm) for arm in reference.arms) == pytest.approx(price)
    assert TRN2_ON_DEMAND["trn2.3xlarge"].usd_per_hour * 16 == pytest.approx(price)


def test_the_lab_costs_nothing() -> None:
    lab = load(ROOT / "experiments" / "lab-tiny.yaml")
    assert cost.per_hour(cost.running(lab)) == 0
    assert cost.arm_usd_per_hour(lab, lab.baseline) == 0


def test_the_batch_example_serves_two_arms_and_runs_two_jobs() -> None:
    experiment = load(ROOT / "experiments" / "llama-medusa-batch.yaml")
    assert [arm.name for arm in experiment.served_arms] == ["vicuna", "vicuna-fused"]
    assert [arm.name for arm in experiment.batch_arms] == ["vicuna-unfused", "vicuna-medusa"]
