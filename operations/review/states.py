"""The two states of the repository that are compared, each described by its own code in a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operations.errors import OperationsError, OutsideError, UsageError

_SNAPSHOT = Path(__file__).with_name("snapshot.py")


def check_out(base: str, *, repository: Path, into: Path) -> str:
    """Put the files of the commit that `base` names into `into`; returns its short hash.

    Raises `UsageError` where git knows no such commit.
    """
    commit = _git(repository, ["rev-parse", "--verify", "--quiet", "--short", f"{base}^{{commit}}"])
    if commit is None:
        raise UsageError(
            f"{base}: no commit of this repository; fetch it (git fetch origin), or name another, e.g. origin/main"
        )
    name = commit.decode().strip()
    archive = _git(repository, ["archive", "--format=tar", name])
    if archive is None:
        raise UsageError(
            f"{base}: git cannot read its files; fetch them (git fetch --unshallow), then run this again"
        )
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(into, filter="data")
    return name


def describe(trees: Mapping[str, Path], *, templates: bool) -> list[dict[str, Any]]:
    """Snapshots (see `snapshot.py`) of trees by what they are called, side by side: most of the time is starting.

    Raises `OperationsError` where a state's own code fails.
    """
    running = [_start(tree, templates=templates) for tree in trees.values()]
    ended = [process.communicate() for process in running]
    states = []
    for name, process, (out, err) in zip(trees, running, ended, strict=True):
        if process.returncode:
            last = (err.strip().splitlines() or ["it said nothing"])[-1]
            raise OperationsError(
                f"{name}: its code does not run with what is installed here ({last}); run scripts/setup, or compare "
                "with a later commit"
            )
        state: dict[str, Any] = json.loads(out)
        states.append(state)
    return states


def _start(tree: Path, *, templates: bool) -> subprocess.Popen[str]:
    # -P: this folder must not stand on the path of the other state's code
    command = [sys.executable, "-P", str(_SNAPSHOT), str(tree), *(["--templates"] if templates else [])]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _git(repository: Path, arguments: list[str]) -> bytes | None:
    try:
        ended = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, check=False)
    except OSError as error:
        raise OutsideError(f"git: cannot be run ({error.strerror}); install git") from None
    return None if ended.returncode else ended.stdout
