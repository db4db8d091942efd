"""Imports go one way; a room may only know the rooms below it."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import ROOT

MAY_IMPORT = {
    "experiment": set[str](),
    "benchmark": set[str](),
    "store": set[str](),
    "cdk8s_charts": {"experiment", "benchmark"},
    "infra": {"cdk8s_charts", "experiment", "benchmark"},
    "operations": {"infra", "cdk8s_charts", "experiment", "benchmark", "store"},
    "lab": {"infra", "cdk8s_charts", "experiment", "benchmark"},
    "maintenance": {"cdk8s_charts", "experiment", "benchmark"},
}
FORBIDDEN = {
    "experiment": {"boto3", "jsii", "aws_cdk", "cdk8s", "aiohttp", "time", "datetime", "random"},
    "benchmark": {"jsii", "aws_cdk", "cdk8s"},
    "store": {"jsii", "aws_cdk", "cdk8s", "pydantic"},
}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_import_goes_upward(package: str) -> None:
    others = MAY_IMPORT.keys() - MAY_IMPORT[package] - {package}
    for path in (ROOT / package).rglob("*.py"):
        wrong = _imported(path.read_text(encoding="utf-8")) & (
            others | FORBIDDEN.get(package, set()) | {"tests"}
        )
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def _imported(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names
