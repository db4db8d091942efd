"""Hostile input, a test a case: what was tried and what was handled, counted by file at the end."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.benchmark.conftest import endpoint, write_plan
from tests.operations.conftest import account, api, aws, cluster, credentials, experiment, say, world

__all__ = [
    "account",
    "api",
    "aws",
    "cluster",
    "credentials",
    "endpoint",
    "experiment",
    "say",
    "world",
    "write_plan",
]

FOLDER = "tests/hostile/"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried: Counter[str] = Counter()
    handled: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if report.when == "call" and report.nodeid.startswith(FOLDER):
                subject = report.nodeid.split("::")[0].removeprefix(FOLDER)
                tried[subject] += 1
                handled[subject] += outcome == "passed"
    if not tried:
        return
    terminalreporter.section("hostile input")
    for subject in sorted(tried):
        terminalreporter.write_line(f"{subject}: {tried[subject]} tried, {handled[subject]} handled")
    terminalreporter.write_line(f"all: {tried.total()} tried, {handled.total()} handled")
