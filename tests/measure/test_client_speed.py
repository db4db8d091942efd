"""What the side-by-side measurement of clients makes of its samples."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.measure.client_speed import Held, Sample, judged, run, table


def side_by_side(*, cpu_s: float = 1.0, mb: float = 30.0) -> list[Sample]:
    return [
        Sample(client=client, arm=arm, concurrency=concurrency, cpu_s=used, peak_mb=mb)
        for client, used in (("bare loop", 1.0), ("benchmark", cpu_s))
        for concurrency in (1, 4, 64)
        for arm in ("steady", "bursts")
    ]


def broken(samples: list[Sample], *loading_mb: float) -> list[str]:
    """Of long runs of 1,000 and 10,000 requests with these peaks."""
    flat = [
        Held(requests=requests, loading_mb=mb, whole_mb=mb, cpu_s=1.0)
        for requests, mb in zip((1000, 10_000), loading_mb, strict=bool(loading_mb))
    ]
    return [line for held, line in judged(samples, flat) if not held]


def test_a_client_within_all_limits_passes_and_each_limit_can_be_broken() -> None:
    assert broken(side_by_side(cpu_s=1.4), 28.0, 29.0) == []
    assert "1.60 x the bare loop's" in broken(side_by_side(cpu_s=1.6))[0]
    assert "peak memory 61.0 MB" in broken(side_by_side(mb=61.0))[0]
    assert "+12.0 MB while loading" in broken(side_by_side(), 28.0, 40.0)[0]
    assert "peak 61.0 MB, summary included" in broken(side_by_side(), 60.0, 61.0)[0]
    assert len(table(side_by_side())) == 2 + 12, "a line for each cell and client"


def test_a_process_is_measured_with_its_children(tmp_path: Path) -> None:
    child = "import time; block = bytearray(30_000_000); time.sleep(0.6)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('done')"
    used = run([sys.executable, "-c", parent], output=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "done\n"
    assert used.peak_mb() > 30
    assert used.cpu_s > 0
    assert used.held[-1][0] - used.held[0][0] >= 0.4
