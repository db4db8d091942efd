"""The command line: `python -m trnspec.benchmark VERB`; results on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from trnspec import __version__
from trnspec.core.command_line import Verb, Verbs, carried_out

_FOLDER = "trnspec.benchmark.commands"
door = Verbs(
    "benchmark",
    {
        "run": Verb(f"{_FOLDER}.run_command", "measure arms on the same prompts, then print what to do"),
        "report": Verb(
            f"{_FOLDER}.report_command:report",
            "make the summary, the page, the CSV and llmperf's files again from the raw records, then print which arm to use",
        ),
        "publish": Verb(
            f"{_FOLDER}.recorded_commands:publish",
            "send a run's requests to CloudWatch, each once, also while it is in progress",
        ),
        "advise": Verb(
            f"{_FOLDER}.recorded_commands:advise",
            "predict tokens per step and speed-up of every smaller window k, recommend one or what to time next",
        ),
        "gate": Verb(
            f"{_FOLDER}.recorded_commands:gate",
            "refuse a run that is slower per token, or fails more often, than a baseline run; exit 1 then",
        ),
        "results": Verb(
            f"{_FOLDER}.results_command",
            "list the runs below a folder as a table",
        ),
    },
    no_args_is_help=False,
    help="Compare live OpenAI-compatible endpoints on the same prompts, request by request.",
    epilog="Exit codes: 0 fine, 1 a finding (the whole answer is withheld, --max-error-rate or a limit passed), 2 wrong usage, plan or "
    "folder, 3 an endpoint, the disk or CloudWatch failed, 130 interrupted (what is recorded is kept; repeat the command to continue).",
)
click.version_option(__version__, message="benchmark %(version)s")(door)


def main(arguments: Sequence[str] | None = None, *, prog: str = "python -m trnspec.benchmark") -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    return carried_out(door, arguments, prog=prog)


if __name__ == "__main__":
    sys.exit(main())
