"""The benchmark of this repository, unchanged, as the pod runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiment.finding import Refusal

ROOT = Path(__file__).resolve().parent.parent.parent


def measure(
    plan: Path,
    urls: Mapping[str, str],
    *,
    out: Path,
    requests: int | None = None,
    warmup: int | None = None,
    max_tokens: int | None = None,
) -> None:
    """`benchmark run` on the arms at `urls`; its progress and its table are shown. Raises Refusal."""
    words = ["run", "--plan", str(plan), "--out", str(out)]
    words += [word for arm, url in urls.items() for word in ("--arm", f"{arm}={url}")]
    given = {"--requests": requests, "--warmup": warmup, "--max-tokens": max_tokens}
    words += [word for option, value in given.items() if value for word in (option, str(value))]
    _benchmark(words)


def advise(out: Path, *words: str) -> str:
    """What `benchmark advise` prints about the run in `out`. Raises Refusal."""
    return _benchmark(["advise", str(out), *words], shown=False)


def _benchmark(words: Sequence[str], *, shown: bool = True) -> str:
    """Run under the guard of the servers, so that it too ends with the lab, however that ends."""
    sys.stdout.flush()
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.engine.guard", sys.executable, "-m", "benchmark", *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=None if shown else subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.stdout.read() if process.stdout else ""
        code = process.wait()
    finally:
        if process.stdin:
            process.stdin.close()
        process.wait()
    if code:
        raise Refusal(f"python -m benchmark {words[0]} ended with exit {code}; its message is above")
    return said
