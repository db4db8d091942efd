"""The repository's own programs in processes of their own, as users and pods run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiment.finding import Refusal

ROOT = Path(__file__).resolve().parent.parent


def run_quietly(words: Sequence[str], *, what: str, settings: Mapping[str, str] | None = None) -> None:
    """Python with these words, so that no jsii runs in this process. Raises `Refusal` with the last line of its messages."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **(settings or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Refusal(f"{what} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")


def load_arms(plan: Path, urls: Mapping[str, str], *, out: Path, less: Mapping[str, int | None]) -> None:
    """`benchmark run` on the arms at `urls`, its options `less` shortening the plan. Raises `Refusal`."""
    words = ["run", "--plan", str(plan), "--out", str(out)]
    words += [word for arm, url in urls.items() for word in ("--arm", f"{arm}={url}")]
    words += [word for name, value in less.items() if value is not None for word in (f"--{name}", str(value))]
    benchmark(words)


def benchmark(
    words: Sequence[str], *, shown: bool = True, environment: Mapping[str, str] | None = None
) -> str:
    """`python -m benchmark`; its result is shown, or returned. Raises `Refusal`.

    It runs under the guard of the servers, so that it too ends with the lab, however that ends.
    """
    sys.stdout.flush()
    process = subprocess.Popen(
        [sys.executable, "-m", "lab.real.guard", sys.executable, "-m", "benchmark", *words],
        cwd=ROOT,
        env=environment,
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
