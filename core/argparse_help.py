"""A command line of argparse that helps and refuses as the verbs of click do."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from core.screen import wrapped

_WIDEST_NAME = 28
"""Columns of an option whose text stands beside it; below longer ones it begins on a line of its own."""


class Parser(argparse.ArgumentParser):
    """Usage, arguments, options and verbs within the terminal's width; a mistake is one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        typed = f"./{self.prog}" if self.prog.startswith("trnspec") else self.prog
        self.exit(2, f"{self.prog.removeprefix('python -m ')}: {message} (see {typed} --help)\n")

    def format_help(self) -> str:
        words = [
            _name(one) for one in self._actions if not one.option_strings and one.help != argparse.SUPPRESS
        ]
        blocks = [wrapped(" ".join(["[OPTIONS]", *words]), f"Usage: {self.prog} ")]
        blocks += [wrapped(_sentence(self.description), "  ")] if self.description else []
        for group in self._action_groups:
            actions = sorted(
                group._group_actions, key=lambda one: one.dest == "help"
            )  # --help is the last one
            shown = [one for one in actions if one.help != argparse.SUPPRESS]
            verbs = [one for one in shown if isinstance(one, argparse._SubParsersAction)]
            rows = [(_name(one), self._about(one)) for one in shown if one not in verbs]
            title = {"positional arguments": "arguments"}.get(group.title or "", group.title or "")
            blocks += _section(title, rows)
            blocks += _section(
                "commands",
                [(_name(one), self._about(one)) for verb in verbs for one in verb._choices_actions],
            )
        blocks += [wrapped(self.epilog)] if self.epilog else []
        return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"

    def _about(self, action: argparse.Action) -> str:
        if action.dest == "help":
            return "Show this message and exit."
        text = _sentence(self._get_formatter()._expand_help(action)) if action.help else ""
        if action.required and action.option_strings:
            return f"{text}  [required]"
        for group in self._mutually_exclusive_groups:
            if group.required and action in group._group_actions:
                others = (one.option_strings[-1] for one in group._group_actions if one is not action)
                return f"{text}  [required, or {' or '.join(others)}]"
        return text


def _name(action: argparse.Action) -> str:
    """As it is typed: `-h, --help`, `--out DIR`, `[DIR]`, `VERB ...`."""
    value: Any = action.metavar
    if value is None:
        value = f"[{'|'.join(map(str, action.choices))}]" if action.choices else action.dest.upper()
    if action.option_strings:
        return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")
    several = f"{value} ..." if action.nargs in ("+", "A...") else value
    return {"?": f"[{value}]", "*": f"[{value}]..."}.get(str(action.nargs), several)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _section(title: str, rows: Sequence[tuple[str, str]]) -> list[list[str]]:
    return [[*wrapped(f"{title[:1].upper()}{title[1:]}:"), *_entries(rows)]] if rows else []


def _entries(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    wide = max((len(name) for name, _ in rows if len(name) <= _WIDEST_NAME), default=_WIDEST_NAME)
    for name, text in rows:
        if len(name) > wide:
            yield from wrapped(name, "  ", "    ")
            yield from wrapped(text, " " * (wide + 4))
        else:
            yield from wrapped(text, f"  {name:<{wide}}  ") or [f"  {name}"]
