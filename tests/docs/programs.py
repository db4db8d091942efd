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

from operations import delivery
from operations.__main__ import door
from tests.conftest import ROOT

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
    if name == "trnspec":
        _judge_verb(arguments)
    elif name.startswith("scripts/"):
        _judge_script(name, arguments)
    elif name in ("python", ".venv/bin/python") and arguments[:1] == ["-m"]:
        _judge_module(arguments[1], arguments[2:])
    elif name == ".venv/bin/npx":
        _judge_cdk(arguments)
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
        return "operations", arguments
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
    return importlib.import_module(
        f"{module}.__main__" if package and package.submodule_search_locations else module
    )


def _judge_script(name: str, arguments: Sequence[str]) -> None:
    path = ROOT / name
    if not path.is_file() or not path.stat().st_mode & 0o100:
        raise Wrong(f"{name}: no such script")
    if name == "scripts/measure" and f"\n  {arguments[0]}) " not in path.read_text(encoding="utf-8"):
        raise Wrong(f"{name}: measures no {arguments[0]}")


def _judge_verb(arguments: Sequence[str], group: click.Group = door) -> None:
    """The options of a verb are read, and nothing else happens."""
    verb, *words = arguments or ["--help"]
    if verb in ("-h", "--help"):
        return
    try:
        above = click.Context(group, info_name="trnspec", **group.context_settings)
        command = group.get_command(above, verb)
        if command is None:
            raise Wrong(f"No such command {verb!r}")
        if isinstance(command, click.Group) and words:
            _judge_verb(words, command)
        else:
            command.make_context(verb, words, parent=above)
    except click.UsageError as error:
        raise Wrong(f"trnspec {' '.join(arguments)}: {error.format_message()}") from None
    except click.exceptions.Exit:
        pass  # --help


def _judge_module(module: str, arguments: Sequence[str]) -> None:
    if module == "pytest":
        return
    if module in ("operations", "operations.delivery"):
        _judge_verb(arguments, door if module == "operations" else click.Group(commands=delivery.VERBS))
        return
    if module.partition(".")[0] not in {path.name for path in ROOT.iterdir()}:
        raise Wrong(f"python -m {module}: no such module")
    program = _main_of(module)
    group, command = getattr(program, "door", None), getattr(program, "command", None)
    if group is not None:
        _judge_verb(arguments, group)
    elif command is not None:
        _judge_verb([module, *arguments], click.Group(commands={module: command}))
    else:
        raise Wrong(f"{module} {' '.join(arguments)}: takes no command line")


def _judge_cdk(arguments: Sequence[str]) -> None:
    """The command line of cdk is not Python; its verbs and the context that this app reads are judged."""
    tool, verb, *rest = arguments
    if tool != "cdk" or verb not in CDK:
        raise Wrong(f"npx {tool} {verb}: not what the project's npx is for")
    known = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    for flag, value in pairwise(rest):
        if flag == "-c" and value.partition("=")[0] not in known:
            raise Wrong(f"cdk -c {value}: the app reads no such key")
