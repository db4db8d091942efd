"""The scheduler extension: of the cluster's version, and named by the pods that need it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdk8s_charts.pods import SCHEDULER
from cdk8s_charts.workloads.serving import deployment
from experiment import load
from infra.pins import ADDON_VERSIONS, SCHEDULER_TAGS
from infra.stacks.software import neuron_values
from tests.conftest import REFERENCE


@pytest.mark.parametrize("kubernetes", ADDON_VERSIONS)
def test_the_second_scheduler_has_the_clusters_version(kubernetes: str) -> None:
    tag = neuron_values("device-plugin", kubernetes=kubernetes)["scheduler"]["customScheduler"]["image"][
        "tag"
    ]
    assert tag.startswith(f"v{kubernetes}.")
    assert f"-eks-{kubernetes.replace('.', '-')}-" in tag
    assert neuron_values("dra", kubernetes=kubernetes)["scheduler"] == {"enabled": False}
    assert SCHEDULER_TAGS.keys() == ADDON_VERSIONS.keys()


def test_the_second_scheduler_runs_on_system_nodes() -> None:
    values = neuron_values("device-plugin", kubernetes="1.35", system="joined-system")["scheduler"]
    wanted = {"speculation.trn2/role": "joined-system"}
    assert values["nodeSelector"] == values["customScheduler"]["nodeSelector"] == wanted


@pytest.mark.parametrize(("devices", "named"), [(4, SCHEDULER), (8, SCHEDULER), (16, None)])
def test_an_arm_that_takes_all_devices_of_its_node_is_placed_by_the_clusters_own_scheduler(
    devices: int, named: str | None
) -> None:
    experiment = load(REFERENCE)
    changes = {"allocation": "device-plugin", "devices": devices}
    arm = replace(experiment.baseline, serving=experiment.baseline.serving.model_copy(update=changes))
    pod = deployment(experiment, arm)["spec"]["template"]["spec"]
    assert pod.get("schedulerName") == named
    assert pod["containers"][0]["resources"]["limits"]["aws.amazon.com/neuron"] == str(devices)
