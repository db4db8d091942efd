"""What is wrong, or was checked, as data from where it is found until somebody reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import Any

MOST_FINDINGS = 100
"""As many as a person reads."""


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
    rests_on: tuple[str, ...] = ()
    """Further places that the judgement rests on: when one of them is broken itself, this is not reported."""

    def said(self, *, most: int = 300) -> str:
        """Where, the value in at most so many characters, and why, as a terminal shows them."""
        where = f"{self.where} = {_short(self.value, most)}" if self.value is not None else self.where
        return printable(f"{where}: {self.why}" if where else self.why)

    def line(self, *, most: int = 300) -> str:
        """The same with the remedy."""
        return self.said(most=most) + (f"; {printable(self.remedy)}" if self.remedy else "")

    def as_json(self) -> dict[str, Any]:
        """For a machine. A value that is not one text, number or truth value is given as a terminal shows it."""
        plain = (
            (isinstance(self.value, int) and self.value.bit_length() < 64)
            or (isinstance(self.value, float) and math.isfinite(self.value))
            or isinstance(self.value, str | None)
        )
        return {
            "where": self.where,
            "value": self.value if plain else _short(self.value, 300),
            "why": self.why,
            "remedy": self.remedy,
            "check": self.check,
            "state": self.state,
        }


def fine(why: str) -> Finding:
    """Of a whole check: nothing to do."""
    return Finding("", None, why, state=State.FINE)


def finding(why: str, remedy: str) -> Finding:
    """Of a whole check: something to do."""
    return Finding("", None, why, remedy)


class Refusal(Exception):
    """What was asked for is not so; `findings` say why, a line each. A text is a finding of which nobody needs the parts."""

    exit_code = 1
    state = State.FINDING

    def __init__(self, *findings: Finding | str) -> None:
        said = (Finding("", None, one) if isinstance(one, str) else one for one in findings)
        self.findings = tuple(replace(one, state=self.state) for one in said)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """The message."""
        return [finding.line() for finding in self.findings]

    def as_json(self) -> list[dict[str, Any]]:
        """The findings, for a machine, each with its line of the message."""
        return [
            {"message": line, **found.as_json()}
            for line, found in zip(self.lines, self.findings, strict=True)
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
        if len(numbered) > MOST_FINDINGS:
            more = Finding("", None, f"has more problems than these {MOST_FINDINGS}", "fix these first")
            numbered = [*numbered[:MOST_FINDINGS], (None, more)]
        self._file, self._numbers = shortened(file, 1000), [number for number, _ in numbered]
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
            for place, finding in zip(places, self.findings, strict=True)
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """With file and line."""
        return [
            {"file": self._file, "line": number, **found}
            for number, found in zip(self._numbers, super().as_json(), strict=True)
        ]


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
