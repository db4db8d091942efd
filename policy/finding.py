"""What checkov found, read from its JSON report."""

from __future__ import annotations

import json
from dataclasses import dataclass


class UnreadableReport(Exception):
    """Checkov said something that is no full report of the manifests; the message is one line."""


@dataclass(frozen=True, order=True)
class Finding:
    """A check that an object fails. Checkov stops at the first container that does."""

    file: str
    """Relative to the folder that was scanned from."""
    kind: str
    name: str
    check: str
    title: str
    where: str
    """The attribute checkov looked at; empty where it names none."""


@dataclass(frozen=True)
class Report:
    """All of a scan."""

    findings: tuple[Finding, ...]
    objects: int
    """Objects that checkov looked at."""


def read_report(text: str) -> Report:
    """The report of `checkov --framework kubernetes -o json`.

    Raises `UnreadableReport` when it is not one, or when checkov could not read a file: a scan of half the manifests
    would look like a clean one.
    """
    try:
        data = json.loads(text)
        summary = data["summary"]
        findings = tuple(sorted(_finding(entry) for entry in data["results"]["failed_checks"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableReport(
            f"checkov's report is not as expected ({error!r}); was anything scanned?"
        ) from None
    if summary["parsing_errors"]:
        raise UnreadableReport(
            f"checkov could not read {summary['parsing_errors']} files; run `make manifests` and try again"
        )
    return Report(findings=findings, objects=summary["resource_count"])


def _finding(entry: dict[str, object]) -> Finding:
    kind, _, name = str(entry["resource"]).split(".", 2)
    result = entry["check_result"]
    keys = result.get("evaluated_keys") or [] if isinstance(result, dict) else []
    return Finding(
        file=str(entry["file_path"]).lstrip("/"),
        kind=kind,
        name=name,
        check=str(entry["check_id"]),
        title=str(entry["check_name"]),
        where=str(keys[-1]) if keys else "",
    )
