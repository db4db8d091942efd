"""`advise`: which window to compile, from one run at the largest."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.commands import option_types
from benchmark.commands.option_types import add, number, positive, whole
from benchmark.errors import PlanError
from core.json_text import json_text
from core.screen import folded, table

if TYPE_CHECKING:
    from benchmark.measure.journal import RawRun

HELP = "predict tokens per step and speed-up of every smaller window k, recommend one or what to time next"


def configure(parser: argparse.ArgumentParser) -> None:
    """A run, or what is known of one."""
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="what `run --out` wrote")
    instead = "instead of DIR: a summary.json, or JSON {class: [share of steps in which draft 1, 2, ... was accepted]}"
    times = (
        "seconds of a decode step on the machine to predict, by window; 0 is plain decoding, for example "
        "0=0.045,7=0.0944"
    )
    beside = (
        "also use the steps of an arm with another window and the same draft: an arm of the run in DIR, or the folder of another run, "
        "all its speculating arms or the one named behind a colon; may be repeated"
    )
    yields = (
        "most tokens of a step with k drafts on that machine: k for fused speculation of NxD Inference, k+1 for vLLM "
        "(default: as in the run; k+1 with --acceptance)"
    )
    add(parser, "--acceptance", Path, "FILE", instead)
    add(parser, "--step-times", points, "0=S,K=S", times)
    parser.add_argument("--timed-with", action="append", default=[], metavar="ARM|RUN[:ARM]", help=beside)
    parser.add_argument("--yields", choices=("k", "k+1"), help=yields)
    add(parser, "--k-max", positive, "N", "the largest window to consider")
    add(parser, "--mix", mix, "CLASS=WEIGHT,...", "shares of the output tokens (default: equal)")
    option_types.add_json(parser, "JSON instead of tables")
    option_types.add_declared(parser.add_argument_group("arms of the run in DIR (what `run` was not told)"))


def execute(options: argparse.Namespace) -> int:
    """Predict and print. Raises PlanError for options that do not go together."""
    from benchmark.analyse.acceptance.advice import advise, forecast
    from benchmark.analyse.acceptance.samples import Wishes
    from benchmark.analyse.acceptance.windows import step_times
    from benchmark.analyse.acceptance.yields import survivals

    if (options.folder is None) == (options.acceptance is None):
        raise PlanError("give either DIR or --acceptance FILE, with --step-times for another machine")
    if options.step_times is None and (options.acceptance or options.yields):
        given = "--acceptance" if options.acceptance else "--yields"
        raise PlanError(
            f"{given}: needs --step-times 0=S,K=S, the seconds of a step of the machine to predict"
        )
    if options.timed_with and (options.acceptance or options.step_times):
        raise PlanError(
            "--timed-with: adds to the step times of the run in DIR, which --step-times replaces; give one of the two, with all times in it"
        )
    unused = None if options.yields is None else int(options.yields == "k")
    raw = option_types.read_declared(options) if options.folder else None
    arms, runs = _timed(options.timed_with, raw)
    wishes = Wishes(
        k_max=options.k_max,
        mix=options.mix,
        step_times=step_times(options.step_times) if options.step_times else None,
        timed_with=arms,
        timed_in=runs,
        unused_drafts=unused,
    )
    if raw:
        said = advise(raw, wishes)
    else:
        said = forecast(survivals(options.acceptance), wishes, basis=f"acceptance as in {options.acceptance}")
    print(json_text(said, indent=1) if options.json else "\n".join(folded(_text(said))))
    return 0


def _timed(
    given: Sequence[str], raw: RawRun | None
) -> tuple[tuple[str, ...], list[tuple[RawRun, str | None]]]:
    """Arms of the run, and other runs, of each an arm or all."""
    from benchmark.measure import journal

    own = {arm.name for arm in raw.plan.arms} if raw else set()
    arms: list[str] = []
    runs: list[tuple[RawRun, str | None]] = []
    for value in given:
        folder, colon, arm = value.rpartition(":")
        if value not in own and Path(value).is_dir():
            runs.append((journal.read(Path(value)), None))
        elif value not in own and colon and Path(folder).is_dir():
            runs.append((journal.read(Path(folder)), arm))
        else:
            arms.append(value)
    return tuple(arms), runs


def points(text: str) -> dict[int, float]:
    """Seconds of a step by window."""
    found = {}
    for item in text.split(","):
        k, _, seconds = item.partition("=")
        found[whole(k)] = number(seconds)
    if 0 not in found or len(found) < 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} must name plain decoding (0) and a window, for example 0=0.045,7=0.0944"
        )
    return found


def mix(text: str) -> dict[str, float]:
    """Shares by class."""
    shares = {}
    for item in text.split(","):
        class_, equals, weight = item.rpartition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{item!r} is not CLASS=WEIGHT")
        shares[class_.strip()] = number(weight)
    return shares


def _text(said: Mapping[str, Any]) -> Iterator[str]:
    """What is predicted, a table for each class, then the mixtures."""
    yield f"PREDICTED from {said['basis']}; step times: {said['step_times']}"
    yield from said["notes"]
    for cell in said["cells"]:
        yield ""
        yield f"{cell['class']}{_where(cell)}: acceptance from {cell['source']}"
        timed = "".join(f", window {k} {seconds * 1000:.1f} ms" for k, seconds in cell["timed_s"].items())
        predicted = any(row["k"] not in cell["timed_s"] for row in cell["by_k"])
        others = "; other windows are predicted from these" if predicted else ""
        yield f"  a step: plain {cell['plain_s'] * 1000:.1f} ms{timed}{others}"
        yield from (f"  {note}" for note in cell["notes"])
        rows = []
        for row in cell["by_k"]:
            alike = row["k"] in cell["not_told_apart"]
            mark = "?" if alike else "*" if row["k"] == cell["recommended_k"] else ""
            is_timed = row["k"] in cell["timed_s"]
            gain = (
                _with_interval(row, "speed_up", "ci_low", "ci_high") if is_timed else f"{row['speed_up']:.2f}"
            )
            tokens = _with_interval(row, "tokens_per_step", "tokens_per_step_low", "tokens_per_step_high")
            known = "timed" if is_timed else f"{row['low']:.2f} to {row['high']:.2f}"
            times = f"{row['step_s'] * 1000:.2f}", f"{row['tpot_s'] * 1000:.2f}"
            rows.append((f"{mark}{row['k']:>2}", tokens, *times, gain, known))
        headings = ("k", "tokens/step", "step ms", "TPOT ms", "speed-up", "range")
        yield from table(headings, rows, names={5}, indent="   ")
        yield f"  {cell['text']}"
    for one in said.get("left_out", ()):
        yield ""
        yield f"{one['class']}{_where(one)}: left out, {one['why']}"
    for one in said["mixes"]:
        shares = ", ".join(f"{class_} {share:.0%}" for class_, share in one["weights"].items() if share)
        yield ""
        yield f"traffic of {shares}{_where(one)}:"
        yield f"  {one['text']}"
    for one in said.get("by_load", ()):
        yield ""
        yield f"{one['class'] or 'the mixture'}, {one['arm']}, by load:"
        yield f"  {one['text']}"


def _with_interval(row: Mapping[str, Any], value: str, low: str, high: str) -> str:
    if row[low] is None:
        return f"{row[value]:.2f}"
    return f"{row[value]:.2f} [{row[low]:.2f}, {row[high]:.2f}]"


def _where(cell: Mapping[str, Any]) -> str:
    """The load and the arm, where there are any."""
    from benchmark.plan import Load

    if cell["arm"] is None:
        return ""
    load = Load(concurrency=cell["concurrency"], rate_per_s=cell["rate_per_s"])
    return f", {load.in_words}, {cell['arm']}"
