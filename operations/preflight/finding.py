"""What one check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a check ended."""

    FINE = "fine"
    FINDING = "finding"
    UNKNOWN = "unknown"
    """Whoever had to be asked did not answer, or did not let us ask."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check."""

    check: str
    state: State
    detail: str
    remedy: str = ""
    """What to do; empty where nothing has to be done."""

    def as_json(self) -> dict[str, str]:
        return {"check": self.check, "state": self.state, "detail": self.detail, "remedy": self.remedy}


def fine(check: str, detail: str) -> Finding:
    """Nothing to do."""
    return Finding(check=check, state=State.FINE, detail=detail)


def finding(check: str, detail: str, remedy: str) -> Finding:
    """Something to do."""
    return Finding(check=check, state=State.FINDING, detail=detail, remedy=remedy)
