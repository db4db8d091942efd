"""The verbs of the command line, a module each: HELP, `configure(parser)` and `execute(options) -> exit code`.

A verb imports what it works with when it is executed, so that `--help` and `run` start fast.
"""

from __future__ import annotations

from types import ModuleType

from benchmark.verbs import advise, compare, gate, importing, publish, report, run, selftest

VERBS: dict[str, ModuleType] = {
    "run": run,
    "report": report,
    "publish": publish,
    "advise": advise,
    "compare": compare,
    "gate": gate,
    "selftest": selftest,
    "import": importing,
}
