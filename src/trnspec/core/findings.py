"""Findings: what is wrong, or what was checked. They stay data until they are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from typing import Any

from trnspec.core.safe_output import printable, shortened

MAX_FINDINGS = 100
"""A person does not read more."""
_MAX_PLACE_LENGTH, _MAX_VALUE_LENGTH, _MAX_SENTENCE_LENGTH = 1000, 300, 1500
"""Maximum characters of a place, of its value, and of each sentence about it."""


class State(StrEnum):
    """How a check ended."""

    FINE = "fine"
    FINDING = "finding"
    WARNING = "warning"
    """Worth a look; the command continues."""
    UNKNOWN = "unknown"
    """The service that had to be asked did not answer, or refused access."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. A reader gets the first four fields, in that order."""

    where: str
    """For example `arms[1].speculation.num_speculative_tokens`; empty for a whole file or a whole check."""
    value: Any
    """The value there; `None` when it is absent."""
    why: str
    """What is wrong with the value, or what the check saw."""
    remedy: str = ""
    """What to do; empty where nothing has to be done."""
    _: KW_ONLY
    check: str = ""
    state: State = State.FINDING

    def line(self, *, max_value_length: int = _MAX_VALUE_LENGTH) -> str:
        """Return place, value, reason and remedy as one line that a terminal can show; each part is cut at its maximum length."""
        max_length = _MAX_SENTENCE_LENGTH * (
            1 if self.where else 2
        )  # without a place, the sentence is the line
        where, why = shortened(self.where, _MAX_PLACE_LENGTH), shortened(self.why, max_length)
        where = f"{where} = {_short(self.value, max_value_length)}" if self.value is not None else where
        remedy = f"; {shortened(self.remedy, _MAX_SENTENCE_LENGTH)}" if self.remedy else ""
        return printable((f"{where}: {why}" if where else why) + remedy)

    def as_json(self) -> dict[str, Any]:
        """Return the finding as JSON. A value that is not a string, a number or a boolean is given as a terminal shows it."""
        plain = (
            (isinstance(self.value, int) and self.value.bit_length() < 64)
            or (isinstance(self.value, float) and math.isfinite(self.value))
            or isinstance(self.value, str | None)
        )
        value = self.value if plain else _short(self.value, _MAX_VALUE_LENGTH)
        return {
            "where": shortened(self.where, _MAX_PLACE_LENGTH),
            "value": shortened(value, _MAX_PLACE_LENGTH) if isinstance(value, str) else value,
            "why": shortened(self.why, _MAX_SENTENCE_LENGTH),
            "remedy": shortened(self.remedy, _MAX_SENTENCE_LENGTH),
            "check": self.check,
            "state": self.state,
        }


def fine(why: str) -> Finding:
    """Return the finding of a check that passed."""
    return Finding("", None, why, state=State.FINE)


def finding(why: str, remedy: str) -> Finding:
    """Return the finding of a check that failed, with what to do."""
    return Finding("", None, why, remedy)


class Refusal(Exception):
    """The request is refused; `findings` say why, one line each. A string becomes a finding that has only a sentence.

    Only the first 100 findings are kept; the last line then says that there are more.
    """

    exit_code = 1
    state = State.FINDING

    def __init__(self, *findings: Finding | str) -> None:
        known = [Finding("", None, each) if isinstance(each, str) else each for each in findings]
        if len(known) > MAX_FINDINGS:
            more = Finding("", None, f"there are more problems than these {MAX_FINDINGS}", "fix these first")
            known[MAX_FINDINGS:] = [more]
        self.findings = tuple(replace(finding, state=self.state) for finding in known)
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """The message."""
        return [finding.line() for finding in self.findings]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the findings as JSON, each with its line of the message."""
        return [
            {"message": line, **finding.as_json()}
            for line, finding in zip(self.lines, self.findings, strict=True)
        ]


class Misuse(Refusal):
    """Wrong usage or configuration."""

    exit_code = 2


class Outside(Refusal):
    """AWS, the cluster or a registry could not be reached, refused access, or sent an answer that is not valid."""

    exit_code = 3
    state = State.UNKNOWN


class InvalidExperiment(Misuse):
    """An experiment file with at least one finding; all of them, in file order."""

    def __init__(self, file: str, findings: Sequence[Finding], line_numbers: dict[str, int]) -> None:
        numbered = [(_nearest(finding.where, line_numbers), finding) for finding in findings]
        numbered.sort(key=lambda entry: entry[0] or 0)
        self._file = shortened(file, _MAX_PLACE_LENGTH)
        self._numbers = [
            *(number for number, _ in numbered[:MAX_FINDINGS]),
            None,
        ]  # the last finding says that there are more
        super().__init__(*(finding for _, finding in numbered))

    @property
    def lines(self) -> list[str]:
        """File, line, path, value, reason and remedy; shortened, because the file can hold anything."""
        places = [f"{self._file}:{number}" if number else self._file for number in self._numbers]
        return [
            replace(
                finding,
                where=f"{place}: {shortened(finding.where, 200)}" if finding.where else place,
                why=shortened(finding.why, 600),
                remedy=shortened(finding.remedy, 600),
            ).line(max_value_length=60)
            for place, finding in zip(places, self.findings, strict=False)
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the findings as JSON, with file and line."""
        numbered = zip(self._numbers, super().as_json(), strict=False)
        return [{"file": self._file, "line": number, **finding} for number, finding in numbered]


def _short(value: Any, max_length: int) -> str:
    try:
        return shortened(repr(value), max_length)
    except ValueError:  # Python does not write a number of more than 4,300 digits
        return "a number of thousands of digits"


def _nearest(path: str, line_numbers: dict[str, int]) -> int | None:
    """The line of `path`, or of the closest ancestor in the file."""
    while path:
        if path in line_numbers:
            return line_numbers[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return None
