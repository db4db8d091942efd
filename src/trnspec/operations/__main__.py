"""`./trnspec VERB`: one command line for everything that people do with an experiment."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from trnspec import __version__
from trnspec.core.command_line import Verb, Verbs, carried_out

HERE, ON_AWS, IN_A_CHANGE = "Here", "On AWS", "In a change"
_ROWS = {
    HERE: {
        "new": ("trnspec.operations.creation", "an experiment for your model and your prompts"),
        "check": ("trnspec.operations.options:check", "what an experiment resolves to, or all its problems"),
        "demo": ("trnspec.operations.demonstration", "the whole experiment on this machine, emulated"),
        "forecast": (
            "trnspec.operations.forecast",
            "speed-up and cost on Trn2, from acceptance measured anywhere",
        ),
        "prompts": ("trnspec.experiment.__main__:prompts", "a file of prompts as lines that a run takes"),
        "benchmark": ("trnspec.benchmark.__main__:door", "run, report, gate ... for any two endpoints"),
        "results": ("trnspec.benchmark.commands.results_command", "list runs with their answers"),
        "promote": ("trnspec.operations.promotion", "what makes the winning arm a service"),
        "render": ("trnspec.operations.rendering", "write the Kubernetes objects that reviewers read"),
    },
    ON_AWS: {
        "capacity": (
            "trnspec.operations.capacity",
            "which nodes can be had now, where, and what the answer costs there",
        ),
        "preflight": (
            "trnspec.operations.preflight.checklist",
            "is everything there that a deployment needs?",
        ),
        "deploy": (
            "trnspec.operations.deploying",
            "build all of it with the pinned CDK; no Trn2 node starts",
        ),
        "run": (
            "trnspec.operations.running.launch",
            "from deployed stacks to the answer and back to 0 nodes",
        ),
        "status": ("trnspec.operations.status", "what is there on AWS, and what of it bills"),
        "verify": ("trnspec.operations.verification", "prove the running Trn2 nodes; about two minutes"),
        "scale": (
            "trnspec.operations.scaling",
            "set the number of Trn2 nodes, and when they go away",
        ),
        "kubectl": (
            "trnspec.operations.cloud.access",
            "kubectl on the experiment's cluster; nothing to install",
        ),
        "teardown": ("trnspec.operations.teardown", "take an experiment down, then list what still bills"),
    },
    IN_A_CHANGE: {
        "review": ("trnspec.operations.review.reviewing", "what merging this tree does to what is deployed"),
    },
}
WITHOUT_CHECKOUT = {"benchmark", "check", "forecast", "new", "prompts", "results"}
"""Verbs of measuring and deciding, which the installed package has too."""
VERBS = {
    name: Verb(*row, group, needs_checkout=name not in WITHOUT_CHECKOUT)
    for group, rows in _ROWS.items()
    for name, row in rows.items()
}
EPILOG = (
    "The experiment is the first argument of a verb; without one it is TRNSPEC_EXPERIMENT or experiments/qwen3-32b.yaml.\n\n"
    "Exit codes: 0 fine, 1 a finding, 2 wrong usage or configuration, 3 AWS, the cluster or a registry could not be "
    "reached or gave no answer that can be read, or this program has a fault, 130 interrupted.\n\n"
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
