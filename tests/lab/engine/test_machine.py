"""A machine that cannot run the engine is told so in one line before anything is fetched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment.finding import Outside
from lab.engine.machine import Machine, look, refuse_install, refuse_run

GOOD = Machine(
    system="Linux",
    architecture="x86_64",
    cpu_flags=frozenset({"avx2"}),
    disk_gib=20.0,
    memory_gib=16.0,
    cores=2,
)


def test_a_good_machine_is_not_refused() -> None:
    refuse_install(GOOD)
    refuse_run(GOOD, servers=8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"system": "Darwin", "architecture": "arm64"}, "platform: .* Darwin arm64; .*--engine-command"),
        ({"cpu_flags": frozenset({"sse4_2"})}, "CPU: .*AVX2"),
        ({"disk_gib": 1.24}, "disk: 1.2 GiB are free, the engine needs 4.5; .*--home"),
    ],
)
def test_what_is_missing_is_named_with_a_remedy(change: dict[str, Any], said: str) -> None:
    with pytest.raises(Outside, match=said):
        refuse_install(replace(GOOD, **change))


def test_too_little_memory_for_so_many_servers_is_refused() -> None:
    with pytest.raises(Outside, match=r"memory: 4.0 GiB are available, 8 servers need 13.5; .*--arms"):
        refuse_run(replace(GOOD, memory_gib=4.0), servers=8)


def test_this_machine_can_be_looked_at_from_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    found = look(tmp_path / "not" / "yet")
    assert found.disk_gib > 0
    assert found.memory_gib > 0
    assert found.cores >= 1
