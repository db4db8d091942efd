"""The command line: `python -m benchmark VERB`; results on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from benchmark.commands import (
    advise_command,
    compare_command,
    import_command,
    report_command,
    results_command,
    run_command,
    selftest_command,
)
from benchmark.errors import BenchmarkError, StorageError

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
    "selftest": (selftest_command.HELP, selftest_command.configure, selftest_command.execute),
    "results": (results_command.HELP, results_command.configure, results_command.execute),
    "import": (import_command.HELP, import_command.configure, import_command.execute),
}
"""What each is for, how its options are told, and what it does."""

_LONGEST = 4000
"""Characters of an error; more would push what it is about off the screen."""


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m benchmark") -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    options = parser(prog).parse_args(arguments)
    who = f"{prog.removeprefix('python -m ')} {options.verb}"
    try:
        code: int = options.execute(options)
    except BenchmarkError as error:
        print(f"{who}: {_on_one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"{who}: needs {error.name}; run: pip install {error.name}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has read enough; the interpreter must not complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(
            f"{who}: {_on_one_line(str(error))}; is there room, and may it be read and written?",
            file=sys.stderr,
        )
        return StorageError.exit_code
    return code


def _on_one_line(text: str) -> str:
    """`text` as a terminal may see it: names of files and what servers say may hold characters that it would act on."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown} ..."


def parser(prog: str = "python -m benchmark") -> argparse.ArgumentParser:
    """The command line. `verb` in the result says which verb was given."""
    top = argparse.ArgumentParser(
        prog=prog,
        description="Compare live OpenAI-compatible endpoints on the same prompts, request by request.",
        epilog="Exit codes: 0 fine, 1 a finding (a cell without any answer, --max-error-rate or a limit passed), 2 "
        "wrong usage, plan or folder, 3 an endpoint, the disk or CloudWatch failed, 130 interrupted (what is recorded "
        "is kept; the same command goes on).",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (help_, configure, execute) in VERBS.items():
        verb = verbs.add_parser(name, help=help_)
        verb.set_defaults(execute=execute)
        configure(verb)
    return top


if __name__ == "__main__":
    sys.exit(main())
