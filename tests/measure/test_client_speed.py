from __future__ import annotations

import sys
from pathlib import Path

from tests.measure.client_speed import run


def test_a_process_is_measured_with_its_children(tmp_path: Path) -> None:
    child = "import time; block = bytearray(30_000_000); time.sleep(0.6)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('done')"
    used = run([sys.executable, "-c", parent], output=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "done\n"
    assert used.peak_mb() > 30
    assert used.cpu_s > 0
    assert used.held[-1][0] - used.held[0][0] >= 0.4
