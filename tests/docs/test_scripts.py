"""What is asked for help must not act: nothing is installed, nothing is written."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("script", ["setup", "test", "lock", "policy", "measure"])
def test_help_is_shown_in_a_fresh_clone_and_nothing_else_happens(
    script: str, option: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    before = sorted(tmp_path.rglob("*"))
    # Without anything on PATH but what shows a text, whatever else it tried would fail.
    done = subprocess.run(
        ["/bin/bash", f"scripts/{script}", option],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert 0 < len(done.stdout.splitlines()) < 20
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("scale 1 --hours 2 --experiment mine.yaml", "./trnspec scale mine.yaml 1 --hours 2"),
        ("promote qwen-sd-vllm --experiment=mine.yaml", "./trnspec promote mine.yaml qwen-sd-vllm"),
        ("render --set A=b", "./trnspec render --resolved --set A=b"),
        ("deliver smoke --experiment a.yaml", ".venv/bin/python -m operations.delivery smoke a.yaml"),
        ("status", "./trnspec status"),
    ],
)
def test_a_removed_script_says_in_one_line_what_replaces_it(words: str, said: str) -> None:
    name, *rest = words.split()
    done = subprocess.run([ROOT / "scripts" / name, *rest], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"scripts/{name}: is now {said}\n")
