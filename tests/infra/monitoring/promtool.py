"""Prometheus' own judge of rules, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool: apt-get install prometheus"
)


def promtool(verb: str, content: Mapping[str, Any], folder: Path) -> str:
    """What `promtool test rules` or `promtool check rules` says of a file in `folder` with this content."""
    path = folder / f"{verb}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    done = subprocess.run(["promtool", verb, "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
