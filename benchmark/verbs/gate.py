"""`gate`: let a run pass, or name what became worse since a baseline run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmark.errors import ResultsError
from benchmark.verbs.arguments import share

HELP = "refuse a run that is slower per token, or fails more often, than a baseline run; exit 1 then"
_LLMPERF = "llmperf"


def configure(parser: argparse.ArgumentParser) -> None:
    """Two folders and what is tolerated."""
    parser.add_argument("run", type=Path, metavar="RUN", help="what `run --out` wrote")
    parser.add_argument(
        "--baseline", type=Path, required=True, metavar="FOLDER", help="an earlier run of the same plan"
    )
    parser.add_argument(
        "--slower-by",
        type=share,
        default=0.05,
        metavar="SHARE",
        help="more time per output token that passes although it is shown (default: 0.05)",
    )
    parser.add_argument(
        "--more-errors",
        type=share,
        default=0.01,
        metavar="SHARE",
        help="rise of an arm's error rate that passes (default: 0.01)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def execute(options: argparse.Namespace) -> int:
    """Judge and print; 1 where something speaks against the run."""
    from benchmark.analyse.gate import judge
    from benchmark.measure import journal

    for folder in (options.baseline, options.run):
        refuse_llmperf(folder)
    found = judge(
        journal.read(options.baseline),
        journal.read(options.run),
        slower_by=options.slower_by,
        more_errors=options.more_errors,
    )
    print(json.dumps(found, indent=1) if options.json else "\n".join(_text(found)))
    return 1 if found["regressions"] else 0


def refuse_llmperf(folder: Path) -> None:
    """llmperf divides by chunks, so that more tokens a chunk look like more time a token; it pairs nothing either.

    Raises ResultsError where `folder` is a run of the llmperf harness: its files without ours.
    """
    if (folder / "requests.jsonl").exists():
        return
    if next(folder.glob("**/*_individual_responses.json"), None) or _says_llmperf(folder / "summary.json"):
        raise ResultsError(
            f"{folder}: is a run of harness llmperf, whose latency is per chunk and not per token; "
            "gate on runs of `harness: native`"
        )


def _says_llmperf(path: Path) -> bool:
    try:
        run = json.loads(path.read_text(encoding="utf-8")).get("run", {})
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(run, dict) and run.get("harness") == _LLMPERF


def _text(found: dict[str, Any]) -> list[str]:
    first = (
        f"run {found['run']['run']} against {found['baseline']['run']}, {found['run']['provenance']}: "
        f"{len(found['cells'])} cells, {len(found['errors'])} arms"
    )
    if not found["regressions"]:
        return [first, "passes"]
    return [first, *(f"! {text}" for text in found["regressions"])]
