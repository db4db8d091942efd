"""`run`: measure the arms of a plan, or of the command line, on the same prompts."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.commands import option_types
from benchmark.commands.option_types import add, arm, overridden, positive, seconds, whole
from benchmark.errors import ErrorRateExceeded, PlanError
from core.words import count

if TYPE_CHECKING:
    from benchmark.measure.loader import Loader
    from benchmark.measure.progress import Progress
    from benchmark.plan import Plan

HELP = "measure arms on the same prompts, then print what to do"
_DEFAULTS: dict[str, Any] = {"concurrency": [4], "requests": 32, "warmup": 4, "seed": 1}
"""Of a run without a plan."""
_SAME = (
    "model baseline classes concurrency rate requests rounds starts mixed cell_minutes warmup max_tokens seed simultaneous ignore_eos "
    "extra_body slo objective"
)
"""Options that change what the plan calls the same, or choose from it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Plan or prompts, folder, and what is done with them; who is measured, and how."""
    parser.epilog = (
        "Every arm gets the API key in BENCHMARK_API_KEY, or in OPENAI_API_KEY where that is not set. Where greedy answers of "
        "two arms differ, both are asked for log-probabilities there after the load (docs/losslessness.md)."
    )
    prompts = "prompts alone: JSON lines (prompt, messages or text), CSV, Spec-Bench, MT-Bench, ShareGPT, OpenAI batch or fine-tuning"
    tolerated = (
        "stop with exit 1 once more than this share of an arm's requests has failed (default 1: never)"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    add(what, "--plan", Path, "FILE", "the plan, JSON")
    add(what, "--prompts", Path, "FILE", prompts)
    add(parser, "--out", Path, "DIR", "results; an earlier run goes on", required=True)
    add(parser, "--timeout", seconds, "S", "per request (default 300)", default=300.0)
    add(parser, "--max-error-rate", option_types.share, "X", tolerated, default=1.0)
    closer = "seconds at most for asking again where greedy answers differ; 0 skips it (default 600)"
    add(parser, "--closer-look", option_types.seconds_or_none, "S", closer, default=600.0)
    parser.add_argument(
        "--no-sense-check",
        action="store_true",
        help="do not ask the baseline twelve simple questions before the load, of which it must answer 8",
    )
    option_types.add_json(parser)

    arms = parser.add_argument_group("arms (with --prompts needed, with --plan instead of its own)")
    where = "address of an arm, up to and including /v1; without a plan the first is the baseline"
    add(arms, "--arm", option_types.address, "NAME=URL", where, action="append", default=[])
    add(arms, "--baseline", str, "NAME", "what the other arms are compared with")
    add(arms, "--model", str, "M", "the served model's name")
    option_types.add_name(arms, "what the run is called; only without a plan")
    option_types.add_declared(arms)

    load = parser.add_argument_group("load (without a plan: 32 requests, 4 at a time, 4 to warm up)")
    level, long = (load.add_mutually_exclusive_group() for _ in range(2))
    arrivals = "Poisson arrivals per second instead, a cell each, however many are in flight"
    again = "another one makes other nonces, so that a second run meets no warm cache"
    add(level, "--concurrency", option_types.levels, "N,N", "requests in flight, a cell each")
    add(level, "--rate", option_types.rates, "X,X", arrivals)
    between = "search between two loads for the largest at which drafting pays, cell by cell; 1:64"
    add(level, "--search", option_types.search_range, "LOW:HIGH", between)
    add(level, "--search-rate", option_types.search_range, "LOW:HIGH", "the same over arrivals per second")
    spend = "of a search: cells (default 12), minutes of loading, usd"
    add(load, "--search-budget", option_types.search_budget, "B=X,B=X", spend)
    add(
        load,
        "--requests",
        positive,
        "N",
        "measured requests per class and cell, at least; of a search, a cell has a part of them",
    )
    restarts = (
        "equal parts of the run; between two, start the servers of all arms again: the run waits for it"
    )
    add(load, "--starts", positive, "N", restarts)
    longest = "most minutes of loading in a cell, all arms together; it then has fewer requests"
    add(load, "--cell-minutes", option_types.number, "M", longest)
    add(long, "--rounds", positive, "N", "passes over all cells")
    add(long, "--duration", seconds, "S", "begin rounds until then; 90, 90s, 30m or 2h")
    add(load, "--warmup", whole, "N", "unmeasured requests per arm, at least the largest load")
    add(load, "--max-tokens", positive, "N", "and no prompt may have more")
    add(load, "--classes", option_types.names, "A,B", "only these classes of prompts")
    add(load, "--seed", whole, "N", again)
    for option, help_ in {
        "--mixed": "all classes share a cell, asked in turn; a search always does that",
        "--simultaneous": "load the arms at once instead of in turns",
        "--ignore-eos": "force every answer to max_tokens; what follows its natural end distorts acceptance",
    }.items():
        load.add_argument(option, action="store_true", default=None, help=help_)
    add(load, "--extra-body", option_types.json_object, "JSON", "merged into each request body")
    each = "what a request has to keep, for goodput: ttft_s, tpot_s, e2e_s in seconds"
    share = (
        "what an arm has to keep, in seconds by percentile of its requests: tpot_s=0.04 is tpot_s.p95=0.04"
    )
    add(load, "--slo", option_types.slo, "M=S,M=S", each)
    add(load, "--objective", option_types.objective, "M.P=S,M.P=S", share)


def execute(options: argparse.Namespace) -> int:
    """Measure, then report; stopped, report what is there."""
    from benchmark.analyse.frontier import next_cell, standing
    from benchmark.commands.report_command import reported, show, summarised
    from benchmark.measure import journal
    from benchmark.measure.progress import Progress
    from benchmark.measure.questions import before_load, look_closer
    from benchmark.measure.rounds import run, run_until_signalled

    progress = Progress(sys.stderr)

    async def work() -> None:
        said = {"out": options.out, "timeout_s": options.timeout, "progress": progress}
        asked = _plan(options)
        if asked.objective:
            _say_what_it_needs(asked, progress)
        plan = await before_load(asked, **said, sense_check=not options.no_sense_check)
        await run(
            plan,
            **said,
            max_error_rate=options.max_error_rate,
            after_warmup=_look_at_steps,
            choose=next_cell,
            standing=standing,
        )
        if options.closer_look:
            await look_closer(journal.read(options.out), **said, limit_s=options.closer_look)

    try:
        signal = run_until_signalled(work())
    except ErrorRateExceeded:
        show(summarised(options.out), as_json=options.json)
        raise
    if signal is None:
        return reported(options.out, journal.read(options.out), as_json=options.json)
    if journal.exists(options.out):
        show(summarised(options.out), as_json=options.json)
    print(f"benchmark run: stopped by {signal.name}; the same command goes on from here", file=sys.stderr)
    return 128 + signal


def _say_what_it_needs(plan: Plan, progress: Progress) -> None:
    """How many different prompts the objective needs, as a warning where the smallest load has fewer."""
    from benchmark.measure.schedule import fewest_prompts
    from benchmark.objectives import need, prompts_needed

    known = fewest_prompts(plan)
    enough = known >= prompts_needed(plan.objective)
    (progress.tell if enough else progress.warn)(f"objective: {need(plan.objective, known)}")


def _look_at_steps(loader: Loader) -> None:
    """Say whether the sources of each drafting arm's tokens per step agree, as far as the warm-up shows it."""
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
            said = known_at(warm, one, place)
            (loader.progress.warn if said.caution else loader.progress.tell)(first_look(one, said))


def _plan(options: argparse.Namespace) -> Plan:
    """The plan of a file, or one made of prompts, with what the options change."""
    from benchmark.plan import from_dict, load

    asked = load(options.plan) if options.plan else from_dict(_plan_of_prompts(options))
    settings = {name: getattr(options, name) for name in _SAME.split()} | _search(options, asked)
    if options.objective is None and asked.objective is None and (options.slo or asked.slo):
        settings["objective"] = {}  # none: in plans of earlier versions the slo of a search was one
    of_arms = {"url": dict(options.arm)} | option_types.of_arms(options)
    return overridden(asked, of_arms, duration_s=options.duration, **settings)


def _search(options: argparse.Namespace, asked: Plan) -> dict[str, Any]:
    """What a search changes about the plan: its own loads go. Raises PlanError for what does not go with it."""
    between = options.search or options.search_rate
    if between is None:
        if options.search_budget and asked.search is None:
            raise PlanError("--search-budget: there is no search; add --search LOW:HIGH")
        search = (
            asked.search.to_dict() | options.search_budget if asked.search and options.search_budget else None
        )
        return {} if search is None else {"search": search}
    given = {
        "--duration": options.duration,
        "--rounds": options.rounds,
        "--simultaneous": options.simultaneous,
    }
    if named := [option for option, value in given.items() if value]:
        raise PlanError(f"--search: chooses the loads itself; leave {' and '.join(named)} out")
    low, high = between
    by = "rate" if options.search_rate else "concurrency"
    search = {"low": low, "high": high, "by": by} | (options.search_budget or {})
    return {"search": search, "concurrency": [], "rate": []}


def _plan_of_prompts(options: argparse.Namespace) -> dict[str, Any]:
    prompts = _prompts(options.prompts)
    own = [n for prompt in prompts if type(n := prompt.get("max_tokens")) is int]
    max_tokens: int = options.max_tokens or (max(own) if len(own) == len(prompts) else 0)
    missing = {"--arm": options.arm, "--model": options.model, "--max-tokens": max_tokens}
    if absent := [option for option, value in missing.items() if not value]:
        raise PlanError(f"--prompts: needs {', '.join(absent)} as well, which a plan would say")
    baseline = options.baseline or options.arm[0][0]
    drafted = {baseline: 0} | dict(options.speculative_tokens)  # unless told, the baseline decodes plainly
    load: dict[str, Any] = {}
    if any(one.keys() & {"at_s", "conversation"} for one in prompts):
        load["requests"] = len(prompts)
    if any("at_s" in one for one in prompts):
        load["concurrency"] = []
    return {
        "schema": 1,
        "experiment": options.name or "unnamed",
        "model": options.model,
        "baseline": baseline,
        "arms": [arm(name, url, drafted.get(name), max_tokens) for name, url in options.arm],
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
