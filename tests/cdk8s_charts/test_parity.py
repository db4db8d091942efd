"""Contract: the arms differ in the declared paths only."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from cdk8s_charts.parity import as_read, options, undeclared_differences
from tests.cdk8s_charts.objects import Case, Object, named, objects_of, pod_spec
from tests.cdk8s_charts.variations import rendered
from tests.conftest import REFERENCE
from tests.experiment.edits import NATIVE, Variation, both, put
from trnspec.core.differences import differences
from trnspec.experiment import load

Edit = Callable[[Object, Object], object]
"""Of a pod's specification, and of the server's container in it."""


def test_a_treatment_is_seen_as_speculation_and_another_artifact(case: Case) -> None:
    """That nothing else differs is a statement (`statements.py`)."""
    experiment, deployments = case[0], named(case[1], "Deployment")
    for arm in experiment.arms[1:]:
        found = differences(deployments[experiment.baseline.name], deployments[arm.name], read=as_read)
        changed = [one.path for one in found]
        assert any("--speculative-config" in entry for entry in changed) == (arm.speculation is not None)
        assert any("artifact-key" in entry for entry in changed)


def _option(name: str, value: str) -> Edit:
    def edit(_pod: Object, server: Object) -> None:
        argv = server["command"]
        argv[argv.index(name) + 1] = value

    return edit


def _neuron_config(key: str, value: Any) -> Edit:
    def edit(pod: Object, server: Object) -> None:
        given = options(server["command"])["--override-neuron-config"]
        _option("--override-neuron-config", json.dumps({**given, key: value}))(pod, server)

    return edit


def _check(number: int, word: str) -> Edit:
    return lambda pod, _: pod["initContainers"][0]["command"].__setitem__(number, word)


UNFAIR: dict[str, Edit] = {
    "other image": lambda _, server: server.update(image="other:1"),
    "more cpu": lambda _, server: server["resources"]["limits"].update(cpu="99"),
    "other claim": lambda pod, _: pod["resourceClaims"][0].update(resourceClaimTemplateName="other"),
    "another variable": lambda _, server: server["env"].append({"name": "X", "value": "1"}),
    "another value": lambda _, server: server["env"][0].update(value="1"),
    "another batch": _option("--max-num-seqs", "8"),
    "another model": lambda _, server: server["command"].__setitem__(2, "/checkpoints/other"),
    "other sampling": _neuron_config("async_mode", True),
    "a sidecar": lambda pod, _: pod["containers"].append({"name": "sidecar"}),
    "another probe": lambda _, server: server["livenessProbe"].update(periodSeconds=1),
    "other weights": _check(7, "/checkpoints/other"),
    "larger disk": lambda pod, _: pod["volumes"][0]["emptyDir"].update(sizeLimit="1Gi"),
    "another check": _check(2, "true"),
}


def _edited(deployment: Object, edit: Edit) -> Object:
    broken = copy.deepcopy(deployment)
    edit(pod_spec(broken), pod_spec(broken)["containers"][0])
    return broken


@pytest.mark.parametrize("name", UNFAIR)
def test_any_other_difference_is_found(name: str) -> None:
    deployments = named(objects_of(REFERENCE), "Deployment")
    assert undeclared_differences(
        deployments["qwen-vllm"], _edited(deployments["qwen-sd-vllm"], UNFAIR[name])
    )


def test_a_runtime_explains_nothing_but_its_own_dialect() -> None:
    deployments = named(objects_of(REFERENCE.with_name("qwen3-32b-today.yaml")), "Deployment")
    baseline, treatment = deployments["qwen-today"], deployments["qwen-sd-2-26"]
    assert undeclared_differences(baseline, treatment)
    assert undeclared_differences(baseline, treatment, other_runtime=True) == []
    for option in ("--max-num-seqs", "--tensor-parallel-size", "--max-model-len"):
        broken = _edited(treatment, _option(option, "3"))
        (found,) = undeclared_differences(baseline, broken, other_runtime=True)
        assert found.endswith(option)
    broken = _edited(treatment, UNFAIR["more cpu"])
    assert undeclared_differences(baseline, broken, other_runtime=True)


def test_a_plain_arm_with_the_scheduler_of_drafting_differs_in_that_and_its_artifact_alone(
    variation: Variation,
) -> None:
    same = {"name": "plain-sync", "scheduler": "synchronous"}
    deployments = named(rendered(load(variation(both(NATIVE, put("arms.2", same))))), "Deployment")
    baseline, treatment = deployments["qwen-vllm"], deployments["plain-sync"]
    assert undeclared_differences(baseline, treatment) == []
    changed = [one.path for one in differences(baseline, treatment, read=as_read)]
    assert [path for path in changed if "command.--" in path] == [
        "spec.template.spec.containers[vllm].command.--no-async-scheduling"
    ]
