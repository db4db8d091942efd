"""How every command line runs: a verb is imported when it is called, and an error becomes one line and an exit code.

Only click is imported before a verb is chosen, so `--help` and shell completion start as fast as click does.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from trnspec.core.safe_output import Unwritable, guarded
from trnspec.core.screen import width

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from trnspec.core.findings import Refusal

SETTINGS: Mapping[str, Any] = {"help_option_names": ["-h", "--help"]}
"""Settings of the context of a command that starts a program."""


class Verb(NamedTuple):
    """The module of a verb. Its `click.Command` is named `command`, or as the text after the colon says."""

    module: str
    help: str
    group: str = "Commands"
    """The heading under which the verb is listed."""
    needs_checkout: bool = False
    """Whether it imports what the wheel does not have."""
    hidden: bool = False
    """Whether --help leaves it out."""


class Verbs(click.Group):
    """A command with verbs, in the order in which they are listed."""

    def __init__(self, name: str, verbs: Mapping[str, Verb], **settings: Any) -> None:
        super().__init__(name, context_settings=dict(SETTINGS), **settings)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.verbs:
            if ctx.resilient_parsing:
                return None
            shown = [name for name, verb in self.verbs.items() if not verb.hidden]
            raise click.NoSuchCommand(cmd_name, possibilities=shown, ctx=ctx)
        verb = self.verbs[cmd_name]
        if verb.needs_checkout:
            from trnspec.core.checkout import require_checkout

            require_checkout(f"{self.name} {cmd_name}")
        module, _, name = verb.module.partition(":")
        command: click.Command = getattr(import_module(module), name or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in dict.fromkeys(verb.group for verb in self.verbs.values()):
            with formatter.section(group):
                shown = (one for one in self.verbs.items() if one[1].group == group and not one[1].hidden)
                formatter.write_dl([(name, verb.help) for name, verb in shown])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        known = [
            (name, verb)
            for name, verb in self.verbs.items()
            if name.startswith(incomplete) and not verb.hidden
        ]
        return [
            *(CompletionItem(name, help=verb.help) for name, verb in known),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]


def carried_out(command: click.Command, arguments: Sequence[str] | None = None, *, prog: str) -> int:
    """Run a command line and return its exit code. Without `arguments`, those of the process are used.

    Findings are printed on stderr, one line each. With `--json` among the arguments they are also printed on stdout, as
    `{"problems": [...]}`. SIGTERM interrupts like Ctrl-C.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    who = _who(command, words[:1], prog)
    return guarded(who, partial(_carried_out, command, words, prog))


def _who(command: click.Command, words: Sequence[str], prog: str) -> str:
    """Return the program and its verbs, for the beginning of a message: `benchmark run`."""
    names = [prog.removeprefix("python -m ")]
    for word in words:
        context = click.Context(command)
        if not isinstance(command, click.Group) or word not in command.list_commands(context):
            break
        names.append(word)
        if len(words) > 1:
            command = command.get_command(context, word) or command
    return " ".join(names)


def _carried_out(command: click.Command, words: list[str], prog: str) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    variable = f"_{re.sub(r'[^a-z]', '_', prog)}_complete".upper()
    try:
        code = command.main(
            words, prog_name=prog, complete_var=variable, standalone_mode=False, terminal_width=width()
        )
        return code or 0
    except Unwritable:
        raise
    except (KeyboardInterrupt, click.Abort):
        print(f"{_place(command, words, prog)}: interrupted; it can be run again", file=sys.stderr)
        return 130
    except Exception as error:
        return _refused(error, _place(command, words, prog), as_json="--json" in words)


def _place(command: click.Command, words: Sequence[str], prog: str) -> str:
    try:
        return _who(command, words, prog)
    except Exception:  # a verb that cannot be imported
        return _who(command, words[:1], prog)


def _refused(error: Exception, who: str, *, as_json: bool) -> int:
    from trnspec.core.console import print_json
    from trnspec.core.findings import InvalidExperiment

    refusal = _in_words(error, who)
    # The lines of an invalid experiment begin with its file.
    prefix = "" if isinstance(refusal, InvalidExperiment) else f"{who}: "
    for line in refusal.lines:
        print(f"{prefix}{line}", file=sys.stderr)
    if as_json:
        print_json({"problems": refusal.as_json()})
    return refusal.exit_code


def _in_words(error: Exception, who: str) -> Refusal:
    from trnspec.core.findings import Misuse

    typed = f"./{who}" if who.split()[0] == "trnspec" else f"python -m {who}"
    if isinstance(error, click.NoSuchOption) and error.ctx:  # a hidden one is not suggested
        hidden = {
            name for one in error.ctx.command.params if getattr(one, "hidden", False) for name in one.opts
        }
        shown = [name for name in error.possibilities or () if name not in hidden]
        error = click.NoSuchOption(error.option_name, possibilities=shown, ctx=error.ctx)
    if isinstance(error, click.UsageError):  # without this, a group without a verb prints its whole help
        bare = isinstance(error, click.exceptions.NoArgsIsHelpError)
        return Misuse(f"{'Missing command.' if bare else error.format_message()} (see {typed} --help)")
    if isinstance(error, ModuleNotFoundError):
        return Misuse(f"needs {error.name}; run: pip install {error.name}")
    return refusal_of(error)


def refusal_of(error: Exception) -> Refusal:
    """Return an unexpected exception as a refusal of one line, with its place in this project."""
    from trnspec.core.findings import Outside, Refusal

    if isinstance(error, Refusal):
        return error
    if isinstance(error, OSError) and error.strerror:
        return Outside(
            f"{error.filename or 'the machine'}: {error.strerror}; make room or correct its permissions"
        )
    import traceback  # traceback and pathlib take a tenth of the time of --help, which needs neither
    from pathlib import Path

    from trnspec.core.checkout import ROOT, is_checkout

    root = ROOT if is_checkout() else Path(__file__).resolve().parents[2]
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    places = [
        f" in {Path(frame.filename).relative_to(root)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(root) and ".venv" not in frame.filename
    ]
    place = places[-1] if places else ""
    return Outside(
        f"{what}{place}: a fault of this program, or an answer that it cannot read; run this again"
    )


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
