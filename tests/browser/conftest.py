"""A browser without a window, and the pages that it opens."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.records import result_of
from tests.benchmark.show.runs import ACCEPTED, FUSED, PLAIN, all_runs, run_of
from tests.browser import picture
from trnspec.benchmark.analyse.attachments import EXPECTED as EXPECTED_FILE
from trnspec.benchmark.analyse.cells import cells_of
from trnspec.benchmark.analyse.summary import summarise
from trnspec.benchmark.show.page import render


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each page."""
    made = {name: render(cells_of(raw), result_of(raw)) for name, raw in all_runs().items()}
    raw, folder = run_of(), tmp_path_factory.mktemp("pages")
    same = {
        "arm": FUSED["name"],
        "metric": "speed_up",
        "concurrency": 4,
        "tolerance": 0.2,
        "source": "a table",
    }
    expected: tuple[tuple[list[str], float], ...] = (
        ([], 1.5),
        (["json"], 0.5),
        (list(ACCEPTED), 4.0),
        (["code"], 1.7),
    )
    figures = [{**same, "classes": classes, "value": value} for classes, value in expected]
    step = {"step_over_plain": 2.0, "step_over_plain_low": 0.3, "step_over_plain_high": 4.0}
    plain = {"plain_tpot_s": 0.01, "plain_tpot_low_s": 0.008, "plain_tpot_high_s": 0.015}
    on = {"instance": "trn2.48xlarge", "chips": 8, "engine": "vLLM 0.9.1", "at_once": 4}
    arms = [{"arm": PLAIN["name"], **on, **plain}, {"arm": FUSED["name"], **on, **plain, "drafted": step}]
    (folder / EXPECTED_FILE).write_text(json.dumps({"arms": arms, "quoted": [], "figures": figures}))
    made["against the forecast"] = render(cells_of(raw), summarise(cells_of(raw), folder))
    found = {}
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
