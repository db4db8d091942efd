"""`run`: measure the arms of a plan, or of the command line, on the same prompts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trnspec.benchmark import NODES_VARIABLE
from trnspec.benchmark.commands import cli
from trnspec.benchmark.errors import ErrorRateExceeded, PlanError
from trnspec.core.words import count

if TYPE_CHECKING:
    from trnspec.benchmark.measure.loader import Loader
    from trnspec.benchmark.plan import Plan


@cli.verb(
    "run",
    plan=Path,
    prompts=Path,
    endpoint={"type": click.Choice(("chat", "completions"))},
    out={"read": Path, "required": True},
    timeout={"read": cli.seconds, "default": 300.0},
    max_error_rate={"read": cli.share, "default": 1.0},
    questions={"type": click.Choice(("none", "sense")), "default": "sense"},
    nodes={"envvar": NODES_VARIABLE},
    also_changes=lambda text: [text],
    concurrency=cli.listed,
    rate=cli.listed,
    classes=cli.listed,
    extra_body=cli.json_object,
    slo=cli.pairs,
    epilog="Every arm gets the API key in BENCHMARK_API_KEY, or in OPENAI_API_KEY where that is not set. Where greedy answers of "
    "two arms differ, the baseline is asked again after the load (docs/losslessness.md).",
)
def command(**given: Any) -> int:
    """Measure arms on the same prompts, then print what to do."""
    from trnspec.benchmark.commands.recorded_commands import reported, show, summarised
    from trnspec.benchmark.measure import journal
    from trnspec.benchmark.measure.journal import RawRun
    from trnspec.benchmark.measure.progress import Progress
    from trnspec.benchmark.measure.questions import ask_again
    from trnspec.benchmark.measure.rounds import run, run_until_signalled

    _only_one(given, "plan", "prompts")
    _only_one(given, "plan", "endpoint")
    _only_one(given, "concurrency", "rate")
    if not (given["plan"] or given["prompts"]):
        raise click.UsageError("one of --plan and --prompts is required")
    progress, out, raw = Progress(sys.stderr), given["out"], list[RawRun]()

    async def work() -> None:
        about = {"out": out, "timeout_s": given["timeout"], "progress": progress}
        plan, nodes = _plan(given), dict(given["nodes"])
        cli.check_names("--node", nodes, plan.prices)
        await run(
            plan,
            **about,
            sense_check=given["questions"] == "sense" and not given["no_sense_check"],
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
    if len(typed := [switches[name] for name in names if given[name] is not None]) > 1:
        raise click.UsageError(f"{typed[1]}: not allowed with {typed[0]}")


def _look_at_steps(loader: Loader) -> None:
    """Print whether the sources of the tokens per step of each drafting arm agree, from the warm-up."""
    if not any(arm.speculative_tokens for arm in loader.plan.arms):
        return
    from trnspec.benchmark.analyse.acceptance.yields import first_look, step_yield
    from trnspec.benchmark.analyse.values import pooled

    arms, states = loader.plan.arms, loader.arm_states
    timed = (pooled(states[one.name].warmup, 1) for one in arms if one.max_tokens_per_step == 1)
    plain_s = next((own.tpot_s for own in timed if own), None)
    for one in arms:
        state = states[one.name]
        if one.speculative_tokens and any(record.error is None for record in state.warmup):
            known = step_yield(one, state.warmup, state.warmup_block, plain_s)
            (loader.progress.warn if known.caution else loader.progress.tell)(first_look(one, known))


def _plan(given: Mapping[str, Any]) -> Plan:
    """The plan of a file, or one from prompts, with the changes of the options."""
    from trnspec.benchmark.plan import Plan, from_dict, load

    asked = load(given["plan"]) if given["plan"] else from_dict(_plan_of_prompts(given))
    names = {"classes", *Plan.model_fields} & given.keys() - {"experiment", "prompts"}
    settings = {name: None if given[name] is False else given[name] for name in names}
    return cli.overridden(asked, {"url": dict(given["url"])} | cli.of_arms(given), **settings)


def _plan_of_prompts(given: Mapping[str, Any]) -> dict[str, Any]:
    prompts = _prompts(given["prompts"], given["endpoint"] or "chat")
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


def _prompts(path: Path, endpoint: str) -> list[dict[str, Any]]:
    """The prompts of the file at `path`, in the form of a plan, for this endpoint: as in an experiment. Raises PlanError."""
    from trnspec.benchmark.prompt_files import read_file

    file = read_file(path, name=path.name)
    if file.problems:
        places = (replace(one, where=str(one.value), value=None) for one in file.problems)
        raise PlanError("; ".join(one.line() for one in places))
    asked = "as chat" if endpoint == "chat" else "as raw text"
    print(f"{path.name}: {count(len(file.lines), 'prompt')}, {file.format}, asked {asked}", file=sys.stderr)
    return [_asked(line, endpoint) for _, line in file.lines]


def _asked(line: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    # The length of a prompt matters for compilation, not for the request.
    prompt = {key: value for key, value in line.items() if key != "tokens"}
    if endpoint == "chat" and "prompt" in prompt:
        prompt["messages"] = [{"role": "user", "content": prompt.pop("prompt")}]
    elif endpoint == "completions" and "prompt" not in prompt:
        why = "has messages, which raw text cannot express"
        raise PlanError(
            f"--endpoint completions: prompt {prompt.get('id')} {why}; leave the option out, or give prompts of text"
        )
    return prompt
