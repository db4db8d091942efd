"""What the side-by-side measurement of clients makes of its samples."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from maintenance.client_speed import Found, Held, Sample, Used, judged, run, sample, table

TRUTH = [{"key": "a", "sent_s": [0.1, 0.2, 0.3], "tokens": [1, 4, 6]}]


def measured(
    client: str, concurrency: int = 1, arm: str = "steady", *, cpu_s: float = 1.0, mb: float = 30.0
) -> Sample:
    found = [Found("a", 0.101, 0.302, 0.0201), Found("unknown to the server", 9.0, 9.0, 9.0)]
    return sample(client, arm, concurrency, found, TRUTH, Used(cpu_s, ((1.0, 5.0), (2.0, mb))))


def side_by_side(*, cpu_s: float = 1.0, mb: float = 30.0) -> list[Sample]:
    cells = [(concurrency, arm) for concurrency in (1, 4, 64) for arm in ("steady", "bursts")]
    return [
        *(measured("bare loop", *cell) for cell in cells),
        *(measured("benchmark", *cell, cpu_s=cpu_s, mb=mb) for cell in cells),
        *(measured("aiperf", *cell, cpu_s=20.0, mb=600.0) for cell in cells),
    ]


def broken(samples: list[Sample], flat: list[Held] | None = None) -> list[str]:
    return [line for held, line in judged(samples, flat or []) if not held]


def test_an_error_is_measured_less_sent_for_requests_that_both_sides_know() -> None:
    found = measured("benchmark")
    assert found.n == 1
    assert (found.ttft_s, found.e2e_s) == pytest.approx((0.001, 0.002))
    assert found.tpot == pytest.approx(0.005), "0.2 s over the ten tokens after the first chunk"


def test_a_client_within_all_limits_passes() -> None:
    assert broken([replace(one, tpot=0.004) for one in side_by_side(cpu_s=1.4)]) == []


@pytest.mark.parametrize(
    ("ours", "change", "told"),
    [
        ({"cpu_s": 1.6}, {}, "1.60 x the bare loop's"),
        ({"cpu_s": 2.1}, {}, "0.105 x aiperf's"),
        ({"mb": 61.0}, {}, "peak memory 61.0 MB"),
        ({}, {"ttft_s": 0.0045}, "+3.50 ms beyond the bare loop"),
        ({}, {"tpot": 0.02}, "TPOT off by 2.000%"),
    ],
)
def test_each_limit_can_be_broken(ours: dict[str, float], change: dict[str, float], told: str) -> None:
    samples = [replace(one, tpot=0.004) for one in side_by_side(**ours)]
    samples = [replace(one, **change) if one.client == "benchmark" else one for one in samples]  # type: ignore[arg-type]
    assert any(told in line for line in broken(samples))


def test_memory_that_grows_with_the_requests_is_not_flat() -> None:
    def held(requests: int, loading_mb: float) -> Held:
        return Held(requests=requests, loading_mb=loading_mb, whole_mb=loading_mb, cpu_s=1.0)

    samples = [replace(one, tpot=0.004) for one in side_by_side()]
    assert broken(samples, [held(1000, 28.0), held(10_000, 29.0)]) == []
    assert len(broken(samples, [held(1000, 28.0), held(10_000, 40.0)])) == 1


def test_the_table_has_a_line_for_each_cell_and_client() -> None:
    assert len(table(side_by_side())) == 2 + 18


def test_a_process_is_measured_with_its_children(tmp_path: Path) -> None:
    child = "import time; block = bytearray(30_000_000); time.sleep(0.6)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('done')"
    used = run([sys.executable, "-c", parent], output=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "done\n"
    assert used.peak_mb() > 30
    assert used.cpu_s > 0
    assert used.held[-1][0] - used.held[0][0] >= 0.4
