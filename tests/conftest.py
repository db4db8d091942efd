"""What every test may use: the reference experiment, and a way to write a variation of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from experiment import Experiment, load

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "experiments" / "qwen3-32b.yaml"


@pytest.fixture(scope="session")
def reference() -> Experiment:
    """The reference experiment, resolved."""
    return load(REFERENCE)


@pytest.fixture(scope="session")
def _reference_data() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    return data


@pytest.fixture
def variation(
    tmp_path: Path, _reference_data: dict[str, Any]
) -> Callable[[Callable[[dict[str, Any]], object]], Path]:
    """A copy of the reference file after an edit of its data."""

    def write(edit: Callable[[dict[str, Any]], object]) -> Path:
        data = copy.deepcopy(_reference_data)
        edit(data)
        path = tmp_path / "experiment.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
        return path

    return write
