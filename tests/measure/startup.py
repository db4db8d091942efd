"""Wall time of the tools, each as a whole process, in turn with what it is compared with.

Machines are noisy: the medians of interleaved runs are compared. Synthesis is judged by its ratio to an app with one bucket in
the same run, a check by its ratio to an import of pydantic, never by seconds alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENT = "experiments/qwen3-32b.yaml"
ONE_BUCKET = """
import cdk8s_charts
import aws_cdk as cdk
from aws_cdk import aws_s3 as s3
app = cdk.App()
s3.Bucket(cdk.Stack(app, "One"), "Bucket")
app.synth()
"""


@dataclass(frozen=True)
class Subject:
    """A command and what it may take."""

    name: str
    command: tuple[str, ...]
    limit_s: float | None = None
    limit_ratio: float | None = None
    """To the subject of the name `of`."""
    of: str = "empty app, one bucket"


def main() -> int:
    """Print a table; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--runs", type=int, default=5, help="counted runs of each, after one that warms up (default 5)"
    )
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as scratch:
        python = sys.executable
        subjects = (
            Subject("empty app, one bucket", (python, "-c", ONE_BUCKET)),
            Subject("import pydantic", (python, "-c", "import pydantic")),
            Subject("python app.py, all stacks", (python, "app.py"), limit_ratio=2.5),
            Subject("python pipeline.py, two stages", (python, "pipeline.py"), limit_ratio=3.5),
            Subject(
                "python -m experiment check",
                (python, "-m", "experiment", "check", EXPERIMENT),
                limit_ratio=4.0,
                of="import pydantic",
            ),
            Subject("python -m cdk8s_charts", (python, "-m", "cdk8s_charts", "--out", scratch), limit_s=3.0),
        )
        times: dict[str, list[float]] = {subject.name: [] for subject in subjects}
        for run in range(runs + 1):
            for subject in subjects:
                took = _run(subject.command, Path(scratch) / "cdk.out")
                if run:
                    times[subject.name].append(took)
    return _report(subjects, times, runs)


def _run(command: tuple[str, ...], outdir: Path) -> float:
    environment = {**os.environ, "CDK_VALIDATION": "false", "CDK_OUTDIR": str(outdir)}
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def _report(subjects: tuple[Subject, ...], times: dict[str, list[float]], runs: int) -> int:
    print(
        f"measured here, {os.cpu_count()} cores, n = {runs}, interleaved; median (min to max), validation off"
    )
    passed = 0
    for subject in subjects:
        taken = times[subject.name]
        median = statistics.median(taken)
        verdict = ""
        if subject.limit_s is not None:
            verdict = f"limit {subject.limit_s:g} s"
            passed += median > subject.limit_s
        if subject.limit_ratio is not None:
            ratio = median / statistics.median(times[subject.of])
            verdict = f"{ratio:.2f} x {subject.of}, limit {subject.limit_ratio:g}"
            passed += ratio > subject.limit_ratio
        print(f"{subject.name:30} {median:5.2f} s ({min(taken):.2f} to {max(taken):.2f})  {verdict}")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
