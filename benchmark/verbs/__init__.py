"""The verbs of the command line: what each is for, `configure(parser)` and `execute(options) -> exit code`.

A verb imports what it works with when it is executed, so that `--help` and `run` start fast.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from benchmark.verbs import advise, compare, gate, importing, publish, report, run, selftest


class Verb(NamedTuple):
    """A word after `python -m benchmark`."""

    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.Namespace], int]


VERBS = {
    "run": Verb(run.HELP, run.configure, run.execute),
    "report": Verb(report.HELP, report.configure, report.execute),
    "publish": Verb(publish.HELP, publish.configure, publish.execute),
    "advise": Verb(advise.HELP, advise.configure, advise.execute),
    "compare": Verb(compare.HELP, compare.configure, compare.execute),
    "gate": Verb(gate.HELP, gate.configure, gate.execute),
    "selftest": Verb(selftest.HELP, selftest.configure, selftest.execute),
    "import": Verb(importing.HELP, importing.configure, importing.execute),
}
