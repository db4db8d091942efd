"""The benchmark of this repository, unchanged, as the pod runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.errors import LabError

ROOT = Path(__file__).resolve().parent.parent.parent
INTERRUPTED = 130
"""Ctrl-C reaches the benchmark too, which may end before this process hears of it."""


def measure(
    plan: Path,
    urls: Mapping[str, str],
    *,
    out: Path,
    requests: int | None = None,
    warmup: int | None = None,
    max_tokens: int | None = None,
) -> None:
    """`benchmark run` on the arms at `urls`; its progress and its table are shown. Raises LabError."""
    words = ["run", "--plan", str(plan), "--out", str(out)]
    words += [word for arm, url in urls.items() for word in ("--arm", f"{arm}={url}")]
    given = {"--requests": requests, "--warmup": warmup, "--max-tokens": max_tokens}
    words += [word for option, value in given.items() if value for word in (option, str(value))]
    _benchmark(words)


def advise(out: Path, *words: str) -> str:
    """What `benchmark advise` prints about the run in `out`. Raises LabError."""
    return _benchmark(["advise", str(out), *words], shown=False)


def _benchmark(words: Sequence[str], *, shown: bool = True) -> str:
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, "-m", "benchmark", *words],
        cwd=ROOT,
        stdout=None if shown else subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode:
        raise LabError(
            f"python -m benchmark {words[0]} ended with exit {done.returncode}; its message is above"
        )
    return done.stdout or ""
