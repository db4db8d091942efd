"""Which Neuron drivers of a node serve the runtime library inside an image: it refuses what is too old and too new.

Source: release notes of the Neuron runtime
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/release-notes/components/runtime.html). SDK 2.24: library 2.26
wants driver 2.22 or later on Trn2. SDK 2.30: library 2.32 does not start with driver 2.26 or earlier. SDK 2.31: driver
2.29 wants library 2.33 or later, otherwise `nrt_init` fails. Notes after SDK 2.32 were not read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Drivers:
    """The drivers with which a runtime library starts."""

    oldest: str
    """As exact as the source is: `2.27` is every 2.27 and what came later."""
    newest: str | None
    """The last that it takes, as exact as the source is; `None` where no end is known."""
    source: str
    """Which release notes say so."""

    def serve(self, driver: str) -> bool:
        """Whether the library starts with this driver."""
        found = version(driver)
        if found < version(self.oldest):
            return False
        return self.newest is None or found[: len(version(self.newest))] <= version(self.newest)

    def __str__(self) -> str:
        return f"{self.oldest} or later" if self.newest is None else f"{self.oldest} to {self.newest}"


LIBRARIES_BEFORE_2_32 = Drivers(
    oldest="2.22", newest="2.28", source="Neuron runtime release notes of SDK 2.24 and SDK 2.31"
)
"""From 2.26 on."""
LIBRARIES_FROM_2_33 = Drivers(
    oldest="2.27", newest=None, source="Neuron runtime release notes of SDK 2.30 and SDK 2.31"
)


def version(text: str) -> tuple[int, ...]:
    """`2.29.0.0` or `1.35.6-20260714` as numbers that compare."""
    return tuple(int(part) for part in text.partition("-")[0].split("."))
