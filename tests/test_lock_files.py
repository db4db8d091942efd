"""uv.lock is what pyproject.toml asks for, and each list of requirements what uv.lock says; `make lock` writes them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

UV = ROOT / ".venv/bin/uv"
EXPORTED = ("requirements.txt", "images/tools/requirements.txt", "images/lmeval/requirements.txt")


def _uv(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([UV, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_lock_file_is_what_the_project_asks_for() -> None:
    done = _uv("lock", "--check", "--offline")
    assert done.returncode == 0, f"{done.stderr}\nrun: make lock"


@pytest.mark.parametrize("name", EXPORTED)
def test_a_list_of_requirements_is_the_part_of_the_lock_file_that_its_first_lines_name(
    name: str, tmp_path: Path
) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    (command,) = re.findall(r"^#    uv (export .+)$", text, re.MULTILINE)
    *words, option, file = shlex.split(command)
    assert (option, file) == ("-o", name)
    done = _uv(*words, "--offline", option, str(tmp_path / "exported"))
    assert done.returncode == 0, done.stderr
    exported = (tmp_path / "exported").read_text(encoding="utf-8").splitlines()
    assert text.splitlines()[2:] == exported[2:], "run: make lock"
    assert re.findall(r"^[a-z0-9].*==.*[^\\]$", text, re.MULTILINE) == [], "without a hash"


def test_the_lock_file_of_node_has_the_version_that_is_asked_for() -> None:
    asked = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    locked = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    for name, version in asked["devDependencies"].items():
        assert locked[""]["devDependencies"][name] == locked[f"node_modules/{name}"]["version"] == version


def test_lock_files_name_no_machine_and_no_index_but_the_public_one() -> None:
    public = r"https://(pypi\.org/simple|files\.pythonhosted\.org/packages/[\w./+-]+)\""
    for name in (*EXPORTED, "package-lock.json", "uv.lock"):
        text = re.sub(public, "", (ROOT / name).read_text(encoding="utf-8"))
        assert not re.search(r"--(extra-)?index|--find-links|https?://|file:", text), name
