"""One module a verb: `HELP`, `configure(parser)`, `execute(options)`."""

from __future__ import annotations

import argparse
from typing import Protocol

from operations.verbs import (
    cost,
    forecast,
    kubectl,
    preflight,
    promote,
    render,
    run,
    scale,
    status,
    teardown,
    verify,
)


class Verb(Protocol):
    """What `python -m operations` calls."""

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's options."""

    def execute(self, options: argparse.Namespace) -> int:
        """Do it; the exit code."""


VERBS: dict[str, Verb] = {
    "forecast": forecast,
    "preflight": preflight,
    "status": status,
    "scale": scale,
    "verify": verify,
    "cost": cost,
    "run": run,
    "promote": promote,
    "render": render,
    "kubectl": kubectl,
    "teardown": teardown,
}
