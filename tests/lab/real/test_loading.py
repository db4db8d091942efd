"""The benchmark's end is the lab's: an interrupt is none of its failures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.real import loading


def _ending(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, code, stdout="")
    )


def test_an_interrupted_benchmark_interrupts_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ending(monkeypatch, 130)
    with pytest.raises(KeyboardInterrupt):
        loading.measure(tmp_path / "plan.json", {"tiny": "http://127.0.0.1:1/v1"}, out=tmp_path)


def test_a_failed_benchmark_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="python -m benchmark run ended with exit 2; its message is above"):
        loading.measure(tmp_path / "absent.json", {"tiny": "http://127.0.0.1:1/v1"}, out=tmp_path)
