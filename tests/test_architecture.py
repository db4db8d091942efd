"""The rooms: imports go down, nowhere in a circle, and a name tells which module is meant.

5  operations   app.py   pipeline.py
4  infra   lab
3  cdk8s_charts
2  experiment
1  benchmark   store
0  core
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAY_IMPORT: Mapping[str, set[str]] = {
    "core": set(),
    "experiment": {"core", "benchmark"},
    "benchmark": {"core"},
    "store": {"core"},
    "cdk8s_charts": {"core", "experiment", "benchmark.plan"},
    "infra": {"core", "experiment", "benchmark.metrics", "cdk8s_charts.manifests"},
    "lab": {"core", "experiment", "benchmark", "cdk8s_charts"},
    "operations": {"core", "experiment", "benchmark", "store", "lab", "cdk8s_charts", "infra"},
    "app": {"core", "infra", "experiment"},
    "pipeline": {"core", "infra", "experiment"},
}
"""What a room may import of other rooms: a whole room, or one module of it."""

FORBIDDEN = {
    "experiment": {"boto3", "jsii", "aws_cdk", "cdk8s", "aiohttp", "time", "datetime", "random"},
    "benchmark": {"jsii", "aws_cdk", "cdk8s"},
    "store": {"jsii", "aws_cdk", "cdk8s", "pydantic"},
}
MOST_LINES, OF_TESTS = 350, 450


def _modules() -> dict[str, Path]:
    sources = {
        ROOT: ["app.py", "pipeline.py", "cdk8s_charts/**/*.py", "infra/**/*.py"],
        ROOT / "src": ["**/*.py"],
    }
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
        for folder, patterns in sources.items()
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
    }


MODULES = _modules()
"""Every module of ours, as it is imported."""


def room_of(name: str) -> str:
    """The room of a module; of one that is not ours, its distribution."""
    return name.removeprefix("trnspec.").split(".")[0]


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def imported(name: str) -> tuple[str, ...]:
    """Every module that it imports, also inside functions and for types: of ours as far as it is a module."""
    return tuple(_imported(name))


def _imported(name: str) -> Iterator[str]:
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_no_import_goes_upward(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    for name in MODULES:
        if room_of(name) != room:
            continue
        for other in imported(name):
            top = room_of(other)
            assert top not in FORBIDDEN.get(room, set()) | {"tests"}, f"{name} imports {other}"
            assert top not in MAY_IMPORT or top in allowed or other.removeprefix("trnspec.") in allowed, (
                f"{name} imports {other}"
            )


def test_no_circle_at_any_level() -> None:
    """Of the modules and folders that lie side by side, none needs one that needs it; all rooms lie side by side."""
    levels: dict[str, dict[str, set[str]]] = {}
    for name in MODULES:
        for other in imported(name):
            if other not in MODULES or other == name:
                continue
            here, there = _with_face(name), _with_face(other)
            depth = next(i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b)
            levels.setdefault(".".join(here[:depth]), {}).setdefault(here[depth], set()).add(there[depth])
    for level, graph in levels.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"in {level or 'the tree'}: {' <- '.join(error.args[1])}")


def _with_face(name: str) -> list[str]:
    """A package's own `__init__` lies beside the modules in it."""
    return [
        *name.removeprefix("trnspec.").split("."),
        *(["__init__"] if MODULES[name].name == "__init__.py" else []),
    ]


def test_a_name_means_one_module() -> None:
    names = Counter(path.stem for path in MODULES.values() if path.stem not in ("__init__", "__main__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_name_means_one_class() -> None:
    names = Counter(
        node.name for name in MODULES for node in ast.walk(tree_of(name)) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_docstrings_begin_with_a_main_clause() -> None:
    """Those of modules, classes, functions and fields; the files that lie whole in the manifests keep their text."""
    in_manifests = {
        "cdk8s_charts." + name for name in ("image_probe", "node_probe", "one_layer", "draft_heads")
    }
    for name in MODULES.keys() - in_manifests:
        for node in ast.walk(tree_of(name)):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    assert not text.startswith(("Of ", "By ")), f"{name}:{node.lineno}: {text[:60]}"


def test_no_module_is_too_long_for_one_reading() -> None:
    for path in [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]:
        lines = path.read_text(encoding="utf-8").count("\n")
        most = OF_TESTS if path.is_relative_to(ROOT / "tests") else MOST_LINES
        assert lines <= most, f"{path.relative_to(ROOT)}: {lines} lines"


def test_tests_lie_as_the_rooms_do() -> None:
    """A folder of tests has the name of a room or of one of its folders; the others are lanes of their own."""
    lanes = {"apiserver", "browser", "data", "docs", "engine", "hostile", "measure", "benchmark/streams"}
    folders = {p.relative_to(ROOT / "tests").as_posix() for p in (ROOT / "tests").rglob("*") if p.is_dir()}
    for folder in folders:
        top = folder.split("/")[0]
        if "__pycache__" in folder or {top, folder} & lanes or folder.endswith("/data") or "/data/" in folder:
            continue
        assert any((home / folder).is_dir() for home in (ROOT, ROOT / "src/trnspec")), (
            f"no room for tests/{folder}"
        )
