"""A browser without a window, and the pages that it opens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.analyse.summary import summarise
from benchmark.commands.results_command import Run
from benchmark.measure.journal import RawRun
from benchmark.show.page import filled, render
from maintenance import picture
from tests.benchmark.records import emulated, raw_run
from tests.benchmark.show.runs import FUSED, PLAIN, SMALL, run_of, searched, swept

CLASSES = ("repetition", "numeric", "json", "code", "open-ended")
LONG = "a-name-that-somebody-made-as-long-as-names-may-be"


def _incomplete(raw: RawRun) -> RawRun:
    return replace(raw, requests=raw.requests[: len(raw.requests) * 4 // 5])


def runs() -> dict[str, RawRun]:
    """By what is odd about it."""
    slo = {"tpot_s": 0.03}
    loads: tuple[dict[str, Any], ...] = (
        {"concurrency": 1, "rate_per_s": None},
        {"concurrency": None, "rate_per_s": 2.5},
    )
    ends = ({"name": "a", "url": "http://a/v1"}, {"name": "b", "url": "http://b/v1"})
    long_arms = ({**PLAIN, "name": LONG}, {**FUSED, "name": f"{LONG}-drafting"})
    return {
        "reference": emulated(run_of(classes=CLASSES)),
        "sweep": swept((2, 3, 4, 5, 6, 7, 8), CLASSES),
        "failures": _incomplete(run_of((PLAIN, FUSED, SMALL), CLASSES, fails=0.4, slo=slo)),
        "two endpoints": run_of(ends, ("json", "code", "open-ended")),
        "loads": run_of(classes=CLASSES, loads=loads),
        "long names": run_of(long_arms, tuple(f"{LONG}-{i}" for i in range(8))),
        "search": searched(CLASSES, slo=slo),
        "many requests": run_of(classes=("json",), requests=260),
        "nothing asked": raw_run(),
    }


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each page."""
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for name, raw in runs().items():
        found[name] = folder / f"{name.replace(' ', '-')}.html"
        found[name].write_text(render(raw, summarise(raw)), encoding="utf-8")
    run = Run(
        folder="one",
        link="one",
        started="2026-11-22",
        experiment="mine",
        provenance="emulated",
        answer="Use it.",
        report=True,
    )
    found["results"] = folder / "results.html"
    listed = [run, replace(run, complete=True), Run(folder=LONG * 3, link="x", problem=f"not a run, {LONG}")]
    found["results"].write_text(filled("results.html", runs=listed), encoding="utf-8")
    return found


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """chromium, driven by selenium; without it a skip, or a failure where TRNSPEC_BROWSER=required."""
    if lacking := [path for path in (picture.CHROMIUM, picture.DRIVER) if not shutil.which(path)]:
        message = f"{' and '.join(lacking)} not installed: apt-get install chromium chromium-driver"
        if os.environ.get("TRNSPEC_BROWSER") == "required":
            pytest.fail(f"TRNSPEC_BROWSER=required, but {message}")
        pytest.skip(message)
    found = picture.browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.quit()
