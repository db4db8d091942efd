"""Pages that several tests look at, each made once."""

from __future__ import annotations

import pytest

from benchmark.analyse.summary import summarise
from benchmark.measure.journal import RawRun
from benchmark.show.page import render
from tests.benchmark.records import raw_run
from tests.benchmark.show.runs import FUSED, PLAIN, SMALL, run_of

CLASSES = ("json", "open-ended")


@pytest.fixture(scope="session")
def runs() -> dict[str, RawRun]:
    """By what is odd about it."""
    return {
        "three arms, failures": run_of((PLAIN, FUSED, SMALL), CLASSES, fails=0.3, slo={"tpot_s": 0.03}),
        "one class, hours": run_of(classes=("json",), requests=260),
        "one arm": run_of((PLAIN,), ("json",)),
        "nothing answered": run_of(classes=("json",), fails=1.0),
        "nothing asked": raw_run(),
        "rate": run_of(classes=("json",), loads=({"concurrency": None, "rate_per_s": 2.5},)),
    }


@pytest.fixture(scope="session")
def pages(runs: dict[str, RawRun]) -> dict[str, str]:
    """The page of each run."""
    return {name: render(raw, summarise(raw)) for name, raw in runs.items()}
