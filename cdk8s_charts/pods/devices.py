"""How a pod gets its Neuron devices: by a resource claim (Dynamic Resource Allocation), or by the device plugin and its
scheduler extension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.plain_objects import content_suffix, kubernetes_object
from cdk8s_charts.pods import pod

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment

DRIVER = "neuron.aws.com"
REQUEST = "neurons"


def group_attribute(devices: int) -> str:
    """What the Neuron DRA driver publishes for devices of one connected group (Neuron DRA documentation)."""
    return f"resource.aws.com/devicegroup{devices}_id"


def claim_template(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """The template from which each pod of an arm gets its devices.

    All devices must come from one connected group. LNC is set with the claim. The name carries a hash of the content, because
    a template cannot be changed.
    """
    serving = arm.serving
    exactly = {
        "deviceClassName": DRIVER,
        "allocationMode": "ExactCount",
        "count": serving.devices,
        "selectors": [
            {
                "cel": {
                    "expression": f"device.attributes['{DRIVER}'].instanceType == '{experiment.instance.name}'"
                }
            }
        ],
    }
    parameters = {
        "apiVersion": f"{DRIVER}/v1",
        "kind": "NeuronConfig",
        "logicalNeuronCore": serving.logical_nc_config,
    }
    spec = {
        "devices": {
            "requests": [{"name": REQUEST, "exactly": exactly}],
            "constraints": [{"requests": [REQUEST], "matchAttribute": group_attribute(serving.devices)}],
            "config": [{"requests": [REQUEST], "opaque": {"driver": DRIVER, "parameters": parameters}}],
        }
    }
    return kubernetes_object(
        "resource.k8s.io/v1",
        "ResourceClaimTemplate",
        f"trn2-{serving.devices}-lnc{serving.logical_nc_config}-{content_suffix(spec)}",
        within=experiment,
        spec={"spec": spec},
    )


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
    if needs_neighbours(arm):
        spec["schedulerName"] = SCHEDULER


def needs_neighbours(arm: Arm) -> bool:
    """Whether the scheduler extension decides which devices an arm gets: all devices of a node need no choice."""
    return arm.serving.devices < arm.instance.devices
