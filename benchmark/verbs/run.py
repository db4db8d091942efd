"""`run`: measure the arms of a plan."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmark.verbs import arguments

HELP = "measure the arms of a plan, then print the table"


def configure(parser: argparse.ArgumentParser) -> None:
    """Plan, folder, and what replaces parts of the plan."""
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan, JSON")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="results; an earlier run goes on"
    )
    parser.add_argument(
        "--timeout", type=arguments.seconds, default=300.0, metavar="S", help="per request (default 300)"
    )
    changes = parser.add_argument_group("instead of what the plan says")
    changes.add_argument(
        "--arm",
        type=arguments.address,
        action="append",
        default=[],
        metavar="NAME=URL",
        help="address of an arm, up to and including /v1",
    )
    changes.add_argument(
        "--classes", type=arguments.names, metavar="A,B", help="only these classes of prompts"
    )
    changes.add_argument(
        "--concurrency", type=arguments.levels, metavar="N,N", help="requests in flight, a cell each"
    )
    changes.add_argument(
        "--requests", type=arguments.positive, metavar="N", help="measured requests per cell"
    )
    changes.add_argument("--warmup", type=arguments.whole, metavar="N", help="unmeasured requests per arm")
    changes.add_argument(
        "--max-tokens", type=arguments.positive, metavar="N", help="and no prompt may have more"
    )
    changes.add_argument(
        "--seed",
        type=arguments.whole,
        metavar="N",
        help="another one makes other nonces, so that a second run meets no warm cache",
    )
    arguments.add_json(parser)


def execute(options: argparse.Namespace) -> int:
    """Measure, then report; interrupted, report what is there."""
    from benchmark.measure import journal
    from benchmark.measure.interrupt import run_until_signalled
    from benchmark.measure.progress import Progress
    from benchmark.measure.run import run
    from benchmark.plan import Overrides, overridden
    from benchmark.plan_file import load
    from benchmark.verbs.report import show, summarised

    changes = Overrides(
        urls=dict(options.arm),
        classes=options.classes,
        concurrency=options.concurrency,
        requests=options.requests,
        warmup=options.warmup,
        max_tokens=options.max_tokens,
        seed=options.seed,
    )
    plan = overridden(load(options.plan), changes)
    work = run(plan, out=options.out, timeout_s=options.timeout, progress=Progress(sys.stderr))
    signal = run_until_signalled(work)
    if signal is None:
        return show(summarised(options.out), as_json=options.json)
    if journal.exists(options.out):
        show(summarised(options.out), as_json=options.json)
    print(f"benchmark run: stopped by {signal.name}; the same command goes on from here", file=sys.stderr)
    return 128 + signal
