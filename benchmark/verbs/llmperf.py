"""`llmperf`: let llmperf measure the arms of a plan, where its image is (images/llmperf)."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from benchmark.verbs import arguments

HELP = "let llmperf measure, one arm after the other, for a comparison with its old figures"
HOME = "LLMPERF_HOME"


def configure(parser: argparse.ArgumentParser) -> None:
    """Plan, folder, and what llmperf asks."""
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan, JSON")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="results; an earlier run goes on"
    )
    parser.add_argument(
        "--text",
        choices=("sonnets", "classes"),
        default="sonnets",
        help="draw prompts from llmperf's sonnets, or from the prompts of each class, as the published sample did",
    )
    for name, default, about in (
        ("--mean-input-tokens", 550, "of a prompt"),
        ("--stddev-input-tokens", 0, "of a prompt"),
        ("--stddev-output-tokens", 0, "of max_tokens"),
    ):
        parser.add_argument(
            name, type=arguments.whole, default=default, metavar="N", help=f"{about} (default: {default})"
        )
    parser.add_argument(
        "--llmperf",
        type=Path,
        default=os.environ.get(HOME),
        metavar="DIR",
        help=f"llmperf's sources (default: {HOME})",
    )
    arguments.add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Measure, then report. Stopped, what is recorded is kept."""
    from benchmark.errors import PlanError
    from benchmark.llmperf.asking import Lengths
    from benchmark.llmperf.harness import Harness
    from benchmark.plan_file import load
    from benchmark.verbs.report import show, summarised

    if options.llmperf is None:
        raise PlanError(f"--llmperf: is missing; give the folder of llmperf's sources, or set {HOME}")
    harness = Harness(
        home=options.llmperf,
        text=options.text,
        lengths=Lengths(
            mean_input_tokens=options.mean_input_tokens,
            stddev_input_tokens=options.stddev_input_tokens,
            stddev_output_tokens=options.stddev_output_tokens,
        ),
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # how a pod is ended
    harness.run(load(options.plan), options.out, lambda line: print(line, file=sys.stderr, flush=True))
    return show(summarised(options.out), as_json=options.json)
