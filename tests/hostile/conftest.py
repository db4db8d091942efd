"""Hostile input; the worlds of other tests. All of it runs with the slow tests: it guards doors that a day's work seldom moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmark.conftest import endpoint, write_plan
from tests.operations.conftest import account, aws, credentials, experiment

__all__ = ["account", "aws", "credentials", "endpoint", "experiment", "write_plan"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
