"""What the package promises as a whole: names, definitions, imports, start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trnspec import benchmark
from trnspec.benchmark.__main__ import door
from trnspec.benchmark.metrics import (
    COMPARED,
    COST,
    DIMENSIONS,
    GOODPUT,
    METRICS,
    PUBLISHED,
    RUN_ACTIVE,
)

PACKAGE = Path(benchmark.__file__).parent
GUIDE = (PACKAGE.parents[2] / "docs/measure.md").read_text(encoding="utf-8")
IMAGE = {"aiohttp", "boto3", "botocore", "click", "jinja2", "markupsafe", "numpy", "pydantic", "scipy"}
MODULES = ("commands.run_command", "commands.recorded_commands", "commands.report_command", "measure.run")


def test_the_package_travels_with_core_and_the_libraries_of_its_image() -> None:
    ours, outside = ("trnspec.benchmark", "trnspec.core"), {*IMAGE, *sys.stdlib_module_names}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in filter(None, names):
                assert name == "trnspec" or name.startswith(ours) or name.partition(".")[0] in outside, path


@pytest.mark.parametrize(
    ("look", "unwanted"),
    [
        (
            f"import sys, {', '.join(f'trnspec.benchmark.{name}' for name in MODULES)}",
            "jinja2 numpy scipy boto3",
        ),
        (
            "import sys; from trnspec.benchmark.__main__ import main; main(['run', '--help'])",
            "aiohttp boto3 pydantic asyncio jinja2 numpy",
        ),
    ],
    ids=["every module", "help"],
)
def test_libraries_are_loaded_when_they_are_used_and_not_before(look: str, unwanted: str) -> None:
    check = f"\nassert not set({unwanted!r}.split()) & set(sys.modules)"
    command = [sys.executable, "-c", look + check]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_names_are_unique_end_in_their_unit_and_are_found_in_cloudwatch() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(metric.name.endswith("_s") for metric in METRICS if metric.unit in ("s", "tokens/s"))
    published = {metric.cloudwatch_name for metric in PUBLISHED}
    assert len(published) == len(PUBLISHED)
    assert COMPARED[0].name == "tpot_s"
    assert all(metric.title for metric in COMPARED)
    assert RUN_ACTIVE.dimensions == DIMENSIONS[:1], "published while a run is on, of no arm and no class"
    for metric in {*METRICS} - {RUN_ACTIVE}:
        assert metric.cloudwatch_name in published or metric in (GOODPUT, COST)
        assert metric.dimensions == DIMENSIONS


def test_the_guide_names_every_verb() -> None:
    named = set(re.findall(r"python -m trnspec\.benchmark (\w+)", GUIDE))
    assert named == {*door.verbs} - {"results"}, "people list their runs by ./trnspec results"
