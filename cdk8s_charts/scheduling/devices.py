"""What the Neuron DRA driver publishes for a Trainium2 node: the devices that claims choose from.

Attributes: Neuron documentation, deploy/eks/dra.rst. Names, grid and groups of four as printed by `kubectl get
resourceslice` on a trn2.48xlarge in a published walk-through (EKS 1.34, March 2026): `neuron-device-0` to `-15`,
`topology_x` the row and `topology_y` the column of a 4 x 4 grid, a group of four a row. That a group of eight is two
neighbouring rows is read from the documentation's figure. Identities of groups are hashes there, and made up here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

DRIVER = "neuron.aws.com"
GROUP_DOMAIN = "resource.aws.com"
GROUP_SIZES = (1, 4, 8, 16)
_GRID = 4

Value = str | int | bool


@dataclass(frozen=True, eq=False)
class Device:
    """One device of a ResourceSlice; equal to itself only, which makes it a cheap key."""

    name: str
    driver: str
    attributes: tuple[tuple[str, Value], ...]
    """By qualified name, `domain/name`; the driver's own are published without domain and mean `driver/name`."""

    def attribute(self, qualified: str) -> Value | None:
        """The value, or `None` when the device has no such attribute."""
        return self._by_name.get(qualified)

    @cached_property
    def _by_name(self) -> dict[str, Value]:
        return dict(self.attributes)


@cache
def published(instance: str, *, node: str, devices: int, efa: bool) -> tuple[Device, ...]:
    """The devices of a node. The groups of connected devices are published on instances with EFA only."""
    return tuple(_device(instance, node, number, devices, efa) for number in range(devices))


def _device(instance: str, node: str, number: int, devices: int, efa: bool) -> Device:
    own: dict[str, Value] = {
        "deviceId": number,
        "instanceType": instance,
        "resourceType": "neuron_device",
        "neuronDriverVersion": "2.31.7.0",
        "draDriverVersion": "1.0.1",
        "topology_x": number // _GRID,
        "topology_y": number % _GRID,
        **{f"networkNodeLayer{layer}": f"nn-{layer}" for layer in (1, 2, 3)},
    }
    groups: dict[str, Value] = {
        f"{GROUP_DOMAIN}/devicegroup{size}_id": f"{node}-group{size}-{number // size}"
        for size in GROUP_SIZES
        if efa and size <= devices
    }
    attributes = {**{f"{DRIVER}/{name}": value for name, value in own.items()}, **groups}
    return Device(f"neuron-device-{number}", DRIVER, tuple(attributes.items()))
