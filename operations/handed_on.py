"""Verbs that another room carries out. Its program reads the command line itself and names what a person typed."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_ROOT = Path(__file__).resolve().parent.parent
_START = "import sys; from {module} import main; sys.exit(main(prog={prog!r}))"


class _Program(click.Command):
    """All words go to the program, --help too."""

    def __init__(self, name: str, *, module: str, words: tuple[str, ...] = ()) -> None:
        super().__init__(name, add_help_option=False)
        self.module, self.words = module, words

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = [*self.words, *args]
        return ctx.args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        parser: argparse.ArgumentParser = import_module(self.module).parser(f"trnspec {self.name}")
        verbs: dict[str, argparse.ArgumentParser] = {}
        for word in (None, *ctx.args):  # down to the parser of the last verb that was typed
            parser = verbs.get(word, parser) if word else parser
            verbs = next((one.choices for one in parser._actions if one.nargs == argparse.PARSER), {})  # type: ignore[misc]
        if incomplete.startswith("-"):
            words = sorted(word for word in parser._option_string_actions if word.startswith(incomplete))
            return [*map(CompletionItem, words)]
        if verbs:
            return [CompletionItem(word) for word in verbs if word.startswith(incomplete)]
        return [CompletionItem(incomplete, type="file")]


class Process(_Program):
    """In the place of this process, so that signals and exit codes are the program's own."""

    def invoke(self, ctx: click.Context) -> None:
        find_spec(self.module)  # raises ModuleNotFoundError where the room is not installed
        start = _START.format(module=self.module, prog=f"trnspec {self.name}")
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        sys.stdout.flush()
        os.execve(
            sys.executable, [sys.executable, "-P", "-c", start, *ctx.args], {**os.environ, "PYTHONPATH": path}
        )


class _Here(_Program):
    """In this process, since it starts and ends soon."""

    def invoke(self, ctx: click.Context) -> int:
        code: int = import_module(self.module).main(ctx.args, prog="trnspec")
        return code


benchmark = Process("benchmark", module="benchmark.__main__")
results = _Here("results", module="benchmark.__main__", words=("results",))
