"""The command line: `python -m benchmark VERB`; results on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from benchmark.commands import VERBS
from benchmark.errors import BenchmarkError, StorageError

_LONGEST = 4000
"""Characters of an error; more would push what it is about off the screen."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    options = parser().parse_args(arguments)
    try:
        code = VERBS[options.verb].execute(options)
    except BenchmarkError as error:
        print(f"benchmark {options.verb}: {_on_one_line(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the result has read enough; the interpreter must not complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(
            f"benchmark {options.verb}: {_on_one_line(str(error))}; is there room, and may it be read and written?",
            file=sys.stderr,
        )
        return StorageError.exit_code
    return code


def _on_one_line(text: str) -> str:
    """`text` as a terminal may see it: names of files and what servers say may hold characters that it would act on."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown} ..."


def parser() -> argparse.ArgumentParser:
    """The command line. `verb` in the result says which verb was given."""
    top = argparse.ArgumentParser(
        prog="python -m benchmark",
        description="Compare live OpenAI-compatible endpoints on the same prompts, request by request.",
        epilog="Exit codes: 0 fine, 1 a finding (a cell without any answer, --max-error-rate or a limit passed), 2 "
        "wrong usage, plan or folder, 3 an endpoint, the disk or CloudWatch failed, 130 interrupted (what is recorded "
        "is kept; the same command goes on).",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        verb.configure(verbs.add_parser(name, help=verb.help))
    return top


if __name__ == "__main__":
    sys.exit(main())
