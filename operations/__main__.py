"""`./trnspec VERB`: one command line for everything that people do with an experiment.

Only click is imported before a verb is chosen: `--help` and the completion of a shell start as fast as click does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

from benchmark import __version__
from core.edge import guarded
from core.screen import width

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Verb(NamedTuple):
    """Where a verb is: its module has a `click.Command` named `command`, or the name behind the colon."""

    module: str
    group: str
    help: str


HERE, ON_AWS, IN_A_CHANGE = "Here", "On AWS", "In a change"
VERBS = {
    "new": Verb("operations.creation", HERE, "an experiment for your model and your prompts"),
    "check": Verb("operations.handed_on:check", HERE, "what an experiment resolves to, or all its problems"),
    "demo": Verb("operations.handed_on:demo", HERE, "the whole experiment on this machine, emulated"),
    "lab": Verb("operations.handed_on:lab", HERE, "the same with a real engine on this machine's CPU"),
    "forecast": Verb(
        "operations.forecast", HERE, "speed-up and cost on Trn2, from acceptance measured anywhere"
    ),
    "published": Verb(
        "operations.handed_on:published", HERE, "results that others published, and what they imply"
    ),
    "prompts": Verb("operations.access_log", HERE, "prompts or an access log as lines that a run takes"),
    "step": Verb("operations.handed_on:step", HERE, "what published results predict for one engine"),
    "benchmark": Verb(
        "operations.handed_on:benchmark", HERE, "run, report, compare ... for any two endpoints"
    ),
    "results": Verb("operations.handed_on:results", HERE, "list runs with their answers, on one page too"),
    "render": Verb("operations.rendering", HERE, "write the Kubernetes objects that reviewers read"),
    "preflight": Verb(
        "operations.preflight.checklist", ON_AWS, "is everything there that a deployment needs?"
    ),
    "deploy": Verb(
        "operations.deploying", ON_AWS, "build all of it with the pinned CDK; no Trn2 node starts"
    ),
    "run": Verb(
        "operations.running.launch", ON_AWS, "from deployed stacks to the answer and back to 0 nodes"
    ),
    "status": Verb("operations.status", ON_AWS, "what is there on AWS, and what of it bills"),
    "verify": Verb("operations.verification", ON_AWS, "prove the running Trn2 nodes; about two minutes"),
    "cost": Verb("operations.pricing", ON_AWS, "dollars an hour by component, and of a run"),
    "scale": Verb("operations.scaling", ON_AWS, "set the number of Trn2 nodes, and when they go away"),
    "kubectl": Verb(
        "operations.cloud.access", ON_AWS, "kubectl on the experiment's cluster; nothing to install"
    ),
    "promote": Verb("operations.promotion", ON_AWS, "make the winning arm a service"),
    "teardown": Verb("operations.teardown", ON_AWS, "take an experiment down, then list what still bills"),
    "review": Verb(
        "operations.review.reviewing", IN_A_CHANGE, "what merging this tree does to what is deployed"
    ),
    "rehearse": Verb(
        "operations.handed_on:rehearse", IN_A_CHANGE, "bootstrap and deploy against a local stand-in"
    ),
}
EPILOG = (
    "The experiment is the first argument of a verb; without one it is TRNSPEC_EXPERIMENT or experiments/qwen3-32b.yaml.\n\n"
    "Exit codes: 0 fine, 1 a finding, 2 wrong usage or configuration, 3 AWS, the cluster or a registry could not be "
    "reached or gave no answer that can be read, or this program has a fault, 130 interrupted.\n\n"
    'Completion: eval "$(_TRNSPEC_COMPLETE=bash_source ./trnspec)", or zsh_source, or fish_source.'
)


class Door(click.Group):
    """A verb's module is imported when the verb is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            if ctx.resilient_parsing:
                return None
            raise click.NoSuchCommand(cmd_name, possibilities=VERBS, ctx=ctx)
        module, _, name = VERBS[cmd_name].module.partition(":")
        command: click.Command = getattr(import_module(module), name or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in (HERE, ON_AWS, IN_A_CHANGE):
            with formatter.section(group):
                formatter.write_dl([(name, verb.help) for name, verb in VERBS.items() if verb.group == group])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [(name, verb) for name, verb in VERBS.items() if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=verb.help) for name, verb in found),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]


door = Door(
    "trnspec",
    help="Does speculative decoding pay on AWS Trainium2, for your prompts?",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(__version__, message="%(prog)s %(version)s")(door)


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one verb; the exit code says how it ended (see --help)."""
    words = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    act = partial(
        door.main,
        words,
        prog_name="trnspec",
        complete_var="_TRNSPEC_COMPLETE",
        standalone_mode=False,
        terminal_width=width(),
    )
    if words[0] in VERBS:
        from operations.console import carried_out

        return carried_out(f"trnspec {words[0]}", act, as_json="--json" in words)
    return guarded("trnspec", lambda: _no_verb(act))


def _no_verb(act: Callable[[], int | None]) -> int:
    try:
        return act() or 0
    except click.UsageError as error:
        print(f"trnspec: {error.format_message()} (see ./trnspec --help)", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
