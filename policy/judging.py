"""Findings against exemptions, one by one, both ways: neither may be left over."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Exemption:
    """A check that some objects may fail, and why."""

    check: str
    objects: tuple[str, ...]
    """`Kind/name`, where the name may hold `*`."""
    reason: str


def judge(findings: Sequence[Finding], exemptions: Sequence[Exemption]) -> list[str]:
    """One line for each finding that nothing exempts, and for each exempted pattern that nothing needs any more."""
    open_findings = [
        _remedy(finding)
        for finding in findings
        if not any(_covers(entry, pattern, finding) for entry in exemptions for pattern in entry.objects)
    ]
    unused = [
        f"policy/exemptions.py: {entry.check}: {pattern}: no finding needs it; remove it"
        for entry in exemptions
        for pattern in entry.objects
        if not any(_covers(entry, pattern, finding) for finding in findings)
    ]
    return open_findings + unused


def _covers(exemption: Exemption, pattern: str, finding: Finding) -> bool:
    kind, _, name = pattern.partition("/")
    return (exemption.check, kind) == (finding.check, finding.kind) and fnmatchcase(finding.name, name)


def _remedy(finding: Finding) -> str:
    where = f" at {finding.where}" if finding.where else ""
    return (
        f"{finding.file}: {finding.kind}/{finding.name}: {finding.check}{where}: {finding.title}; "
        "fix it in cdk8s_charts and run `make manifests`, or exempt it with its reason in policy/exemptions.py"
    )
