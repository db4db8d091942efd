"""`run`: measure the arms of a plan, or of the command line, on the same prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from trnspec.benchmark import NODES_VARIABLE
from trnspec.benchmark.commands.arm_options import (
    NAMED,
    NAMES,
    NUMBERS,
    PATH,
    SECONDS,
    SHARE,
    about_arms,
    check_names,
    in_json,
    json_option,
    of_arms,
    overridden,
    pairs,
    read_by,
)
from trnspec.benchmark.errors import ErrorRateExceeded, PlanError
from trnspec.core.words import count

FORMATS = "JSON lines, CSV, Spec-Bench, SPEED-Bench, MT-Bench, ShareGPT, OpenAI batch or fine-tuning, or .gz"

if TYPE_CHECKING:
    from trnspec.benchmark.measure.loader import LoadGenerator
    from trnspec.benchmark.plan import Plan


@click.command(
    epilog="Every arm gets the API key in BENCHMARK_API_KEY, or in OPENAI_API_KEY where that is not set. Where greedy answers of "
    "two arms differ, the baseline is asked again after the load (docs/report.md)."
)
@click.option("--plan", type=PATH, metavar="FILE", help="The plan, JSON.  [required, or --prompts]")
@click.option(
    "--prompts", type=PATH, metavar="FILE", help=f"Prompts alone: {FORMATS}.  [required, or --plan]"
)
@click.option(
    "--endpoint",
    type=click.Choice(("chat", "completions")),
    help="How --prompts are asked: chat (default), a prompt being a user's message; completions, raw text, for a base model.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="KEY",
    help="A key of --prompts that is not sent, such as temperature, which would change decoding for single prompts.",
)
@click.option(
    "--out", type=PATH, metavar="DIR", required=True, help="Folder of results; a run there is resumed."
)
@click.option(
    "--timeout", type=SECONDS, default=300.0, metavar="S", help="Seconds per request (default 300)."
)
@click.option(
    "--max-error-rate",
    type=SHARE,
    default=1.0,
    metavar="X",
    help="Stop with exit 1 above this share of failures of an arm.",
)
@click.option(
    "--questions",
    type=click.Choice(("none", "sense")),
    default="sense",
    help="Questions to each arm before the load: sense (default), twelve simple ones, of which it must answer 8; or none.",
)
@click.option(
    "--no-repeats", is_flag=True, help="Do not ask the baseline again; repeating without this does."
)
@click.option(
    "--exit-zero",
    is_flag=True,
    help="Exit 0 once the run is measured, even if its whole answer is withheld: for a pod, which would measure again.",
)
@json_option("Print the summary as JSON instead of text.")
@click.option(
    "--arm",
    "url",
    type=NAMED,
    multiple=True,
    metavar="NAME=URL",
    help="Address of an arm, up to and including /v1.",
)
@click.option(
    *("--node", "nodes"),
    type=NAMED,
    multiple=True,
    envvar=NODES_VARIABLE,
    metavar="NAME=NODE",
    help="The node that serves an arm. After a change of node, an interrupted cell is measured again, and results are not pooled "
    "over the change.",
)
@click.option(
    "--baseline", metavar="NAME", help="What others are compared with; without a plan the first arm."
)
@click.option("--model", metavar="M", help="The served model's name.")
@click.option("--name", "experiment", metavar="NAME", help="Name of the run; only without a plan.")
@about_arms
@click.option(
    "--concurrency", type=NUMBERS, metavar="N,N", help="Requests in flight, a cell each (default 4)."
)
@click.option(
    "--rate", type=NUMBERS, metavar="X,X", help="Instead, Poisson arrivals per second, a cell each."
)
@click.option(
    "--requests", type=int, metavar="N", help="Requests to measure per class at each load (default 32)."
)
@click.option("--cell-minutes", type=float, metavar="M", help="Minutes per cell, all arms together, at most.")
@click.option("--warmup", type=int, metavar="N", help="Unmeasured requests per arm (default 4).")
@click.option("--max-tokens", type=int, metavar="N", help="The longest answer; no prompt may have more.")
@click.option("--classes", type=NAMES, metavar="A,B", help="Only these classes of prompts.")
@click.option("--seed", type=int, metavar="N", help="Change it to avoid the prefix cache of an earlier run.")
@click.option("--mixed", is_flag=True, help="All classes share one cell and are asked in turn.")
@click.option(
    "--dummy-weights",
    is_flag=True,
    help="The weights are dummies or tiny: texts mean nothing and are not judged.",
)
@click.option(
    "--ignore-eos", is_flag=True, help="Make every answer max_tokens long, which changes acceptance."
)
@click.option("--extra-body", type=read_by(in_json), metavar="JSON", help="Merged into each request body.")
@click.option(
    "--slo", type=read_by(pairs), metavar="M=S,M=S", help="Limits in seconds: ttft_s, tpot_s, e2e_s."
)
def command(**given: Any) -> int:
    """Measure arms on the same prompts, then print what to do."""
    from trnspec.benchmark.commands.recorded_commands import reported, show, summarised
    from trnspec.benchmark.measure import journal
    from trnspec.benchmark.measure.progress import Progress
    from trnspec.benchmark.measure.questions import ask_again
    from trnspec.benchmark.measure.raw_run import RawRun
    from trnspec.benchmark.measure.rounds import run, run_until_signalled

    _only_one(given, "plan", "prompts")
    for option in ("endpoint", "ignore"):
        _only_one(given, "plan", option)
    _only_one(given, "concurrency", "rate")
    if not (given["plan"] or given["prompts"]):
        raise click.UsageError("one of --plan and --prompts is required")
    progress, out, raw = Progress(sys.stderr), given["out"], list[RawRun]()

    async def work() -> None:
        about = {"out": out, "timeout_s": given["timeout"], "progress": progress}
        plan, nodes = _plan(given), dict(given["nodes"])
        check_names("--node", nodes, plan.prices)
        await run(
            plan,
            **about,
            sense_check=given["questions"] == "sense",
            max_error_rate=given["max_error_rate"],
            after_warmup=_look_at_steps,
            nodes=nodes,
        )
        measured = journal.read(out)
        raw.append(measured if given["no_repeats"] else await ask_again(measured, **about))

    def show_so_far() -> None:
        from trnspec.benchmark.analyse.requests import cells_of

        show(summarised(out, cells_of(journal.read(out))), as_json=given["json"])

    try:
        signal = run_until_signalled(work())
    except ErrorRateExceeded:
        show_so_far()
        raise
    if signal is None:
        code = reported(out, raw.pop(), as_json=given["json"])
        return 0 if given["exit_zero"] else code
    if journal.exists(out):
        show_so_far()
    who = click.get_current_context().command_path.removeprefix("python -m ")
    print(f"{who}: stopped by {signal.name}; repeat the command to continue", file=sys.stderr)
    return 128 + signal


def _only_one(given: Mapping[str, Any], *names: str) -> None:
    switches = {option.name: option.opts[0] for option in click.get_current_context().command.params}
    if len(typed := [switches[name] for name in names if given[name] not in (None, ())]) > 1:
        raise click.UsageError(f"{typed[1]}: not allowed with {typed[0]}")


def _look_at_steps(loader: LoadGenerator) -> None:
    """Print whether the sources of the tokens per step of each drafting arm agree, from the warm-up."""
    if not any(arm.speculative_tokens for arm in loader.plan.arms):
        return
    from trnspec.benchmark.analyse.acceptance import first_look, tokens_per_step
    from trnspec.benchmark.analyse.values import pooled

    arms, states = loader.plan.arms, loader.arm_states
    timed = (pooled(states[one.name].warmup, 1) for one in arms if one.max_tokens_per_step == 1)
    plain_s = next((own.tpot_s for own in timed if own), None)
    for one in arms:
        state = states[one.name]
        if one.speculative_tokens and any(record.error is None for record in state.warmup):
            known = tokens_per_step(one, state.warmup, state.warmup_block, plain_s)
            (loader.progress.warn if known.why_chunks_are_not_steps else loader.progress.tell)(
                first_look(one, known)
            )


def _plan(given: Mapping[str, Any]) -> Plan:
    """The plan of a file, or one from prompts, with the changes of the options."""
    from trnspec.benchmark.plan import Plan, from_dict, load

    asked = load(given["plan"]) if given["plan"] else from_dict(_plan_of_prompts(given))
    names = {"classes", *Plan.model_fields} & given.keys() - {"experiment", "prompts"}
    settings = {name: None if given[name] is False else given[name] for name in names}
    return overridden(asked, {"url": dict(given["url"])} | of_arms(given), **settings)


def _plan_of_prompts(given: Mapping[str, Any]) -> dict[str, Any]:
    prompts = _prompts(given)
    own = [n for prompt in prompts if type(n := prompt.get("max_tokens")) is int]
    max_tokens: int = given["max_tokens"] or (max(own) if len(own) == len(prompts) else 0)
    missing = {"--arm": given["url"], "--model": given["model"], "--max-tokens": max_tokens}
    if absent := [name for name, value in missing.items() if not value]:
        raise PlanError(f"--prompts: needs {', '.join(absent)} as well, which a plan would say")
    baseline = given["baseline"] or given["url"][0][0]
    drafted = {baseline: 0} | dict(given["speculative_tokens"])  # by default the baseline decodes plainly
    arms = [
        # Without a declaration a step may yield any number of tokens, so chunks never count as tokens.
        {
            "name": name,
            "url": url,
            "max_tokens_per_step": drafted[name] + 1 if name in drafted else max_tokens,
        }
        | {"speculative_tokens": drafted.get(name, 0)}
        for name, url in given["url"]
    ]
    return {
        **{"schema": 1, "experiment": given["experiment"] or "unnamed", "model": given["model"]},
        **{"baseline": baseline, "arms": arms, "max_tokens": max_tokens, "prompts": prompts},
        **{"concurrency": [4], "requests": 32, "warmup": 4, "seed": 1},
    }


def _prompts(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The prompts of the file, in the form of a plan: as in an experiment. Raises PlanError."""
    from trnspec.benchmark.plan import PlannedPrompt
    from trnspec.benchmark.prompt_files import planned, read_file

    path, endpoint = given["prompts"], given["endpoint"] or "chat"
    file, run = read_file(path, name=path.name, ignored=given["ignore"]), given["extra_body"]
    of_run = {"temperature": 0} | (run if isinstance(run, dict) else {})
    prompts, problems = planned(file, endpoint=endpoint, run=of_run, form=PlannedPrompt)
    if problems:
        places = (replace(one, where=str(one.value), value=None) for one in problems)
        raise PlanError("; ".join(one.line() for one in places))
    asked = "as chat" if endpoint == "chat" else "as raw text"
    print(f"{path.name}: {count(len(prompts), 'prompt')}, {file.format}, asked {asked}", file=sys.stderr)
    return [prompt.to_dict() for prompt in prompts]
