"""One module a verb: `HELP`, `configure(parser)`, `execute(options)`."""

from __future__ import annotations

import argparse
from typing import Protocol

from operations import scaling, status, teardown, verification
from operations.cloud import access
from operations.preflight import checklist
from operations.running import launch
from operations.verbs import cost, forecast, promote, render


class Verb(Protocol):
    """What `python -m operations` calls."""

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's options."""

    def execute(self, options: argparse.Namespace) -> int:
        """Do it; the exit code."""


VERBS: dict[str, Verb] = {
    "forecast": forecast,
    "preflight": checklist,
    "status": status,
    "scale": scaling,
    "verify": verification,
    "cost": cost,
    "run": launch,
    "promote": promote,
    "render": render,
    "kubectl": access,
    "teardown": teardown,
}
