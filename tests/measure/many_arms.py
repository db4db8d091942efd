"""Rendering: 64 arms, as many as a plan takes, against 2, in one process that is warm, so that starting jsii is not counted.

The ratio is judged, not seconds, and the medians of interleaved runs are compared, because machines are noisy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from cdk8s_charts.manifests import texts
from cdk8s_charts.render import render
from experiment import Experiment, load

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "experiments" / "qwen3-32b.yaml"
FEW, MANY = 2, 64
LIMIT = 16.0
"""Thirty-two times the arms may take at most half as many times as long."""


def main() -> int:
    """Print both medians and their ratio; 1 when the limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each, after one that warms up")
    runs = parser.parse_args().runs
    experiments = {count: with_arms(load(REFERENCE), count) for count in (FEW, MANY)}
    times: dict[int, list[float]] = {count: [] for count in experiments}
    for run in range(runs + 1):
        for count, experiment in experiments.items():
            began = time.perf_counter()
            texts(experiment, render(experiment), ROOT / "manifests")
            took = time.perf_counter() - began
            if run:
                times[count].append(took)
            print(f"{count} arms: {took:.2f} s", file=sys.stderr)
    medians = {count: statistics.median(values) for count, values in times.items()}
    ratio = medians[MANY] / medians[FEW]
    for count, median in medians.items():
        print(f"{count:>4} arms: {median:6.2f} s")
    print(f"ratio: {ratio:.1f} (limit {LIMIT:g})")
    return int(ratio >= LIMIT)


def with_arms(reference: Experiment, count: int) -> Experiment:
    """The reference experiment with so many arms, each with a window of its own."""
    plain, treated = reference.arms
    assert treated.speculation is not None
    arms = [plain]
    for window in range(2, count + 1):
        speculation = replace(treated.speculation, num_speculative_tokens=window)
        arms.append(replace(treated, name=f"{treated.name}-k{window}", speculation=speculation))
    return replace(reference, arms=tuple(arms))


if __name__ == "__main__":
    sys.exit(main())
