"""`compare`: two runs of one plan, new against old. `gate`: let a run pass, or name what became worse since another."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmark.commands import option_types
from benchmark.commands.option_types import add, share
from core.json_text import json_text
from core.screen import folded, table
from core.words import count

COMPARE_HELP = "compare two runs of one plan; exit 1 where something became slower"
GATE_HELP = "refuse a run that is slower per token, or fails more often, than a baseline run; exit 1 then"


def configure_compare(parser: argparse.ArgumentParser) -> None:
    """Two folders."""
    parser.add_argument("old", type=Path, metavar="OLD", help="what `run --out` wrote, before")
    parser.add_argument("new", type=Path, metavar="NEW", help="the same plan, later")
    option_types.add_json(parser, "JSON instead of tables")


def execute_compare(options: argparse.Namespace) -> int:
    """Compare and print; 1 where an arm became slower, or a speed-up smaller, beyond its interval."""
    from benchmark.analyse.two_runs import compare_runs

    found = compare_runs(option_types.recorded(options.old), option_types.recorded(options.new))
    print(json_text(found, indent=1) if options.json else "\n".join(folded(_text(found))))
    return 1 if found["slower"] else 0


def _text(found: Mapping[str, Any]) -> Iterator[str]:
    from benchmark.show.wording import verdict_text

    old, new = found["old"], found["new"]
    yield f"old: run {old['run']}, {old['provenance']}; new: run {new['run']}, {new['provenance']}"
    for what, rows in (("Time per output token", found["arms"]), ("Speed-up", found["speed_ups"])):
        if counts := Counter(map(verdict_text, rows)):
            yield f"{what}, new against old: {', '.join(f'{word} in {n}' for word, n in counts.items())} of {len(rows)} cells."
    yield ""
    yield "Time per output token of each arm; old / new above 1: the new run is faster"
    headings = ("class", "load", "arm", "old ms", "new ms", "old / new", "verdict")
    yield from table(headings, [_row(row, row["arm"], scale=1000) for row in found["arms"]], names={0, 2, 6})
    if found["speed_ups"]:
        yield ""
        yield "Speed-up over the baseline; new / old above 1: it is larger in the new run"
        headings = ("class", "load", "arm", "old", "new", "new / old", "verdict")
        rows = [_row(row, row["treatment"], scale=1) for row in found["speed_ups"]]
        yield from table(headings, rows, names={0, 2, 6})
    yield ""
    yield "95 % intervals: Student t over prompts; how two starts of one server differ is not in them."
    yield from (f"! {text}" for text in found["warnings"])
    for row in found["arms"]:
        if row["warning"]:
            yield f"! {row['class']}, {row['arm']}: {row['warning']}"
    yield from (f"! {text}" for text in found["slower"])


def _row(row: Mapping[str, Any], arm: str, *, scale: float) -> tuple[str, ...]:
    from benchmark.show.wording import verdict_text

    load = str(row["concurrency"] or "replay") if row["rate_per_s"] is None else f"{row['rate_per_s']:g}/s"
    old, new = ("-" if row[when] is None else f"{row[when] * scale:.2f}" for when in ("old", "new"))
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
    if row["ratio"] is not None and row["ci_low"] is not None:
        ratio += f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
    return row["class"], load, arm, old, new, ratio, verdict_text(row)


def configure_gate(parser: argparse.ArgumentParser) -> None:
    """Two folders and what is tolerated."""
    parser.add_argument("run", type=Path, metavar="RUN", help="what `run --out` wrote")
    slower = "more time per output token that passes although it is shown (default: 0.05)"
    errors = "rise of an arm's error rate that passes (default: 0.01)"
    add(parser, "--baseline", Path, "FOLDER", "an earlier run of the same plan", required=True)
    add(parser, "--slower-by", share, "SHARE", slower, default=0.05)
    add(parser, "--more-errors", share, "SHARE", errors, default=0.01)
    option_types.add_json(parser, "JSON instead of text")


def execute_gate(options: argparse.Namespace) -> int:
    """Judge and print; 1 where something speaks against the run."""
    from benchmark.analyse.two_runs import judge

    baseline, run = option_types.recorded(options.baseline), option_types.recorded(options.run)
    found = judge(baseline, run, slower_by=options.slower_by, more_errors=options.more_errors)
    print(json_text(found, indent=1) if options.json else "\n".join(folded(_judgement(found))))
    return 1 if found["regressions"] else 0


def _judgement(found: dict[str, Any]) -> list[str]:
    first = (
        f"run {found['run']['run']} against {found['baseline']['run']}, {found['run']['provenance']}: "
        f"{count(len(found['cells']), 'cell')}, {count(len(found['errors']), 'arm')}"
    )
    warnings = [f"warning: {text}" for text in found["warnings"]]
    return [first, *warnings, *([f"! {text}" for text in found["regressions"]] or ["passes"])]
