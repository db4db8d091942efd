"""The programs that guides name, asked in this process: nothing is started for it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import click

from tests.conftest import ROOT
from trnspec.operations import delivery
from trnspec.operations.__main__ import door

CDK = {"bootstrap", "deploy", "destroy", "diff", "synth", "list"}
OUTSIDE = {
    *("aws", "kind", "go", "export", "git", "vllm"),
    *("echo", "cp", "kubectl", "docker", "setup-envtest", "vi"),
}
"""What this repository does not bring; options of these are not judged."""


class Wrong(Exception):
    """A command line that is not taken; the message is what the program said."""


def judge(command: Sequence[str]) -> None:
    """Raises `Wrong` for a program that is not there, or a command line that it does not take."""
    program, *arguments = command
    name = program.removeprefix("./")
    if module := module_of(command):
        _judge_module(*module)
    elif name.startswith("scripts/"):
        path = ROOT / name
        if not path.is_file() or not path.stat().st_mode & 0o100:
            raise Wrong(f"{name}: no such script")
        if name == "scripts/measure" and f"\n  {arguments[0]}) " not in path.read_text(encoding="utf-8"):
            raise Wrong(f"{name}: measures no {arguments[0]}")
    elif name == ".venv/bin/npx":
        _judge_cdk(*arguments)
    elif name == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        if not set(arguments) <= set(targets):
            raise Wrong(f"make has no target {arguments}")
    elif name not in OUTSIDE:
        raise Wrong(f"{name}: no program that guides may name")


def module_of(command: Sequence[str]) -> tuple[str, list[str]] | None:
    """Module and arguments that a command comes to; `None` where no Python of ours is behind it."""
    program, *arguments = command
    name = program.removeprefix("./")
    if name == "trnspec":
        return "trnspec.operations", arguments
    if name in ("python", ".venv/bin/python") and arguments[:1] == ["-m"]:
        return arguments[1], list(arguments[2:])
    return None


def run(module: str, arguments: Sequence[str]) -> int:
    """What `python -m module arguments` does, in this process. Raises whatever the program lets out."""
    main = _main_of(module).main
    with mock.patch.object(sys, "argv", [module, *arguments]), mock.patch("signal.signal"):
        code: int = main()
    return code


def _main_of(module: str) -> Any:
    package = importlib.util.find_spec(module)
    whole = package and package.submodule_search_locations
    return importlib.import_module(f"{module}.__main__" if whole else module)


def _judge_module(module: str, arguments: list[str]) -> None:
    """The options of a verb are read, and nothing else happens."""
    if module == "pytest":
        return
    if module.partition(".")[0] not in {"cdk8s_charts", "tests", "trnspec"}:
        raise Wrong(f"python -m {module}: no such module")
    known: click.Command | None = door
    if module == "trnspec.operations.delivery":
        known = click.Group(commands=delivery.VERBS)
    elif module != "trnspec.operations":
        program = _main_of(module)
        known = getattr(program, "door", None) or getattr(program, "command", None)
    words, context, name = arguments, None, "trnspec"
    try:
        while isinstance(known, click.Group):
            name, *words = words or ["--help"]
            if name in ("-h", "--help"):
                return
            context = click.Context(known, parent=context, **known.context_settings)
            known = known.get_command(context, name)
        if known is None:
            raise Wrong(f"{module}: No such command {name!r}")
        known.make_context(name, words, parent=context)
    except click.UsageError as error:
        raise Wrong(f"{module} {' '.join(arguments)}: {error.format_message()}") from None
    except click.exceptions.Exit:
        pass  # --help


def _judge_cdk(tool: str, verb: str, *rest: str) -> None:
    """The command line of cdk is not Python; its verbs and the context that this app reads are judged."""
    if tool != "cdk" or verb not in CDK:
        raise Wrong(f"npx {tool} {verb}: not what the project's npx is for")
    known = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    for flag, value in pairwise(rest):
        if flag == "-c" and value.partition("=")[0] not in known:
            raise Wrong(f"cdk -c {value}: the app reads no such key")
