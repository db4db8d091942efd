"""What the package promises as a whole: names, definitions, imports, start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import benchmark
from benchmark.__main__ import door
from benchmark.metrics import BY_NAME, COMPARED, COST, DIMENSIONS, GOODPUT, METRICS, PUBLISHED, RUN_ACTIVE

PACKAGE = Path(benchmark.__file__).parent
README = (PACKAGE / "README.md").read_text()


def imported(path: Path) -> set[str]:
    """Top-level names that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_the_package_travels_with_core_and_the_libraries_of_its_image() -> None:
    image = {"aiohttp", "boto3", "botocore", "click", "jinja2", "markupsafe", "numpy", "pydantic", "scipy"}
    allowed = {"benchmark", "core", *image, *sys.stdlib_module_names}
    for path in PACKAGE.rglob("*.py"):
        assert imported(path) <= allowed, path


MODULES = ("commands.run_command", "commands.recorded_commands", "measure.rounds")


@pytest.mark.parametrize(
    ("look", "unwanted"),
    [
        (f"import sys, {', '.join(f'benchmark.{one}' for one in MODULES)}", "jinja2 numpy scipy boto3"),
        (
            "import sys; from benchmark.__main__ import main; main(['run', '--help'])",
            "aiohttp boto3 pydantic asyncio jinja2 numpy",
        ),
    ],
    ids=["every module", "help"],
)
def test_libraries_are_loaded_when_they_are_used_and_not_before(look: str, unwanted: str) -> None:
    check = f"\nassert not set({unwanted!r}.split()) & set(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look + check], cwd=PACKAGE.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_names_are_unique_and_end_in_their_unit() -> None:
    assert len(BY_NAME) == len(METRICS)
    assert all(metric.name.endswith("_s") for metric in METRICS if metric.unit in ("s", "tokens/s"))
    assert len({metric.cloudwatch_name for metric in PUBLISHED}) == len(PUBLISHED)
    assert COMPARED[0].name == "tpot_s"
    assert all(metric.title for metric in COMPARED)


def test_every_metric_is_found_in_cloudwatch_under_a_published_name() -> None:
    published = {metric.cloudwatch_name for metric in PUBLISHED}
    for metric in METRICS:
        if metric is RUN_ACTIVE:  # published while a run is on, by `publish --follow`, of no arm and no class
            assert metric.dimensions == DIMENSIONS[:1]
            continue
        assert metric.cloudwatch_name in published or metric in (GOODPUT, COST)
        assert metric.dimensions == DIMENSIONS


def test_the_readme_stays_short() -> None:
    prose = [line for line in README.splitlines() if not line.startswith("|")]
    assert len(prose) <= 80


def test_the_readme_names_every_verb() -> None:
    assert door.verbs
    assert all(f"python -m benchmark {verb}" in README for verb in door.verbs)
