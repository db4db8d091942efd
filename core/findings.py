"""What is wrong, or was checked, as data from where it is found until somebody reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import Any

from core.safe_output import printable, shortened

MOST_FINDINGS = 100
"""As many as a person reads."""
_MOST_PLACE, _MOST_VALUE, _MOST_WORDS = 1000, 300, 1500
"""Characters that are kept of a place, of its value, and of each sentence about it."""


class State(StrEnum):
    """How a check ended."""

    FINE = "fine"
    FINDING = "finding"
    WARNING = "warning"
    """Worth a look; nothing ends because of it."""
    UNKNOWN = "unknown"
    """What had to be asked did not answer, or did not let us ask."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. The first four are what a reader gets, in that order."""

    where: str
    """For example `arms[1].speculation.num_speculative_tokens`; empty for the whole of a file, or of a check."""
    value: Any
    """The value there; `None` when it is absent."""
    why: str
    """What is wrong with it, or how it was found to be."""
    remedy: str = ""
    """What to do; empty where nothing has to be done."""
    _: KW_ONLY
    check: str = ""
    state: State = State.FINDING

    def line(self, *, most: int = _MOST_VALUE) -> str:
        """Where, the value in at most so many characters, why and the remedy, as a terminal shows them; none of it longer than is
        read."""
        most_words = _MOST_WORDS if self.where else 2 * _MOST_WORDS  # a text is the whole line
        where, why = shortened(self.where, _MOST_PLACE), shortened(self.why, most_words)
        where = f"{where} = {_short(self.value, most)}" if self.value is not None else where
        remedy = f"; {shortened(self.remedy, _MOST_WORDS)}" if self.remedy else ""
        return printable((f"{where}: {why}" if where else why) + remedy)

    def as_json(self) -> dict[str, Any]:
        """For a machine. A value that is not one text, number or truth value is given as a terminal shows it."""
        plain = (
            (isinstance(self.value, int) and self.value.bit_length() < 64)
            or (isinstance(self.value, float) and math.isfinite(self.value))
            or isinstance(self.value, str | None)
        )
        value = self.value if plain else _short(self.value, _MOST_VALUE)
        return {
            "where": shortened(self.where, _MOST_PLACE),
            "value": shortened(value, _MOST_PLACE) if isinstance(value, str) else value,
            "why": shortened(self.why, _MOST_WORDS),
            "remedy": shortened(self.remedy, _MOST_WORDS),
            "check": self.check,
            "state": self.state,
        }


def fine(why: str) -> Finding:
    """The finding of a whole check that leaves nothing to do."""
    return Finding("", None, why, state=State.FINE)


def finding(why: str, remedy: str) -> Finding:
    """The finding of a whole check that leaves something to do."""
    return Finding("", None, why, remedy)


class Refusal(Exception):
    """What was asked for is not so; `findings` say why, a line each. A text is a finding of which nobody needs the parts.

    Of more than 100 findings the first are kept, and one says that there are more.
    """

    exit_code = 1
    state = State.FINDING

    def __init__(self, *findings: Finding | str) -> None:
        known = [Finding("", None, each) if isinstance(each, str) else each for each in findings]
        if len(known) > MOST_FINDINGS:
            more = Finding("", None, f"there are more problems than these {MOST_FINDINGS}", "fix these first")
            known[MOST_FINDINGS:] = [more]
        self.findings = tuple(replace(finding, state=self.state) for finding in known)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """The message."""
        return [finding.line() for finding in self.findings]

    def as_json(self) -> list[dict[str, Any]]:
        """The findings, for a machine, each with its line of the message."""
        return [
            {"message": line, **finding.as_json()}
            for line, finding in zip(self.lines, self.findings, strict=True)
        ]


class Misuse(Refusal):
    """Wrong usage or configuration."""

    exit_code = 2


class Outside(Refusal):
    """AWS, the cluster or a registry could not be reached, would not let us in, or answered what nobody could read."""

    exit_code = 3
    state = State.UNKNOWN


class InvalidExperiment(Misuse):
    """An experiment file with at least one finding; all of them, in file order."""

    def __init__(self, file: str, findings: Sequence[Finding], line_numbers: dict[str, int]) -> None:
        numbered = [(_nearest(finding.where, line_numbers), finding) for finding in findings]
        numbered.sort(key=lambda entry: entry[0] or 0)
        self._file = shortened(file, _MOST_PLACE)
        self._numbers = [
            *(number for number, _ in numbered[:MOST_FINDINGS]),
            None,
        ]  # the last says how many more
        super().__init__(*(finding for _, finding in numbered))

    @property
    def lines(self) -> list[str]:
        """File, line, path, value, reason, remedy; shortened, since anything may stand in the file."""
        places = [f"{self._file}:{number}" if number else self._file for number in self._numbers]
        return [
            replace(
                finding,
                where=f"{place}: {shortened(finding.where, 200)}" if finding.where else place,
                why=shortened(finding.why, 600),
                remedy=shortened(finding.remedy, 600),
            ).line(most=60)
            for place, finding in zip(places, self.findings, strict=False)
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """With file and line."""
        numbered = zip(self._numbers, super().as_json(), strict=False)
        return [{"file": self._file, "line": number, **finding} for number, finding in numbered]


def _short(value: Any, most: int) -> str:
    try:
        return shortened(repr(value), most)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of thousands of digits"


def _nearest(path: str, line_numbers: dict[str, int]) -> int | None:
    """The line of `path`, or of the closest ancestor in the file."""
    while path:
        if path in line_numbers:
            return line_numbers[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return None
