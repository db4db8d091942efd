"""The moving line of a run on a real terminal: it moves, and what an endpoint is called does not."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from contextlib import suppress

from tests.benchmark.conftest import plan_content
from tests.conftest import ROOT
from trnspec.benchmark.measure.progress import Progress
from trnspec.benchmark.measure.schedule import Block
from trnspec.benchmark.plan import Load, from_dict

_RUN = """
import sys
from trnspec.benchmark.measure.progress import Progress
from trnspec.benchmark.measure.schedule import Block
from trnspec.benchmark.plan import Load
from trnspec.core.safe_output import guarded

def act():
    told = Progress(sys.stderr)
    told.expect(2)
    for arm in ("a\\x1b[2J" + "b" * 200, "c"):
        block = Block(plan=None, arm=arm, class_="json", load=Load(concurrency=4), phase="measured")
        told.begin(block)
        told.count(failed=False)
        told.end(block, lag_s=0)
    return 0

sys.exit(guarded("run", act))
"""


def test_the_line_moves_within_the_terminal_under_the_guard_of_the_output() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "60"}
    done = subprocess.run([sys.executable, "-c", _RUN], env=env, stderr=theirs, check=True, timeout=60)
    os.close(theirs)
    seen = b""
    with suppress(OSError):
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    text = seen.decode()
    moving = [part.partition("\n")[0].rstrip("\r") for part in text.split("\r\x1b[K")]
    assert done.returncode == 0
    assert "\x1b[2J" not in text
    assert "[2/2] json, 4 concurrent requests, c: 1 ok" in text
    assert len(moving) == 5, "two blocks, each counted and ended"
    assert [len(line) < 60 for line in moving[1::2]] == [True, True], "a wider line would leave itself behind"


def test_a_client_that_was_late_is_one_warning_at_the_end() -> None:
    told, plan = Progress(log := io.StringIO()), from_dict(plan_content())
    for lag_s in (0.12, 0.0, 0.31):
        block = Block(plan=plan, arm="spec", class_="chat", load=Load(concurrency=4), phase="measured")
        told.begin(block)
        told.end(block, lag_s=lag_s)
    assert "warning" not in log.getvalue()
    told.summary()
    *_, last = log.getvalue().splitlines()
    assert last.startswith(
        "warning: this client was late in 2 blocks, by 310 ms at most: measured times may be"
    )
