"""`gate`: let a run pass, or name what became worse since a baseline run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmark.verbs import arguments
from benchmark.verbs.arguments import add, share

HELP = "refuse a run that is slower per token, or fails more often, than a baseline run; exit 1 then"


def configure(parser: argparse.ArgumentParser) -> None:
    """Two folders and what is tolerated."""
    parser.add_argument("run", type=Path, metavar="RUN", help="what `run --out` wrote")
    slower = "more time per output token that passes although it is shown (default: 0.05)"
    errors = "rise of an arm's error rate that passes (default: 0.01)"
    add(parser, "--baseline", Path, "FOLDER", "an earlier run of the same plan", required=True)
    add(parser, "--slower-by", share, "SHARE", slower, default=0.05)
    add(parser, "--more-errors", share, "SHARE", errors, default=0.01)
    arguments.add_json(parser, "JSON instead of text")


def execute(options: argparse.Namespace) -> int:
    """Judge and print; 1 where something speaks against the run."""
    from benchmark.analyse.two_runs import judge

    found = judge(
        arguments.recorded(options.baseline),
        arguments.recorded(options.run),
        slower_by=options.slower_by,
        more_errors=options.more_errors,
    )
    print(json.dumps(found, indent=1) if options.json else "\n".join(_text(found)))
    return 1 if found["regressions"] else 0


def _text(found: dict[str, Any]) -> list[str]:
    first = (
        f"run {found['run']['run']} against {found['baseline']['run']}, {found['run']['provenance']}: "
        f"{len(found['cells'])} cells, {len(found['errors'])} arms"
    )
    if not found["regressions"]:
        return [first, "passes"]
    return [first, *(f"! {text}" for text in found["regressions"])]
