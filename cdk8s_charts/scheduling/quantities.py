"""Kubernetes quantities as whole numbers.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from cdk8s_charts.scheduling.errors import SchedulingError

if TYPE_CHECKING:
    from collections.abc import Mapping

NEURON_RESOURCE = "aws.amazon.com/neuron"
"""Whole devices, as the Neuron device plugin advertises them."""
_FACTORS = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Fraction(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)")


def quantity(value: Any) -> Fraction:
    """`100m`, `1.5Gi`, `2e3` or a plain number. Raises `SchedulingError` for anything else."""
    found = _QUANTITY.fullmatch(str(value))
    if isinstance(value, bool) or not found:
        raise SchedulingError(f"{value!r} is no quantity; write a number with a unit such as 100m or 1Gi")
    number, exponent, unit = found.groups()
    return Fraction(number) * (Fraction(f"1{exponent}") if exponent else _FACTORS[unit or ""])


@dataclass(frozen=True)
class Amounts:
    """What a pod asks or a node offers."""

    cpu_m: int = 0
    """Thousandths of a CPU."""
    memory: int = 0
    """Bytes."""
    ephemeral: int = 0
    """Bytes of the node's disk: logs, writable layers, emptyDir volumes."""
    neuron: int = 0
    """Devices counted by the device plugin; claims (DRA) are not counted here."""
    pods: int = 0

    @classmethod
    def of(cls, resources: Mapping[str, Any] | None, *, pods: int = 0) -> Amounts:
        """From `requests`, `limits` or `allocatable`; rounded up, as the scheduler does."""
        given = {name: quantity(value) for name, value in (resources or {}).items()}
        return cls(
            cpu_m=math.ceil(given.get("cpu", Fraction()) * 1000),
            memory=math.ceil(given.get("memory", Fraction())),
            ephemeral=math.ceil(given.get("ephemeral-storage", Fraction())),
            neuron=math.ceil(given.get(NEURON_RESOURCE, Fraction())),
            pods=pods,
        )

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*(mine + theirs for mine, theirs in zip(self._tuple(), other._tuple(), strict=True)))

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(*(mine - theirs for mine, theirs in zip(self._tuple(), other._tuple(), strict=True)))

    def most(self, other: Amounts) -> Amounts:
        """The larger of each."""
        return Amounts(
            *(max(mine, theirs) for mine, theirs in zip(self._tuple(), other._tuple(), strict=True))
        )

    def short_of(self, asked: Amounts) -> tuple[str, ...]:
        """What is missing here for `asked`, each as `memory 900Gi of 851Gi free`."""
        named = zip(
            ("cpu", "memory", "ephemeral-storage", NEURON_RESOURCE, "pods"),
            self._tuple(),
            asked._tuple(),
            strict=True,
        )
        return tuple(
            f"{name} {readable(name, want)} of {readable(name, have)} free"
            for name, have, want in named
            if want > have
        )

    def _tuple(self) -> tuple[int, int, int, int, int]:
        return (self.cpu_m, self.memory, self.ephemeral, self.neuron, self.pods)


def readable(name: str, value: int) -> str:
    """An amount as people write it."""
    if name == "cpu":
        return f"{value / 1000:g}"
    if name in ("memory", "ephemeral-storage"):
        return f"{value / 2**30:.4g}Gi"
    return str(value)
