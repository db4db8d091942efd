"""One rehearsal of the small assembly for all tests that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.aws.rehearsal import Rehearsal, rehearse
from tests.lab.aws.assemblies import REGION, STACKS, write_assembly


@pytest.fixture(scope="session")
def three_stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_assembly(tmp_path_factory.mktemp("assembly"), STACKS)


@pytest.fixture(scope="session")
def rehearsal(three_stacks: Path) -> Rehearsal:
    return rehearse(three_stacks, region=REGION)
