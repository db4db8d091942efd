"""`compare`: two runs of one plan, new against old."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmark.verbs import arguments

HELP = "compare two runs of one plan; exit 1 where something became slower"
_ROW = "{:<16.16} {:>4}  {:<18.18} {:>8} {:>8}  {:<22} {}"


def configure(parser: argparse.ArgumentParser) -> None:
    """Two folders."""
    parser.add_argument("old", type=Path, metavar="OLD", help="what `run --out` wrote, before")
    parser.add_argument("new", type=Path, metavar="NEW", help="the same plan, later")
    arguments.add_json(parser, "JSON instead of tables")


def execute(options: argparse.Namespace) -> int:
    """Compare and print; 1 where an arm became slower, or a speed-up smaller, beyond its interval."""
    from benchmark.analyse.two_runs import compare_runs

    found = compare_runs(arguments.recorded(options.old), arguments.recorded(options.new))
    print(json.dumps(found, indent=1) if options.json else "\n".join(_text(found)))
    return 1 if found["slower"] else 0


def _text(found: Mapping[str, Any]) -> Iterator[str]:
    old, new = found["old"], found["new"]
    yield f"old: run {old['run']}, {old['provenance']}; new: run {new['run']}, {new['provenance']}"
    yield ""
    yield "Time per output token of each arm; new / old above 1 is better"
    yield _ROW.format("class", "load", "arm", "old ms", "new ms", "times faster", "verdict")
    for row in found["arms"]:
        yield _line(row, row["arm"], scale=1000)
    if found["speed_ups"]:
        yield ""
        yield "Speed-up over the baseline; new / old above 1 is better"
        yield _ROW.format("class", "load", "arm", "old", "new", "times larger", "verdict")
    for row in found["speed_ups"]:
        yield _line(row, row["treatment"], scale=1)
    yield ""
    yield "95 % intervals: Student t over prompts; how two starts of one server differ is not in them."
    yield from (f"! {text}" for text in found["warnings"])
    for row in found["arms"]:
        if row["warning"]:
            yield f"! {row['class']}, {row['arm']}: {row['warning']}"
    yield from (f"! {text}" for text in found["slower"])


def _line(row: Mapping[str, Any], arm: str, *, scale: float) -> str:
    load = row["concurrency"] if row["rate_per_s"] is None else f"{row['rate_per_s']:g}/s"
    return _ROW.format(
        row["class"],
        load,
        arm,
        _number(row["old"], scale),
        _number(row["new"], scale),
        _ratio(row),
        row["verdict"],
    ).rstrip()


def _number(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value * scale:.2f}"


def _ratio(row: Mapping[str, Any]) -> str:
    if row["ratio"] is None:
        return "-"
    if row["ci_low"] is None:
        return f"{row['ratio']:.3f}"
    return f"{row['ratio']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
