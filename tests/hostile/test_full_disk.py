"""A disk without room: one line, and nothing begun is left. No file may grow beyond some KiB, which a process can ask of the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOOR = "import sys; from operations.__main__ import main; sys.exit(main())"
WRITE = "from pathlib import Path; from core.files import write_whole; write_whole(Path('plan.json'), '{}')"


@pytest.mark.parametrize(
    ("kib", "words", "code", "said"),
    [
        (
            0,
            ["-c", DOOR, "new", "mine"],
            2,
            "mine.yaml: cannot be written (File too large); choose another NAME",
        ),
        (0, ["-c", DOOR, "demo", "--out", "shown"], 3, "demo: the machine: No usable temporary directory"),
        (0, ["-c", WRITE], 1, "File too large: 'plan.json'"),
    ],
)
def test_nothing_is_left_behind(kib: int, words: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f'ulimit -f {kib}; exec "$@"', "bash", sys.executable, "-P", *words],
        cwd=tmp_path,
        # Python 3.11 keeps the half of a compiled module that it could write.
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []
