"""What a check reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Fault(NamedTuple):
    """Something wrong, as a check yields it."""

    object: str
    """`Kind/name`."""
    path: str
    """Where in the object."""
    why: str
    remedy: str


@dataclass(frozen=True)
class Finding:
    """A fault with the name of the check that found it."""

    check: str
    object: str
    path: str
    why: str
    remedy: str

    def line(self) -> str:
        """One line: check, where, why, remedy."""
        where = f"{self.object} {self.path}".strip()
        return f"{self.check}: {where}: {self.why}; {self.remedy}"
