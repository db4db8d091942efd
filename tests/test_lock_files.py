"""Each lock file holds what its list of requirements asks for, by hash; `make lock` writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

ASKED = [ROOT / name for name in ("requirements.in", "requirements-dev.in", "requirements-policy.in")]
ASKED += sorted((ROOT / "images").rglob("requirements.in"))


@pytest.mark.parametrize("path", ASKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lock_file_has_each_version_that_is_asked_for(path: Path) -> None:
    asked = re.findall(
        r"^([A-Za-z][\w.-]*)(?:\[\w+\])?(==[\w.+]+)?", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    lock = path.with_suffix(".txt").read_text(encoding="utf-8")
    locked = dict(
        re.findall(r"^([a-z][\w.-]*)(?:\[\w+\])?(==[\w.+]+)[^\n]*\\\n +--hash=sha256:", lock, re.MULTILINE)
    )
    assert asked
    for name, version in asked:
        found = locked.get(re.sub(r"[._-]+", "-", name).lower())
        assert found, f"{name} is not in {path.stem}.txt; run: make lock"
        assert found == (version or found), f"{name}{version} is locked as {found}; run: make lock"


def test_the_lock_file_of_node_has_the_version_that_is_asked_for() -> None:
    asked = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    locked = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for name, version in asked["devDependencies"].items():
        assert locked[""]["devDependencies"][name] == locked[f"node_modules/{name}"]["version"] == version


def test_lock_files_name_no_index_and_no_machine() -> None:
    node, python = ROOT / "package-lock.json", ROOT.glob("requirements*.txt")
    for path in (node, *python, *(asked.with_suffix(".txt") for asked in ASKED)):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"--(extra-)?index|--find-links|https?://|file:", text), path.name
