"""`python -m operations VERB`, which the files in `scripts/` call."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from cdk8s_charts.errors import ChartError
from experiment import InvalidExperiment
from experiment.finding import printable
from operations.errors import OperationsError, fault
from operations.terminal import escaped
from operations.verbs import VERBS

EPILOG = (
    "Exit codes: 0 fine, 1 a finding, 2 wrong usage or configuration, 3 AWS, the cluster or a registry could not be "
    "reached or gave no answer that can be read, or this program has a fault, 130 interrupted."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    signal.signal(signal.SIGTERM, _interrupt)
    options = parser().parse_args(arguments)
    with escaped():
        return _carry_out(options)


def _carry_out(options: argparse.Namespace) -> int:
    try:
        return VERBS[options.verb].execute(options)
    except InvalidExperiment as error:
        print(error, file=sys.stderr)
        return 2
    except ChartError as error:
        print(f"{options.verb}: {error}", file=sys.stderr)
        return 2
    except OperationsError as error:
        print(f"{options.verb}: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{options.verb}: interrupted; it can be run again", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the result has read enough; the interpreter must not complain once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        known = fault(error)
        print(f"{options.verb}: {known}", file=sys.stderr)
        return known.exit_code


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


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
