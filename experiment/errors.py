"""What can be wrong with an experiment, as data that a reader can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        where = f"{file}:{line_number}" if line_number else file
        parts = [where]
        if self.path:
            parts.append(self.path if self.value is None else f"{self.path} = {_short(self.value)}")
        return ": ".join([*parts, f"{self.why}; {self.remedy}"])


class InvalidExperiment(ExperimentError):
    """An experiment file with at least one problem; `problems` holds all of them, in file order."""

    def __init__(self, file: str, problems: list[Problem], line_numbers: dict[str, int]) -> None:
        self.file = file
        numbered = [(_nearest(problem.path, line_numbers), problem) for problem in problems]
        numbered.sort(key=lambda entry: entry[0] or 0)
        self.problems = [problem for _, problem in numbered]
        self.lines = [problem.line(file, number) for number, problem in numbered]
        super().__init__("\n".join(self.lines))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _nearest(path: str, line_numbers: dict[str, int]) -> int | None:
    """The line of `path`, or of the closest ancestor that stands in the file."""
    while path:
        if path in line_numbers:
            return line_numbers[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return None
