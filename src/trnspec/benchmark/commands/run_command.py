"""`run`: measure the arms of a plan, or of the command line, on the same prompts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trnspec.benchmark import NODES_VARIABLE
from trnspec.benchmark.commands.arm_options import (
    MIX,
    NAMED,
    NUMBERS,
    PATH,
    SHARE,
    about_arms,
    check_names,
    in_json,
    json_option,
    of_arm,
    of_arms,
    overridden,
    pair,
    pairs,
    read_by,
    shares,
)
from trnspec.benchmark.errors import ErrorRateExceeded, PlanError
from trnspec.core.words import count

FORMATS = "JSON lines, CSV, Spec-Bench, SPEED-Bench, MT-Bench, ShareGPT, OpenAI batch or fine-tuning, or .gz"

if TYPE_CHECKING:
    from trnspec.benchmark.measure.loader import LoadGenerator
    from trnspec.benchmark.plan import Plan


@click.command(
    epilog="The plan has more settings (docs/measure.md): seed, warmup, baseline, mixed, cell_minutes, "
    "ignore_eos, dummy_weights, timeout_s. An option replaces the plan's value. Without --api-key-env all arms get the key "
    "in BENCHMARK_API_KEY, or in OPENAI_API_KEY; with it, each arm gets the key that is named for it."
)
@click.option(
    *("--arm", "url"),
    type=NAMED,
    multiple=True,
    metavar="NAME=URL",
    help="A server to measure: its URL up to /v1. The first is the baseline.",
)
@click.option("--model", metavar="M", help="The model's name on the servers.")
@click.option("--prompts", type=PATH, metavar="FILE", help=f"Your prompts: {FORMATS}.")
@click.option(
    "--out", type=PATH, metavar="DIR", required=True, help="The folder of the run. A run there is continued."
)
@click.option(
    "--endpoint",
    type=click.Choice(("chat", "completions")),
    help="Send --prompts as chat (default), or as raw text to a base model.",
)
@click.option("--max-tokens", type=int, metavar="N", help="The maximum tokens of an answer.")
@click.option(
    "--concurrency",
    type=NUMBERS,
    metavar="N,N",
    help="Concurrent requests, one load for each number (default 4).",
)
@click.option(
    "--rate", type=NUMBERS, metavar="X,X", help="Instead: requests per second, one load for each number."
)
@click.option(
    "--requests", type=int, metavar="N", help="Requests to measure for each class at each load (default 32)."
)
@about_arms
@click.option(
    "--slo", type=read_by(pairs), metavar="M=S,..", help="Limits in seconds for ttft_s, tpot_s or e2e_s."
)
@click.option("--mix", type=read_by(shares), metavar="CLASS=SHARE,..", help=MIX)
@click.option(
    "--extra-body", type=read_by(in_json), metavar="JSON", help="More fields to send with each request."
)
@click.option(
    "--ignore", multiple=True, metavar="KEY", help="A key of --prompts that is not sent, such as temperature."
)
@click.option(
    "--max-error-rate",
    type=SHARE,
    default=1.0,
    metavar="X",
    help="Stop with exit 1 if a larger share of an arm's requests fails.",
)
@click.option(
    "--questions",
    default="sense",
    metavar="none|sense|FILE",
    help='Questions to each arm before the load: sense (default, twelve), none, or yours: JSON lines of {"question", "answer"}.',
)
@of_arm("--api-key-env", "VAR", str, "The environment variable with the API key of an arm.")
@click.option(
    "--plan",
    type=PATH,
    metavar="FILE",
    help="A plan as JSON. Options add to it, or replace its values.",
)
@json_option("Print JSON, errors included.")
@click.option("--warmup", type=int, hidden=True)
@click.option("--exit-zero", is_flag=True, hidden=True)  # a pod that fails would measure again
@click.option("--no-repeats", is_flag=True, hidden=True)  # a pod stores what it measured before it asks again
def command(**given: Any) -> int:
    """Send the same prompts to each arm, then say which to use.

    It needs --arm, --model, --max-tokens and --prompts, or a --plan that has them.
    """
    from trnspec.benchmark.commands.report_command import reported, show, summarised
    from trnspec.benchmark.measure import journal
    from trnspec.benchmark.measure.progress import Progress
    from trnspec.benchmark.measure.questions import ask_again
    from trnspec.benchmark.measure.raw_run import RawRun
    from trnspec.benchmark.measure.run import run, run_until_signalled
    from trnspec.benchmark.measure.sanity_check import questions_of

    _check_words(given)
    progress, out, raw = Progress(sys.stderr), given["out"], list[RawRun]()
    about = {"out": out, "progress": progress}

    async def work() -> None:
        plan, questions = _plan(given), questions_of(given["questions"])
        nodes = dict(pair(one) for one in os.environ.get(NODES_VARIABLE, "").split())
        check_names(NODES_VARIABLE, nodes, plan.prices)
        await run(
            plan,
            **about,
            questions=questions,
            max_error_rate=given["max_error_rate"],
            after_warmup=_look_at_steps,
            nodes=nodes,
        )
        measured = journal.read(out)
        raw.append(measured if given["no_repeats"] else await ask_again(measured, **about))

    def show_so_far() -> None:
        from trnspec.benchmark.analyse.cells import cells_of

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


def _check_words(given: Mapping[str, Any]) -> None:
    """Raises UsageError for options that exclude or need each other."""
    if given["concurrency"] is not None and given["rate"] is not None:
        raise click.UsageError("--rate: not allowed with --concurrency")
    if not (given["plan"] or given["prompts"]):
        raise click.UsageError("give --prompts FILE, or a --plan FILE that has prompts")
    if given["prompts"] is None and (alone := [name for name in ("endpoint", "ignore") if given[name]]):
        raise click.UsageError(f"--{alone[0]}: says how --prompts are read; give --prompts FILE as well")


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
    """The plan of the options: on top of the file of a plan, where there is one."""
    from trnspec.benchmark.plan import Plan, from_dict, load

    complete = partial(_completed, given=given)
    asked = load(given["plan"], complete) if given["plan"] else from_dict(complete({}))
    settings = {name: given[name] for name in Plan.model_fields.keys() & given.keys() - {"prompts"}}
    return overridden(
        asked, {name: dict(given[name]) for name in ("url", "api_key_env")} | of_arms(given), **settings
    )


def _completed(content: dict[str, Any], *, given: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a plan, with what the options say of what it leaves out. --prompts replace its prompts. Raises PlanError."""
    told = {"model": given["model"], "max_tokens": given["max_tokens"], **content}
    if given["prompts"]:
        told["prompts"] = _prompts(given)
        own = [n for prompt in told["prompts"] if type(n := prompt.get("max_tokens")) is int]
        if len(own) == len(told["prompts"]):
            told["max_tokens"] = told["max_tokens"] or max(own)
    told.setdefault("arms", _arms(given, told))
    needed = {"--arm": "arms", "--model": "model", "--max-tokens": "max_tokens", "--prompts": "prompts"}
    if absent := [option for option, key in needed.items() if not told.get(key)]:
        how = "it as an option" if len(absent) == 1 else "them as options"
        raise PlanError(f"{', '.join(absent)}: missing; give {how}, or in the plan")
    urls = dict(given["url"])
    for arm in told["arms"] if isinstance(told["arms"], list) else ():
        if isinstance(arm, dict) and arm.get("name") in urls:
            arm["url"] = urls[arm["name"]]
            told.setdefault("baseline", arm["name"])
    return told


def _arms(given: Mapping[str, Any], told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arms of the options. By default the baseline, which is the first arm, decodes plainly."""
    names = [name for name, _ in given["url"]]
    drafted = {told.get("baseline", name): 0 for name in names[:1]} | dict(given["speculative_tokens"])
    # Without a declaration a step may yield any number of tokens, so chunks never count as tokens.
    return [
        {"name": name, "url": url, "speculative_tokens": drafted.get(name, 0)}
        | {"max_tokens_per_step": drafted[name] + 1 if name in drafted else told["max_tokens"]}
        for name, url in given["url"]
    ]


def _prompts(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The prompts of the file, in the form of a plan: as in an experiment. Raises PlanError."""
    from trnspec.benchmark.prompt_files import planned, read_file

    path, endpoint = given["prompts"], given["endpoint"] or "chat"
    file, run = read_file(path, name=path.name, ignored=given["ignore"]), given["extra_body"]
    of_run = {"temperature": 0} | (run if isinstance(run, dict) else {})
    prompts, problems = planned(file, endpoint=endpoint, run=of_run)
    if problems:
        places = (replace(one, where=str(one.value), value=None) for one in problems)
        raise PlanError("; ".join(one.line() for one in places))
    asked = "as chat" if endpoint == "chat" else "as raw text"
    print(f"{path.name}: {count(len(prompts), 'prompt')}, {file.format}, asked {asked}", file=sys.stderr)
    return [prompt.to_dict() for prompt in prompts]
