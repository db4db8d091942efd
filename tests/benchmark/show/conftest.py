"""Summaries and pages that several tests look at, each made once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmark.records import summary_of
from tests.benchmark.show.runs import all_runs
from trnspec.benchmark.analyse.requests import cells_of
from trnspec.benchmark.measure.journal import RawRun
from trnspec.benchmark.show.page import render


@pytest.fixture(scope="session")
def runs() -> dict[str, RawRun]:
    return all_runs()


@pytest.fixture(scope="session")
def summaries(runs: dict[str, RawRun]) -> dict[str, dict[str, Any]]:
    return {name: summary_of(raw) for name, raw in runs.items()}


@pytest.fixture(scope="session")
def pages(runs: dict[str, RawRun], summaries: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: render(cells_of(raw), summaries[name]) for name, raw in runs.items()}
