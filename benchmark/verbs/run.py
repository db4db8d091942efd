"""`run`: measure the arms of a plan, or of the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.errors import ErrorRateExceeded
from benchmark.verbs import arguments, run_options
from benchmark.verbs.arguments import add

if TYPE_CHECKING:
    from benchmark.measure.load import Loader

HELP = "measure arms on the same prompts, then print the table"


def configure(parser: argparse.ArgumentParser) -> None:
    """Plan or prompts, folder, and what is done with them."""
    parser.epilog = (
        "Every arm gets the API key in BENCHMARK_API_KEY, or in OPENAI_API_KEY where that is not set."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    prompts = (
        "prompts alone, a JSON object a line: id, class, prompt or messages, max_tokens if it has its own"
    )
    tolerated = (
        "stop with exit 1 once more than this share of an arm's requests has failed (default 1: never)"
    )
    add(what, "--plan", Path, "FILE", "the plan, JSON")
    add(what, "--prompts", Path, "FILE", prompts)
    add(parser, "--out", Path, "DIR", "results; an earlier run goes on", required=True)
    add(parser, "--timeout", arguments.seconds, "S", "per request (default 300)", default=300.0)
    add(parser, "--max-error-rate", arguments.share, "X", tolerated, default=1.0)
    arguments.add_json(parser)
    run_options.configure_arms(
        parser.add_argument_group("arms (with --prompts needed, with --plan instead of its own)")
    )
    run_options.configure_load(
        parser.add_argument_group("load (without a plan: 32 requests, 4 at a time, 4 to warm up)")
    )


def execute(options: argparse.Namespace) -> int:
    """Measure, then report; stopped, report what is there."""
    from benchmark.measure import journal
    from benchmark.measure.interrupt import run_until_signalled
    from benchmark.measure.progress import Progress
    from benchmark.measure.run import run
    from benchmark.verbs.report import show, summarised

    work = run(
        run_options.plan(options),
        out=options.out,
        timeout_s=options.timeout,
        progress=Progress(sys.stderr),
        max_error_rate=options.max_error_rate,
        after_warmup=_look_at_steps,
    )
    try:
        signal = run_until_signalled(work)
    except ErrorRateExceeded:
        show(summarised(options.out), as_json=options.json)
        raise
    if signal is None:
        return show(summarised(options.out), as_json=options.json)
    if journal.exists(options.out):
        show(summarised(options.out), as_json=options.json)
    print(f"benchmark run: stopped by {signal.name}; the same command goes on from here", file=sys.stderr)
    return 128 + signal


def _look_at_steps(loader: Loader) -> None:
    """Say whether the sources of each drafting arm's tokens per step agree, as far as the warm-up shows it."""
    from benchmark.analyse.acceptance.yields import first_look
    from benchmark.analyse.cells import Cells, Place
    from benchmark.plan import Load

    warm = Cells(loader.plan, {}, {})
    place = Place("warm-up", Load(concurrency=1))
    for name, standing in loader.standings.items():
        warm.requests[name, place] = standing.warmup
        warm.blocks[name, place] = standing.warmup_block
    for arm in loader.plan.arms:
        if arm.speculative_tokens and warm.answered(arm, place):
            said = warm.steps(arm, place)
            (loader.progress.warn if said.caution else loader.progress.tell)(first_look(arm, said))
