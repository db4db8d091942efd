"""`scripts/measure lab-search`: does a searched load agree with an exhaustive grid, on a real engine?

The lab's target with and without a draft, on vLLM. A search between two loads and a grid of listed loads ask the same servers:
in each start of the servers first the search, then the grid. Both are resumable, so each is stopped where it waits for the next
start. Where the grid's interval excludes 1 its sign must be the one that the search states for that load: in each start, about
the same servers, and in the mean over starts, whose interval is wide with two of them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmark.analyse.sentences import in_words
from benchmark.analyse.summary import summarise
from benchmark.measure import journal
from benchmark.measure.journal import RawRun, extent
from core.findings import Refusal
from experiment import load
from lab.programs import ROOT, containers, load_arms, mounted_plan, rendered, write_plan
from lab.real.installation import install, look
from lab.real.servers import Fleet, LocalEngine, mounted_folders, running

EXPERIMENT = ROOT / "experiments" / "lab-tiny.yaml"
BASELINE = "tiny"
ANY, PAYS, COSTS = (0.0, math.inf), (1.0, math.inf), (0.0, 1.0)
SAME = (0.95, 1.05)


class _Waits(Exception):
    """The client waits for the next start of the servers."""


def stated(found: Mapping[str, Any], at: float) -> tuple[float, float]:
    """Between which speed-ups a crossover of a summary places a load; any where it says nothing about it."""
    if found["found"] in ("always", "never"):
        return PAYS if found["found"] == "always" else COSTS
    if found["found"] == "while answered":
        return PAYS if at <= found["load"] else ANY
    if found["found"] == "crossing":
        low, high = found["low"], found["high"]
        if found["near_low"] is not None and found["near_high"] is not None:
            low, high = min(low, found["near_low"]), max(high, found["near_high"])
        below, above = (COSTS, PAYS) if found["rising"] else (PAYS, COSTS)
        if at < low:
            return below
        return above if at > high and not found["more"] else ANY
    if at in found["same"]:
        return SAME
    return {1: PAYS, -1: COSTS}.get(dict(map(tuple, found["signs"])).get(at, 0), ANY)


def compared(found: Mapping[str, Any], mix: list[dict[str, Any]]) -> Iterator[tuple[str, bool | None]]:
    """By load of the grid, a line and whether the search is right there; None where one of them cannot tell."""
    words = {ANY: "nothing", PAYS: "pays", COSTS: "costs", SAME: "no difference that matters"}
    for row in mix:
        at, ratio, low, high = (row[name] for name in ("concurrency", "ratio", "ci_low", "ci_high"))
        if ratio is None or low is None or high is None:
            yield f"{at:>4}  too few answers", None
            continue
        allowed, n = stated(found, at), sum(one["n_prompts"] for one in row["classes"])
        able = allowed != ANY and not low <= 1 <= high
        agrees = (low < allowed[1] and allowed[0] < high) if able else None
        verdict = {True: "agree", False: "CONTRADICT", None: "cannot tell"}[agrees]
        yield (
            f"{at:>4}  {ratio:.2f} ({low:.2f} to {high:.2f}), {n} prompts  {words[allowed]:<26}  {verdict}",
            agrees,
        )


def told(search: Mapping[str, Any], grid: Mapping[str, Any]) -> list[bool]:
    """Print what both summaries say; of the loads that can be compared, whether they agree."""
    (of_search,), (of_grid,) = (
        [one for one in summary["crossovers"] if one["class"] is None] for summary in (search, grid)
    )
    print(f"search: {of_search['treatment']} {in_words(of_search)}")
    print(f"grid:   {of_grid['treatment']} {in_words(of_grid)}")
    print("load  grid's speed-up                    the search says")
    rows = list(compared(of_search, grid["mix"]))
    print("\n".join(line for line, _ in rows))
    judged = [agrees for _, agrees in rows if agrees is not None]
    print(
        f"{sum(judged)} of {len(judged)} loads that can be compared agree, {len(rows) - len(judged)} cannot tell\n",
        flush=True,
    )
    return judged


def tell(runs: Mapping[str, RawRun], starts: int) -> int:
    """Compare the runs in each start of the servers, then in the mean over starts; 1 where they contradict each other, where
    nothing can be compared, and where one has not ended."""
    for name, raw in runs.items():
        ended_ = "" if extent(raw)[1] else ", has not ended: repeat the command with the same --out"
        print(f"{name}: {sum(one.phase == 'measured' for one in raw.requests)} measured requests{ended_}")
    if not all(extent(raw)[1] for raw in runs.values()):
        return 1
    judged: list[bool] = []
    for start in range(1, starts + 1):
        print(f"\nstart {start} of {starts}")
        judged += told(*(summarise(_of_start(raw, start)) for raw in runs.values()))
    if starts > 1:
        print(f"mean over {starts} starts")
        judged += told(*map(summarise, runs.values()))
    if not judged:
        print("no load can be compared: ask more --requests")
    return 0 if judged and all(judged) else 1


def _of_start(raw: RawRun, start: int) -> RawRun:
    """What was measured in one start of the servers; its intervals are about that start."""
    return replace(
        raw,
        requests=tuple(one for one in raw.requests if one.start == start),
        blocks=tuple(one for one in raw.blocks if one.start == start),
    )


def measure(
    fleet: Fleet, plan: Path, runs: Mapping[Path, Mapping[str, int | str | None]], starts: int
) -> None:
    """Each of the runs, by folder, in each of so many starts of the same servers."""
    for start in range(1, starts + 1):
        if start > 1:
            print(f"start {start} of {starts}", flush=True)
            fleet.start_again()
        for out, load_ in runs.items():
            out.mkdir(parents=True, exist_ok=True)
            try:
                load_arms(plan, fleet.urls, out=out, less={**load_, "starts": starts}, start_again=_stop)
            except _Waits:
                continue


def _stop() -> None:
    raise _Waits


def main(argv: list[str] | None = None) -> int:
    """Exit 1 where the search contradicts the grid."""
    parser = argparse.ArgumentParser(prog="scripts/measure lab-search", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "lab-search")
    parser.add_argument("--home", type=Path, default=ROOT / ".lab", help="where the engine is installed")
    parser.add_argument(
        "--grid",
        type=lambda text: [int(level) for level in text.split(",")],
        default=[1, 4, 8, 16],
        help="loads (default 1,4,8,16)",
    )
    parser.add_argument("--starts", type=int, default=2, help="of the servers (default 2)")
    parser.add_argument("--arm", default="tiny-weak", help="that drafts (default tiny-weak)")
    parser.add_argument("--classes", default="numeric,table", help="of prompts (default numeric,table)")
    parser.add_argument("--requests", type=int, default=64, help="per class and cell (default 64)")
    parser.add_argument("--max-tokens", type=int, default=40, help="an answer (default 40)")
    options = parser.parse_args(argv)
    experiment, out, grid = load(EXPERIMENT), options.out, sorted(options.grid)
    command = [str(install(options.home, machine=look(options.home), python=None, say=print))]
    files = rendered(EXPERIMENT, experiment, out / "manifests")
    whole, found = mounted_plan(files), containers(files)
    names = (BASELINE, options.arm)
    chosen = {"arms": tuple(arm for arm in whole.arms if arm.name in names), "mixed": True}
    plan = write_plan(whole.model_copy(update=chosen), out)
    folders, most = mounted_folders(experiment, {}), ["--max-num-seqs", str(grid[-1])]
    engine = LocalEngine(command=command, folders=folders, options=most)
    both: dict[str, int | str | None] = {
        "classes": options.classes,
        "max-tokens": options.max_tokens,
    }
    searched = {"search": f"{grid[0]}:{grid[-1]}", "search-budget": f"cells={8 * options.starts}"}
    # A cell of one pass has two blocks in a start, too few for an interval of that start.
    listed = {"concurrency": ",".join(map(str, grid)), "rounds": 3}
    runs = {
        out / "search": {**both, **searched, "requests": options.requests},
        out / "grid": {**both, **listed, "requests": -(-options.requests // 2)},
    }
    try:
        with running([found[name] for name in names], engine.launch, logs=out / "logs", at_once=2) as fleet:
            measure(fleet, plan, runs, options.starts)
    except Refusal as error:
        print(f"lab-search: {error}", file=sys.stderr)
        return error.exit_code
    return tell({one.name: journal.read(one) for one in runs}, options.starts)


if __name__ == "__main__":
    sys.exit(main())
