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
from benchmark.show.page import filled, render
from maintenance import picture
from tests.benchmark.show.runs import LONG, all_runs


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each page."""
    made = {name: render(raw, summarise(raw)) for name, raw in all_runs().items()}
    known: dict[str, Any] = {
        "experiment": "mine",
        "provenance": "emulated",
        "answer": "Use it.",
        "report": True,
    }
    run = Run(folder="one", link="one", started="2026-11-22", **known)
    damaged = Run(folder=LONG * 3, link="x", problem=f"not a run, {LONG}")
    listed = [run, replace(run, complete=True), damaged]
    made["results"] = filled("results.html", runs=listed)
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for name, content in made.items():
        found[name] = folder / f"{name.replace(' ', '-')}.html"
        found[name].write_text(content, encoding="utf-8")
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
