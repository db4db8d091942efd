"""Contract: the arms differ in the declared paths only."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from cdk8s_charts.parity import as_read, options, undeclared_differences
from cdk8s_charts.workloads.serving import deployment
from experiment import Experiment
from experiment.difference import differences
from tests.cdk8s_charts.conftest import EXPERIMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("stem", EXPERIMENTS)
def test_arms_differ_only_in_name_batch_treatment_and_artifact(stem: str) -> None:
    experiment = EXPERIMENTS[stem]
    baseline = deployment(experiment, experiment.baseline)
    for arm in experiment.served_arms[1:]:
        treatment = deployment(experiment, arm)
        other = arm.runtime != experiment.baseline.runtime
        declared = (*experiment.baseline.engine, *arm.engine)
        assert undeclared_differences(baseline, treatment, other_runtime=other, engine=declared) == []
        changed = [one.path for one in differences(baseline, treatment, read=as_read)]
        assert any("--speculative-config" in entry for entry in changed) == (arm.speculation is not None)
        assert any("artifact-key" in entry for entry in changed)


def test_a_runtime_explains_nothing_but_its_own_dialect() -> None:
    experiment = EXPERIMENTS["qwen3-32b-today"]
    baseline, treatment = (deployment(experiment, arm) for arm in experiment.arms)
    assert undeclared_differences(baseline, treatment)
    argv = _pod(treatment)["containers"][0]["command"]
    for option, value in (
        ("--max-num-seqs", "8"),
        ("--tensor-parallel-size", "16"),
        ("--max-model-len", "2048"),
    ):
        broken = copy.deepcopy(treatment)
        _pod(broken)["containers"][0]["command"][argv.index(option) + 1] = value
        (found,) = undeclared_differences(baseline, broken, other_runtime=True)
        assert found.endswith(option)
    broken = copy.deepcopy(treatment)
    _pod(broken)["containers"][0]["resources"]["limits"]["cpu"] = "1"
    assert undeclared_differences(baseline, broken, other_runtime=True)


def _pod(manifest: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod


def _neuron_config(key: str, value: Any) -> Edit:
    def edit(manifest: dict[str, Any]) -> None:
        argv = _pod(manifest)["containers"][0]["command"]
        place = argv.index("--override-neuron-config") + 1
        argv[place] = json.dumps({**json.loads(argv[place]), key: value})

    return edit


def _option(name: str, value: str) -> Edit:
    def edit(manifest: dict[str, Any]) -> None:
        argv = _pod(manifest)["containers"][0]["command"]
        argv[argv.index(name) + 1] = value

    return edit


UNFAIR: dict[str, Edit] = {
    "other image": lambda m: _pod(m)["containers"][0].update(image="other:1"),
    "more cpu": lambda m: _pod(m)["containers"][0]["resources"]["limits"].update(cpu="99"),
    "other claim": lambda m: _pod(m)["resourceClaims"][0].update(resourceClaimTemplateName="other"),
    "another variable": lambda m: _pod(m)["containers"][0]["env"].append({"name": "X", "value": "1"}),
    "another value": lambda m: _pod(m)["containers"][0]["env"][0].update(value="1"),
    "another option": lambda m: _pod(m)["containers"][0]["command"].append("--enforce-eager"),
    "another batch": _option("--max-num-seqs", "8"),
    "another model": lambda m: _pod(m)["containers"][0]["command"].__setitem__(2, "/checkpoints/other"),
    "other sampling": _neuron_config("async_mode", True),
    "sequence parallelism": _neuron_config("sequence_parallel_enabled", True),
    "another node": lambda m: _pod(m).update(nodeSelector={"x": "y"}),
    "a sidecar": lambda m: _pod(m)["containers"].append({"name": "sidecar"}),
    "another probe": lambda m: _pod(m)["containers"][0]["livenessProbe"].update(periodSeconds=1),
    "other weights": lambda m: _pod(m)["initContainers"][0]["command"].__setitem__(7, "/checkpoints/other"),
    "another drain": lambda m: _pod(m)["containers"][0]["lifecycle"].clear(),
    "longer grace": lambda m: _pod(m).update(terminationGracePeriodSeconds=1),
    "larger disk": lambda m: _pod(m)["volumes"][0]["emptyDir"].update(sizeLimit="1Gi"),
    "another priority": lambda m: _pod(m).update(priorityClassName="x"),
    "another check": lambda m: _pod(m)["initContainers"][0]["command"].__setitem__(2, "true"),
}


@pytest.mark.parametrize("name", UNFAIR)
def test_any_other_difference_is_found(reference: Experiment, name: str) -> None:
    baseline, treatment = (deployment(reference, arm) for arm in reference.arms)
    broken = copy.deepcopy(treatment)
    UNFAIR[name](broken)
    assert undeclared_differences(baseline, broken)


def test_options_are_read_as_names_and_values() -> None:
    argv = ["vllm", "serve", "m", "--port", "8000", "--flag", "--json", '{"a": [1]}']
    assert options(argv) == {
        "": ["vllm", "serve", "m"],
        "--port": "8000",
        "--flag": True,
        "--json": {"a": [1]},
    }
