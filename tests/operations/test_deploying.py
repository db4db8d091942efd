"""Every line that tells somebody to deploy gives the whole command, and no option that the next deployment forgets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.deployment_file import KEYS
from operations.deploying import deploy_command
from tests.conftest import ROOT

WHOLE = ".venv/bin/npx cdk deploy --all"
SAYING = [
    path for room in ("operations", "infra", "cdk8s_charts") for path in sorted((ROOT / room).rglob("*.py"))
]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def said(path: Path) -> Iterator[str]:
    """The texts in a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


def test_the_experiment_of_cdk_json_needs_no_option_and_every_other_its_file() -> None:
    assert deploy_command("qwen3-32b") == WHOLE
    assert deploy_command("qwen3-today") == f"{WHOLE} -c experiment=experiments/qwen3-32b-today.yaml"
    assert deploy_command("mine") == f"{WHOLE} -c experiment=<the file of mine>"


def test_every_remedy_prints_the_whole_command() -> None:
    texts = [
        text for path in SAYING for text in said(path) if re.search(r"cdk deploy --all|npx cdk deploy", text)
    ]
    assert texts
    assert [text for text in texts if WHOLE not in text] == []


@pytest.mark.parametrize("key", KEYS)
def test_nothing_that_lasts_is_asked_for_as_an_option(key: str) -> None:
    for path in SAYING:
        assert not [text for text in said(path) if f"-c {key}=<" in text or f"with -c {key}" in text], path
    for path in GUIDES:
        assert f"-c {key}=" not in path.read_text(encoding="utf-8"), path
