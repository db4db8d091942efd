"""`./trnspec VERB`: one command line for everything that people do with an experiment."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from trnspec import __version__
from trnspec.core.command_line import Verb, Verbs, carried_out

_COMMANDS = "trnspec.benchmark.commands"
_ROWS = {
    "Measure": {
        "measure": (
            f"{_COMMANDS}.run_command",
            "send the same prompts to two servers, then say which to use",
        ),
        "report": (
            f"{_COMMANDS}.report_command:report",
            "make page and tables of a run, advise draft tokens",
        ),
        "compare": (f"{_COMMANDS}.recorded_commands:compare", "say whether run B is slower than run A"),
        "results": (f"{_COMMANDS}.results_command", "list runs with their answers"),
        "demo": ("trnspec.operations.demo_command", "run the whole experiment on this machine, emulated"),
    },
    "Decide": {
        "new": ("trnspec.operations.new", "write an experiment for your model and your prompts"),
        "check": ("trnspec.operations.options:check", "check an experiment, or a file of prompts"),
        "forecast": (
            "trnspec.operations.forecast",
            "predict speed-up and cost on Trn2, before you rent",
        ),
    },
    "AWS": {
        "preflight": (
            "trnspec.operations.preflight.checklist",
            "check your AWS account, list where to buy nodes now",
        ),
        "deploy": ("trnspec.operations.deploy", "create the cluster and its services, with 0 Trn2 nodes"),
        "run": (
            "trnspec.operations.running.launch",
            "start nodes, compile, measure, report, set nodes to 0",
        ),
        "nodes": ("trnspec.operations.nodes_command", "set the number of Trn2 nodes; 0 stops their cost"),
        "verify": ("trnspec.operations.verify", "check the Trn2 nodes after the deployment"),
        "status": ("trnspec.operations.status", "show what exists on AWS and what is billed"),
        "promote": ("trnspec.operations.promote", "print the section that makes an arm a service"),
        "teardown": ("trnspec.operations.teardown", "delete an experiment, then list what is still billed"),
        "kubectl": ("trnspec.operations.cloud.access", "kubectl on the experiment's cluster"),
    },
    "Review": {
        "render": ("trnspec.operations.render_command", "write the Kubernetes manifests that reviewers read"),
        "review": ("trnspec.operations.review.review", "show what this pull request changes on AWS"),
    },
}
WITHOUT_CHECKOUT = {"measure", "report", "compare", "results", "check", "forecast", "new"}
"""Verbs of measuring and deciding, which the installed package has too."""
_HIDDEN = {"kubectl"}
"""Verbs that are printed with their arguments where they are needed."""
VERBS = {
    name: Verb(*row, group, needs_checkout=name not in WITHOUT_CHECKOUT, hidden=name in _HIDDEN)
    for group, rows in _ROWS.items()
    for name, row in rows.items()
}
EPILOG = (
    "An experiment is a file, the first argument of most verbs. Without it, a verb uses the file in TRNSPEC_EXPERIMENT, or "
    "experiments/qwen3-32b.yaml. An arm is one server of the experiment, with or without drafts.\n\n"
    "Exit codes: 0 fine. 1 a check found a problem. 2 wrong usage or configuration. 3 no usable answer from AWS, the cluster or "
    "a registry, or a fault of this program. 130 interrupted.\n\n"
    'Completion: eval "$(_TRNSPEC_COMPLETE=bash_source ./trnspec)", or zsh_source, or fish_source.'
)


door = Verbs(
    "trnspec",
    VERBS,
    help="Does speculative decoding pay on AWS Trainium2, for your prompts?",
    epilog=EPILOG,
)
click.version_option(__version__, message="%(prog)s %(version)s")(door)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    words = sys.argv[1:] if arguments is None else arguments
    return carried_out(door, [*words] or ["--help"], prog="trnspec")


if __name__ == "__main__":
    sys.exit(main())
