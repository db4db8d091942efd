"""Standard output that cannot be written, names that would move the cursor, and more problems than a person reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from core.findings import Finding, Misuse
from tests.conftest import ROOT

DOORS = {
    **{verb: f"-m operations {verb} --help" for verb in ("benchmark", "demo", "lab", "rehearse", "scale")},
    "no verb": "-m operations",
    "version": "-m operations --version",
    "checked": "-m operations check",
    "refused": "-m operations check --json nothing.yaml",
    "ledger": "-m experiment published --json",
    "store": "-m store --help",
    "manifests": "-m cdk8s_charts --help",
    "delivery": "-m operations.delivery --help",
}
CLEAR, FORGED = "\x1b[2J", "name\x1b]0;owned\x07\x9b31m\u202e"


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -P {line}"
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_output_that_cannot_be_written_is_one_line_and_a_reader_that_left_is_none(
    door: str, tmp_path: Path
) -> None:
    full = typed(f"{DOORS[door]} > /dev/full", tmp_path)
    *before, last = full.stderr.splitlines()
    assert (full.returncode, before[1:]) == (3, []), full.stderr
    assert "standard output cannot be written (No space left on device)" in last
    if door in ("no verb", "checked", "store", "manifests", "demo"):
        closed = typed(f"{DOORS[door]} >&-", tmp_path)
        assert (closed.returncode, len(closed.stderr.splitlines())) == (3, 1), closed.stderr
        assert "standard output cannot be written (closed)" in closed.stderr
        left = typed(f"{DOORS[door]} | (exec <&-; sleep 0.1)", tmp_path)
        assert (left.returncode, left.stderr) == (0, "")


@pytest.mark.parametrize(
    "line",
    [
        "-m operations check {}.yaml",
        "-m operations prompts {}",
        "-m benchmark report {}",
        "-m benchmark results {}",
        "-m benchmark run --out out --plan {}",
        "-m experiment check {}",
        "-m lab {}",
        "-m lab.rehearse {}",
        "-m store check {}",
        "-m cdk8s_charts {}",
        "-m operations {}",
    ],
)
def test_a_name_with_control_characters_is_shown_and_not_obeyed(line: str, tmp_path: Path) -> None:
    done = typed(line.format(f"'{FORGED}{CLEAR}'"), tmp_path)
    said = done.stdout + done.stderr
    assert "name" in said
    assert done.returncode in (0, 1, 2)
    assert all(one.isprintable() for one in said.splitlines()), said


def test_of_many_problems_the_first_are_said_and_none_is_longer_than_is_read() -> None:
    long = "x" * 600_000
    told = Misuse(*(Finding(long, long, long, long) for _ in range(3000)))
    assert len(told.lines) == 101
    assert told.lines[-1] == "there are more problems than these 100; fix these first"
    assert max(map(len, told.lines)) < 5000
    assert max(len(str(value)) for one in told.as_json() for value in one.values()) < 5000
    assert len(Misuse(*("a problem" for _ in range(100))).lines) == 100
