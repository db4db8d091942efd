"""The command line: `python -m benchmark VERB`; results on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmark import __version__
from benchmark.commands import (
    advise_command,
    compare_command,
    report_command,
    results_command,
    run_command,
)
from benchmark.errors import StorageError
from core.argparse_help import Parser
from core.edge import guarded, printable, shortened
from core.findings import Refusal

VERBS = {
    "run": (run_command.HELP, run_command.configure, run_command.execute),
    "report": (report_command.REPORT_HELP, report_command.configure_report, report_command.execute_report),
    "publish": (
        report_command.PUBLISH_HELP,
        report_command.configure_publish,
        report_command.execute_publish,
    ),
    "advise": (advise_command.HELP, advise_command.configure, advise_command.execute),
    "compare": (
        compare_command.COMPARE_HELP,
        compare_command.configure_compare,
        compare_command.execute_compare,
    ),
    "gate": (compare_command.GATE_HELP, compare_command.configure_gate, compare_command.execute_gate),
    "results": (results_command.HELP, results_command.configure, results_command.execute),
}
"""What each is for, how its options are told, and what it does."""

_LONGEST = 4000
"""Characters of an error; more would push what it is about off the screen."""


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m benchmark") -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    who = prog.removeprefix("python -m ")
    return guarded(who, lambda: _main(arguments, prog, who))


def _main(arguments: Sequence[str] | None, prog: str, who: str) -> int:
    options = parser(prog).parse_args(arguments)
    who = f"{who} {options.verb}"
    try:
        code: int = options.execute(options)
    except Refusal as error:
        print(f"{who}: {printable(shortened(str(error), _LONGEST))}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"{who}: needs {error.name}; run: pip install {error.name}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(
            f"{who}: {printable(shortened(str(error), _LONGEST))}; is there room, and may it be read and written?",
            file=sys.stderr,
        )
        return StorageError.exit_code
    return code


def parser(prog: str = "python -m benchmark") -> Parser:
    """The command line. `verb` in the result says which verb was given."""
    top = Parser(
        prog=prog,
        description="Compare live OpenAI-compatible endpoints on the same prompts, request by request.",
        epilog="Exit codes: 0 fine, 1 a finding (a cell without any answer, --max-error-rate or a limit passed), 2 "
        "wrong usage, plan or folder, 3 an endpoint, the disk or CloudWatch failed, 130 interrupted (what is recorded "
        "is kept; the same command goes on).",
    )
    top.add_argument(
        "--version", action="version", version=f"benchmark {__version__}", help="show the version"
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (help_, configure, execute) in VERBS.items():
        verb = verbs.add_parser(name, help=help_, description=help_)
        verb.set_defaults(execute=execute)
        configure(verb)
    return top


if __name__ == "__main__":
    sys.exit(main())
