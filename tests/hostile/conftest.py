"""Hostile input, a test a case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmark.show import page
from tests.benchmark.conftest import endpoint, write_plan
from tests.benchmark.records import answered, raw_run, store
from tests.operations.conftest import account, api, aws, cluster, credentials, experiment, say, world

__all__ = [
    "account",
    "api",
    "aws",
    "cluster",
    "credentials",
    "endpoint",
    "experiment",
    "say",
    "world",
    "write_plan",
]

SOUND: dict[str, Any] = {"chunk_s": (0.1, 0.2, 0.3), "chunk_tokens": (1, 3, 4), "completion_tokens": 8}


@pytest.fixture
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of six pairs, in which the treatment is 3.5 times as fast. The page is left out."""
    monkeypatch.setattr(page, "render", lambda *_: "")
    steady = [answered("steady", pair) for pair in range(6)]
    return store(raw_run(*steady, *(answered("spec", pair, **SOUND) for pair in range(6))), tmp_path / "run")
