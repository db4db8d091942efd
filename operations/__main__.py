"""`python -m operations VERB`, which the files in `scripts/` call."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from operations import forecast, pricing, promotion, rendering, scaling, status, teardown, verification
from operations.cloud import access
from operations.console import carried_out
from operations.preflight import checklist
from operations.running import launch

VERBS: dict[str, ModuleType] = {
    "forecast": forecast,
    "preflight": checklist,
    "status": status,
    "scale": scaling,
    "verify": verification,
    "cost": pricing,
    "run": launch,
    "promote": promotion,
    "render": rendering,
    "kubectl": access,
    "teardown": teardown,
}
"""A verb is a module with `HELP`, `configure(parser)`, which adds its options, and `execute(options)`, its exit code."""

EPILOG = (
    "Exit codes: 0 fine, 1 a finding, 2 wrong usage or configuration, 3 AWS, the cluster or a registry could not be "
    "reached or gave no answer that can be read, or this program has a fault, 130 interrupted."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    options = parser().parse_args(arguments)
    return carried_out(options.verb, lambda: VERBS[options.verb].execute(options))


def parser() -> argparse.ArgumentParser:
    """The command line. `verb` in the result says which verb was given."""
    top = argparse.ArgumentParser(prog="python -m operations", description=__doc__, epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        added = verbs.add_parser(
            name, prog=f"scripts/{name}", help=verb.HELP, description=verb.HELP, epilog=EPILOG
        )
        verb.configure(added)
    return top


if __name__ == "__main__":
    sys.exit(main())
