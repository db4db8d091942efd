"""The verbs of the command line: what each is for, `configure(parser)` and `execute(options) -> exit code`.

A verb imports what it works with when it is executed, so that `--help` and `run` start fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from benchmark.commands import (
    advise_command,
    compare_command,
    import_command,
    report_command,
    run_command,
    selftest_command,
)


class Verb(NamedTuple):
    """A word after `python -m benchmark`."""

    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


VERBS = {
    "run": Verb(run_command.HELP, run_command.configure, run_command.execute),
    "report": Verb(
        report_command.REPORT_HELP, report_command.configure_report, report_command.execute_report
    ),
    "publish": Verb(
        report_command.PUBLISH_HELP, report_command.configure_publish, report_command.execute_publish
    ),
    "advise": Verb(advise_command.HELP, advise_command.configure, advise_command.execute),
    "compare": Verb(
        compare_command.COMPARE_HELP, compare_command.configure_compare, compare_command.execute_compare
    ),
    "gate": Verb(compare_command.GATE_HELP, compare_command.configure_gate, compare_command.execute_gate),
    "selftest": Verb(selftest_command.HELP, selftest_command.configure, selftest_command.execute),
    "import": Verb(import_command.HELP, import_command.configure, import_command.execute),
}
