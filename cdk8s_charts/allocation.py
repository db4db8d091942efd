"""How a pod gets its Neuron devices: by a resource claim, or by the device plugin and its scheduler extension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts import pod
from cdk8s_charts.claims import REQUEST, claim_template

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiment.arms import Arm, Experiment

EXTENDED_RESOURCE = "aws.amazon.com/neuron"
"""One unit is one device (chip)."""
SCHEDULER = "my-scheduler"
"""Name under which the Neuron chart installs the scheduler extension, without which fewer than all devices of a node
might not be neighbours (Neuron documentation, Kubernetes scheduler extension)."""


def hold_devices(spec: pod.PodSpec, holder: pod.Container, experiment: Experiment, arm: Arm) -> None:
    """Give a container the devices that the arm asks for, in the way that the experiment names."""
    resources = holder["resources"]
    if arm.serving.allocation == "dra":
        template = claim_template(experiment, arm)["metadata"]["name"]
        spec["resourceClaims"] = [{"name": REQUEST, "resourceClaimTemplateName": template}]
        resources["claims"] = [{"name": REQUEST, "request": REQUEST}]
        return
    for part in ("requests", "limits"):
        resources[part][EXTENDED_RESOURCE] = str(arm.serving.devices)
    spec["schedulerName"] = SCHEDULER


def holds_devices(container: Mapping[str, Any]) -> bool:
    """Whether a container uses a claim of the pod, or asks the device plugin for devices."""
    resources = container.get("resources") or {}
    return bool(resources.get("claims")) or EXTENDED_RESOURCE in (resources.get("limits") or {})
