"""`report`: summary, page and exports of a recorded run, and the window to try next."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trnspec.benchmark.commands.arm_options import (
    MIX,
    about_arms,
    folder,
    json_option,
    read_by,
    recorded,
    shares,
)
from trnspec.core.json_text import json_text
from trnspec.core.words import count

if TYPE_CHECKING:
    from trnspec.benchmark.analyse.cells import RequestsByCell
    from trnspec.benchmark.analyse.result import Result
    from trnspec.benchmark.measure.raw_run import RawRun


@click.command()
@folder()
@json_option("Print the summary as JSON instead of text.")
@click.option(
    "--all", is_flag=True, help="Also print every load and cell, explanations, engines and quality."
)
@click.option(
    "--by-length",
    is_flag=True,
    help="Split each class into its shorter and its longer prompts: what pays for short contexts may not for long ones.",
)
@click.option("--mix", type=read_by(shares), metavar="CLASS=SHARE,..", help=MIX)
@click.option(
    "--load",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Print the best number of draft tokens for N concurrent requests, for an engine with only one such number.",
)
@about_arms
def report(**given: Any) -> int:
    """Make the summary, the page, the CSV and llmperf's files again from the raw records, then print which arm to use."""
    raw = recorded(given["folder"], given)
    wishes = {"by_length": given["by_length"], "shares": given["mix"], "load": given["load"]}
    return reported(given["folder"], raw, as_json=given["json"], everything=given["all"], **wishes)


def reported(
    folder: Path,
    raw: RawRun,
    *,
    as_json: bool,
    everything: bool = False,
    load: int | None = None,
    **wishes: Any,
) -> int:
    """Write summary, page and exports, print the answer and the names of the files; the exit code is that of `show`."""
    from trnspec.benchmark.analyse.cells import cells_of
    from trnspec.benchmark.analyse.window_schedule import next_windows
    from trnspec.benchmark.formats import speculation_profile
    from trnspec.benchmark.measure.journal import write_whole
    from trnspec.benchmark.show import exports, page

    cells = cells_of(raw, **wishes)
    result = summarised(folder, cells)
    plan = json_text(raw.sessions[-1].plan.to_dict(), indent=1) + "\n"
    written = [write_whole(folder / page.PLAN_FILE, plan).name]
    written += [path.name for path in exports.write_csv(raw, result, folder)]
    for arm, profile in speculation_profile.profiles(result):
        path = folder / f"speculation_profile-{exports.slug(arm)}.json"
        written.append(write_whole(path, json_text(profile, indent=1) + "\n").name)
    written.append(f"{exports.LLMPERF}/ ({count(len(exports.write_llmperf(cells, folder)), 'file')})")
    html = write_whole(folder / page.FILE_NAME, page.render(cells, result))
    if drawn := page.picture(result):
        written.append(write_whole(folder / page.PICTURE, drawn).name)
    else:
        (folder / page.PICTURE).unlink(missing_ok=True)  # of an earlier report
    code = show(result, as_json=as_json, everything=everything, load=load)
    if not as_json:
        print("\n" + "\n".join(next_windows(cells, result)))
    sys.stdout.flush()
    print(f"Page: {html}\nAlso written: {', '.join(written)}", file=sys.stderr)
    return code


def summarised(folder: Path, cells: RequestsByCell) -> Result:
    """Make the result of the run in `folder` and store it there."""
    from trnspec.benchmark.analyse.summary import summarise, write

    result = summarise(cells, folder)
    write(result, folder)
    return result


def show(result: Result, *, as_json: bool, everything: bool = False, load: int | None = None) -> int:
    """Print the recommendation, or `everything`, and the window for each load, or for `load`. Returns 1 if the whole answer is withheld, else
    0."""
    from trnspec.benchmark.analyse.window_schedule import schedule_lines, window_for
    from trnspec.benchmark.show.report_templates import render

    if as_json:
        print(json_text(result.model_dump(mode="json"), indent=1))
    else:
        print(render(result, everything=everything))
        if told := [window_for(result.windows, load)] if load else [*schedule_lines(result)]:
            print("\n" + "\n".join(told))
    return int(result.withheld)
