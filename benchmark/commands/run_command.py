"""`run`: measure the arms of a plan, or of the command line, on the same prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmark.commands import cli
from benchmark.errors import ErrorRateExceeded, PlanError
from benchmark.objectives import DEFAULT
from core.words import count

if TYPE_CHECKING:
    from benchmark.measure.loader import Loader
    from benchmark.measure.progress import Progress
    from benchmark.plan import Plan

_DEFAULTS: dict[str, Any] = {"concurrency": [4], "requests": 32, "warmup": 4, "seed": 1}
"""What a run without a plan has."""
_ARMS, _LOAD = (
    "Arms (needed with --prompts; they replace a plan's)",
    "Load (without a plan: 32 requests, 4 at a time, warm-up 4)",
)
_ARM = "Address of an arm, up to and including /v1; without a plan the first is the baseline."
_OF_ARMS: cli.Rows = {
    "baseline": ("--baseline NAME", "What the other arms are compared with."),
    "model": ("--model M", "The served model's name."),
    "experiment": ("--name NAME", "What the run is called; only without a plan."),
}
_OF_LOAD: cli.Rows = {
    "concurrency": ("--concurrency N,N", "Requests in flight, a cell each."),
    "rate": (
        "--rate X,X",
        "Poisson arrivals per second instead, a cell each, however many are in flight.",
    ),
    "search_levels": (
        "--search LOW:HIGH",
        "Search between two loads for the largest at which drafting pays, cell by cell; 1:64.",
    ),
    "search_rate": ("--search-rate LOW:HIGH", "The same over arrivals per second."),
    "search_budget": ("--search-budget B=X,B=X", "Of a search: cells (default 12), minutes of loading, usd."),
    "requests": (
        "--requests N",
        "Measured requests per class and cell, at least; of a search, a cell has a part of them.",
    ),
    "starts": (
        "--starts N",
        "Equal parts of the run; between two, start the servers of all arms again: the run waits for it.",
    ),
    "cell_minutes": (
        "--cell-minutes M",
        "Most minutes of loading in a cell, all arms together; it then has fewer requests.",
    ),
    "rounds": ("--rounds N", "Passes over all cells."),
    "duration_s": ("--duration S", "Begin rounds until then; 90, 90s, 30m or 2h."),
    "warmup": ("--warmup N", "Unmeasured requests per arm, at least the largest load."),
    "max_tokens": ("--max-tokens N", "And no prompt may have more."),
    "classes": ("--classes A,B", "Only these classes of prompts."),
    "seed": ("--seed N", "Another one makes other nonces, so that a second run meets no warm cache."),
    "mixed": ("--mixed", "All classes share a cell, asked in turn; a search always does that."),
    "simultaneous": ("--simultaneous", "Load the arms at once instead of in turns."),
    "ignore_eos": (
        "--ignore-eos",
        "Force every answer to max_tokens; what follows its natural end distorts acceptance.",
    ),
    "extra_body": ("--extra-body JSON", "Merged into each request body."),
    "slo": (
        "--slo M=S,M=S",
        "What a request has to keep, for goodput: ttft_s, tpot_s, e2e_s in seconds.",
    ),
    "objective": (
        "--objective M.P=S,M.P=S",
        "What an arm has to keep, in seconds by percentile of its requests: tpot_s=0.04 is tpot_s.p95=0.04.",
    ),
}


def _by_percentile(text: str) -> dict[str, dict[str, str]]:
    """`METRIC=SECONDS` or `METRIC.PERCENTILE=SECONDS` with commas between them."""
    limits: dict[str, dict[str, str]] = {}
    for name, value in map(cli.pair, text.split(",")):
        metric, dot, percentile = name.partition(".")
        percentile = percentile if dot else DEFAULT
        if percentile in limits.setdefault(metric, {}):
            raise ValueError(f"{metric}.{percentile} is given twice")
        limits[metric][percentile] = value
    return limits


def _search_range(text: str) -> dict[str, float]:
    """`LOW:HIGH`, two loads."""
    low, colon, high = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is not LOW:HIGH, as in 1:64")
    first, last = (int(value) if value.is_integer() else value for value in map(cli.number, (low, high)))
    if not first < last:
        raise ValueError(f"{text!r} is an empty range; LOW must be below HIGH, as in 1:64")
    return {"low": first, "high": last}


def _search_budget(text: str) -> dict[str, float]:
    """`cells=N,minutes=X,usd=X`, one of them at least."""
    budget = cli.pairs(text)
    if unknown := set(budget) - {"cells", "minutes", "usd"}:
        raise ValueError(f"{min(unknown)!r} is not one of cells, minutes, usd")
    return {name: cli.field(name, part="Search")(value) for name, value in budget.items()}


_READ = {
    "concurrency": cli.listed,
    "rate": cli.listed,
    "search_levels": _search_range,
    "search_rate": _search_range,
    "search_budget": _search_budget,
    "duration_s": cli.seconds,
    "classes": cli.listed,
    "extra_body": cli.json_object,
    "slo": cli.pairs,
    "objective": _by_percentile,
}


@click.command(
    cls=cli.Sectioned,
    epilog="Every arm gets the API key in BENCHMARK_API_KEY, or in OPENAI_API_KEY where that is not set. Where greedy answers of "
    "two arms differ, both are asked for log-probabilities there after the load (docs/losslessness.md).",
)
@cli.option("--plan FILE", "The plan, JSON.  [required, or --prompts]", Path)
@cli.option(
    "--prompts FILE",
    "Prompts alone: JSON lines (prompt, messages or text), CSV, Spec-Bench, MT-Bench, ShareGPT, OpenAI batch or fine-tuning.  "
    "[required, or --plan]",
    Path,
)
@cli.option("--out DIR", "Folder of results; a run that is already there is continued.", Path, required=True)
@cli.option("--timeout S", "Per request (default 300).", cli.seconds, default=300.0)
@cli.option(
    "--max-error-rate X",
    "Stop with exit 1 once more than this share of an arm's requests has failed (default 1: never).",
    cli.share,
    default=1.0,
)
@cli.option(
    "--closer-look S",
    "Seconds at most for asking again where greedy answers differ; 0 skips it (default 600).",
    lambda text: 0.0 if text.strip() == "0" else cli.seconds(text),
    default=600.0,
)
@cli.option(
    "--no-sense-check",
    "Do not ask the baseline twelve simple questions before the load, of which it must answer 8.",
)
@cli.option("--json", "Print the summary as JSON instead of text.")
@cli.options(_ARMS, {"url": ("--arm NAME=URL", _ARM)}, {}, part="PlannedArm")
@cli.option(
    "--node NAME=NODE",
    "Which node serves an arm: once another one does, a cell that was cut is measured again, and nothing is pooled over the change.",
    cli.pair,
    name="nodes",
    section=_ARMS,
    multiple=True,
)
@cli.options(_ARMS, _OF_ARMS, {})
@click.option("--experiment", hidden=True)  # as --name was called before
@cli.declared(_ARMS)
@cli.options(_LOAD, _OF_LOAD, _READ)
def command(**given: Any) -> int:
    """Measure arms on the same prompts, then print what to do."""
    from benchmark.commands.recorded_commands import reported, show, summarised
    from benchmark.measure import journal
    from benchmark.measure.journal import RawRun
    from benchmark.measure.progress import Progress
    from benchmark.measure.questions import look_closer
    from benchmark.measure.rounds import run, run_until_signalled

    _only_one(given, "plan", "prompts")
    _only_one(given, "concurrency", "rate", "search_levels", "search_rate")
    _only_one(given, "rounds", "duration_s")
    if not (given["plan"] or given["prompts"]):
        raise click.UsageError("one of --plan and --prompts is required")
    progress, out, raw = Progress(sys.stderr), given["out"], list[RawRun]()

    async def work() -> None:
        about = {"out": out, "timeout_s": given["timeout"], "progress": progress}
        plan, nodes, searching = _plan(given), dict(given["nodes"]), dict[str, Any]()
        if plan.objective:
            _say_what_it_needs(plan, progress)
        cli.known("--node", nodes, plan.prices)
        if plan.search:
            from benchmark.analyse.frontier import next_cell, standing

            searching = {"choose": next_cell, "standing": standing}
        await run(
            plan,
            **about,
            **searching,
            sense_check=not given["no_sense_check"],
            max_error_rate=given["max_error_rate"],
            after_warmup=_look_at_steps,
            nodes=nodes,
        )
        raw.append(journal.read(out))
        if given["closer_look"]:
            raw.append(await look_closer(raw.pop(), **about, limit_s=given["closer_look"]))

    try:
        signal = run_until_signalled(work())
    except ErrorRateExceeded:
        show(summarised(out), as_json=given["json"])
        raise
    if signal is None:
        return reported(out, raw.pop(), as_json=given["json"])
    if journal.exists(out):
        show(summarised(out), as_json=given["json"])
    who = click.get_current_context().command_path.removeprefix("python -m ")
    print(f"{who}: stopped by {signal.name}; repeat the command to continue", file=sys.stderr)
    return 128 + signal


def _only_one(given: Mapping[str, Any], *names: str) -> None:
    typed = [_OF_LOAD.get(name, (f"--{name}",))[0].split()[0] for name in names if given[name] is not None]
    if len(typed) > 1:
        raise click.UsageError(f"{typed[1]}: not allowed with {typed[0]}")


def _say_what_it_needs(plan: Plan, progress: Progress) -> None:
    """Say how many different prompts the objective needs, as a warning where the smallest load has fewer."""
    from benchmark.measure.schedule import fewest_prompts
    from benchmark.objectives import need, prompts_needed

    known = fewest_prompts(plan)
    enough = known >= prompts_needed(plan.objective)
    (progress.tell if enough else progress.warn)(f"objective: {need(plan.objective, known)}")


def _look_at_steps(loader: Loader) -> None:
    """Say whether the sources of each drafting arm's tokens per step agree, as far as the warm-up shows it."""
    if not any(arm.speculative_tokens for arm in loader.plan.arms):
        return
    from benchmark.analyse.acceptance.yields import first_look, known_at
    from benchmark.analyse.cells import Cells, Place
    from benchmark.plan import Load

    warm = Cells(loader.plan, {}, {})
    place = Place("warm-up", Load(concurrency=1))
    for name, standing in loader.standings.items():
        warm.requests[name, place] = standing.warmup
        warm.blocks[name, place] = standing.warmup_block
    for one in loader.plan.arms:
        if one.speculative_tokens and warm.answered(one, place):
            known = known_at(warm, one, place)
            (loader.progress.warn if known.caution else loader.progress.tell)(first_look(one, known))


def _plan(given: Mapping[str, Any]) -> Plan:
    """The plan of a file, or one made of prompts, with what the options change."""
    from benchmark.plan import Plan, from_dict, load

    asked = load(given["plan"]) if given["plan"] else from_dict(_plan_of_prompts(given))
    names = {"classes", *Plan.model_fields} & {*_OF_ARMS, *_OF_LOAD} - {"experiment"}
    settings = {name: None if given[name] is False else given[name] for name in names}
    settings |= _search(given, asked)
    if given["objective"] is None and asked.objective is None and (given["slo"] or asked.slo):
        settings["objective"] = {}  # none: in plans of earlier versions the slo of a search was one
    return cli.overridden(asked, {"url": dict(given["url"])} | cli.of_arms(given), **settings)


def _search(given: Mapping[str, Any], asked: Plan) -> dict[str, Any]:
    """What a search changes about the plan: its own loads go. Raises PlanError for what does not go with it."""
    between, budget = given["search_levels"] or given["search_rate"], given["search_budget"] or {}
    if between is None:
        if budget and asked.search is None:
            raise PlanError("--search-budget: there is no search; add --search LOW:HIGH")
        return {"search": asked.search.to_dict() | budget} if asked.search and budget else {}
    fixed = {"--duration": "duration_s", "--rounds": "rounds", "--simultaneous": "simultaneous"}
    if named := [switch for switch, name in fixed.items() if given[name]]:
        raise PlanError(f"--search: chooses the loads itself; leave {' and '.join(named)} out")
    by = "rate" if given["search_rate"] else "concurrency"
    return {"search": between | {"by": by} | budget, "concurrency": [], "rate": []}


def _plan_of_prompts(given: Mapping[str, Any]) -> dict[str, Any]:
    prompts = _prompts(given["prompts"])
    own = [n for prompt in prompts if type(n := prompt.get("max_tokens")) is int]
    max_tokens: int = given["max_tokens"] or (max(own) if len(own) == len(prompts) else 0)
    missing = {"--arm": given["url"], "--model": given["model"], "--max-tokens": max_tokens}
    if absent := [name for name, value in missing.items() if not value]:
        raise PlanError(f"--prompts: needs {', '.join(absent)} as well, which a plan would say")
    baseline = given["baseline"] or given["url"][0][0]
    drafted = {baseline: 0} | dict(given["speculative_tokens"])  # unless told, the baseline decodes plainly
    load: dict[str, Any] = {}
    if any(one.keys() & {"at_s", "conversation"} for one in prompts):
        load["requests"] = len(prompts)
    if any("at_s" in one for one in prompts):
        load["concurrency"] = []
    arms = []
    for name, url in given["url"]:
        # Without a declaration a step may yield anything, so that chunks never stand for tokens.
        most = drafted[name] + 1 if name in drafted else max_tokens
        arm = {
            "name": name,
            "url": url,
            "speculative_tokens": drafted.get(name, 0),
            "max_tokens_per_step": most,
        }
        arms.append(arm)
    return {
        "schema": 1,
        "experiment": given["experiment"] or "unnamed",
        "model": given["model"],
        "baseline": baseline,
        "arms": arms,
        **_DEFAULTS,
        **load,
        "max_tokens": max_tokens,
        "prompts": prompts,
    }


def _prompts(path: Path) -> list[dict[str, Any]]:
    """The prompts of the file at `path` as a plan has them. Raises PlanError."""
    from benchmark.prompt_files import read_file

    file = read_file(path, name=path.name)
    if file.problems:
        places = (replace(one, where=str(one.value), value=None) for one in file.problems)
        raise PlanError("; ".join(one.line() for one in places))
    print(f"{path.name}: {count(len(file.lines), 'prompt')}, {file.format}", file=sys.stderr)
    # How long a prompt is decides what is compiled, not what is asked.
    return [{key: value for key, value in line.items() if key != "tokens"} for _, line in file.lines]
