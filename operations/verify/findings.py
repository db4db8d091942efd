"""One thing that was checked, and how it came out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A check that passed, or failed with what to do about it."""

    check: str
    subject: str
    """The node, the claim or the object that was looked at."""
    passed: bool
    found: str
    remedy: str = ""


def passed(check: str, subject: str, found: str) -> Checked:
    """It holds."""
    return Checked(check=check, subject=subject, passed=True, found=found)


def failed(check: str, subject: str, found: str, remedy: str) -> Checked:
    """It does not hold."""
    return Checked(check=check, subject=subject, passed=False, found=found, remedy=remedy)
