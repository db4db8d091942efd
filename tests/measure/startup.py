"""CPU-seconds of the tools, each as a whole process with its children, in turn with what it is compared with.

Wall time counts whatever else the machine does; CPU-seconds hardly do. The medians of interleaved runs are compared: synthesis with
an app with one bucket, a check with an import of pydantic, never seconds alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
BUCKET, PYDANTIC = "empty app, one bucket", "import pydantic"
ONE_BUCKET = """
import cdk8s_charts
import aws_cdk as cdk
from aws_cdk import aws_s3 as s3
app = cdk.App()
s3.Bucket(cdk.Stack(app, "One"), "Bucket")
app.synth()
"""
COMMANDS = {
    BUCKET: ["-c", ONE_BUCKET],
    PYDANTIC: ["-c", "import pydantic"],
    "app.py, all stacks": ["app.py"],
    "pipeline.py, two stages": ["pipeline.py"],
    "experiment check": ["-m", "trnspec.experiment", "check", "experiments/qwen3-32b.yaml"],
    "cdk8s_charts": ["-m", "cdk8s_charts", "--out", "SCRATCH"],
}
LIMITS = {
    "app.py, all stacks": (BUCKET, 3.0),
    "pipeline.py, two stages": (BUCKET, 4.0),
    "experiment check": (PYDANTIC, 4.0),
}
"""How many times the CPU-seconds of another command it may take. Measured: 2.5 to 2.9 for the stacks, 3.4 to 3.9 for the pipeline.
Reading the experiment and importing the CDK's modules take 1.5 times the app with one bucket, before the first resource.
With the same modules, an app with one bucket, one network and one cluster takes 2.0 times.
"""


def main() -> int:
    """Print a table; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each, after one that warms up")
    runs = parser.parse_args().runs
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "CDK_VALIDATION": "false", "CDK_OUTDIR": f"{scratch}/cdk.out"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or each run compiles the CDK's modules again
        for run in range(runs + 1):
            for name, words in COMMANDS.items():
                command = [sys.executable, *(word.replace("SCRATCH", scratch) for word in words)]
                began = _cpu_s()
                subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
                if run:
                    times[name].append(_cpu_s() - began)
    print(
        f"measured here, {os.cpu_count()} cores, n = {runs}, interleaved; CPU-seconds, median (min to max), validation off"
    )
    passed = 0
    for name, took in times.items():
        other, limit = LIMITS.get(name, (name, 1.0))
        ratio = median(took) / median(times[other])
        passed += ratio > limit
        verdict = f"{ratio:.2f} x {other}, limit {limit:g}" if name in LIMITS else ""
        print(f"{name:26} {median(took):5.2f} s ({min(took):.2f} to {max(took):.2f})  {verdict}")
    return int(passed > 0)


def _cpu_s() -> float:
    """Return the CPU-seconds of all ended children, and of theirs (jsii waits for its Node process)."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
