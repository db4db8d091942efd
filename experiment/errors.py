"""What can be wrong with an experiment, as data that a reader can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MOST_PROBLEMS = 100
"""As many as a person reads."""


class ExperimentError(Exception):
    """Base of every error that this package raises on purpose; the message is one or more readable lines."""


@dataclass(frozen=True)
class Problem:
    """One reason for which an experiment cannot work."""

    path: str
    """Where in the file, e.g. `arms[1].speculation.num_speculative_tokens`; empty for the file as a whole."""
    value: Any
    """What stands there; `None` when nothing does."""
    why: str
    """Why that cannot work."""
    remedy: str
    """What would."""
    related: tuple[str, ...] = ()
    """Further paths that the judgement rests on: when one of them is broken itself, this problem is not reported."""

    def line(self, file: str, line_number: int | None) -> str:
        """The problem as one line: file, line, path, value, reason, remedy."""
        file = shortened(file, 1000)
        where = f"{file}:{line_number}" if line_number else file
        parts = [where]
        if self.path:
            path = shortened(self.path, 200)
            parts.append(path if self.value is None else f"{path} = {_short(self.value)}")
        return printable(": ".join([*parts, f"{shortened(self.why, 600)}; {shortened(self.remedy, 600)}"]))


class InvalidExperiment(ExperimentError):
    """An experiment file with at least one problem; `problems` holds all of them, in file order."""

    def __init__(self, file: str, problems: list[Problem], line_numbers: dict[str, int]) -> None:
        self.file = file
        numbered = [(_nearest(problem.path, line_numbers), problem) for problem in problems]
        numbered.sort(key=lambda entry: entry[0] or 0)
        if len(numbered) > MOST_PROBLEMS:
            more = Problem("", None, f"has more problems than these {MOST_PROBLEMS}", "fix these first")
            numbered = [*numbered[:MOST_PROBLEMS], (None, more)]
        self.problems = [problem for _, problem in numbered]
        self.lines = [problem.line(file, number) for number, problem in numbered]
        super().__init__("\n".join(self.lines))


def printable(text: str) -> str:
    """`text` as one line that a terminal shows and does not obey: control characters and line ends are escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shortened(text: str, most: int) -> str:
    """At most `most` characters of `text`."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _short(value: Any) -> str:
    try:
        return shortened(repr(value), 60)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"


def _nearest(path: str, line_numbers: dict[str, int]) -> int | None:
    """The line of `path`, or of the closest ancestor that stands in the file."""
    while path:
        if path in line_numbers:
            return line_numbers[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return None
