"""Results and pages that several tests look at, each made once."""

from __future__ import annotations

import pytest

from tests.benchmark.records import result_of
from tests.benchmark.show.runs import all_runs
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.result import Result
from trnspec.benchmark.measure.raw_run import RawRun
from trnspec.benchmark.show.page import render


@pytest.fixture(scope="session")
def runs() -> dict[str, RawRun]:
    return all_runs()


@pytest.fixture(scope="session")
def results(runs: dict[str, RawRun]) -> dict[str, Result]:
    return {name: result_of(raw) for name, raw in runs.items()}


@pytest.fixture(scope="session")
def pages(runs: dict[str, RawRun], results: dict[str, Result]) -> dict[str, str]:
    return {name: render(cells_of(raw), results[name]) for name, raw in runs.items()}
