"""`./trnspec lab`: the whole experiment on a real engine, vLLM on this machine's CPU, with tiny models that ship."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from click.shell_completion import CompletionItem

from benchmark.errors import PlanError
from benchmark.plan import Plan, from_dict
from benchmark.show.report_templates import render
from core.command_line import carried_out
from core.console import print_json, warn
from core.findings import Finding, InvalidExperiment, Refusal
from core.screen import folded
from core.words import count
from experiment import Experiment, load
from lab.command import PATH, ROOT, Stages, experiment_argument, shown
from lab.programs import (
    LOG,
    Load,
    benchmark,
    containers,
    ended,
    load_arms,
    mounted_plan,
    rendered,
    requests_of,
    write_plan,
)
from lab.real import installation
from lab.real.claims import (
    TINY,
    Agreement,
    Results,
    Scope,
    Sweep,
    agreement,
    bodies,
    judge,
    labelled,
    save,
)
from lab.real.servers import LocalEngine, check_models, mounted_folders, running

SHORT_REQUESTS = 8


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def _names(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (text or "").split(",")))


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low = high = 0.0
    if not 0 < low < high < float("inf"):
        raise click.BadParameter(f"{text!r} is not LOW:HIGH with LOW below HIGH, as in 1:16")
    return low, high


def _weights(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := ["".join(pair) for pair in pairs if not all(pair)]:
        raise click.BadParameter(f"{wrong[0]!r} is not MODEL=WHERE")
    return {name: where for name, _, where in pairs}


def _arm_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For the completion of a shell; before the option has its value, click has not read the arguments yet."""
    try:
        names = [arm.name for arm in load(Path(next(iter(ctx.args), ctx.params["experiment"]))).arms]
    except Refusal:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _out() -> Path:
    return ROOT / "results" / datetime.now(UTC).strftime("lab-%Y%m%dT%H%M%SZ")


_NUMBER: Any = {"type": click.IntRange(1), "metavar": "N"}
_SEARCH = """Search between two loads for the largest at which drafting pays, for example 1:16; judges no claim about
models."""
_STARTS = "Cut the run into N parts and start the servers again between them (default: the file's)."
_WEIGHTS = "A folder or a model of a hub instead of one of the lab's, for example lab/target=Qwen/Qwen3-32B."


@click.command()
@experiment_argument(ROOT / "experiments" / "lab-tiny.yaml")
@click.option("--out", type=PATH, default=_out, metavar="DIR", help="Results (default: results/lab-<time>).")
@click.option(
    "--short", is_flag=True, help="Two arms, few requests; judges nothing that a busy machine decides."
)
@click.option(
    "--arms",
    callback=_names,
    metavar="A,B",
    help="Only these arms, and the baseline.",
    shell_complete=_arm_names,
)
@click.option("--requests", **_NUMBER, help="Per arm and class (default: the file's).")
@click.option("--search", type=_range, metavar="LOW:HIGH", help=_SEARCH)
@click.option("--starts", **_NUMBER, help=_STARTS)
@click.option("--at-once", default=2, **_NUMBER, help="Servers that start at a time (default 2).")
@click.option("--json", "as_json", is_flag=True, help="The answer for a machine.")
@click.option("--verbose", is_flag=True, help="Also the claims that are met.")
@click.option(
    "--home", type=PATH, default=ROOT / ".lab", metavar="DIR", help="The engine's folder (default: .lab)."
)
@click.option("--python", metavar="PATH", help="The Python 3.11 that the engine is installed with.")
@click.option("--install-only", is_flag=True, help="Install the engine, print its command.")
@click.option(
    "--engine-command", type=_words, default="", metavar="CMD", help="Your own vLLM, for example 'vllm'."
)
@click.option(
    "--engine-options",
    type=_words,
    default="",
    metavar="OPTIONS",
    help="Added to its command; the last counts.",
)
@click.option("--weights", callback=_weights, multiple=True, metavar="MODEL=WHERE", help=_WEIGHTS)
def command(**options: Any) -> int:
    """The whole experiment on a real engine: vLLM on this machine's CPU, with tiny models that ship.

    Exit code 0 when every claim is met, 1 when one is not or a step failed, 2 for a wrong experiment or usage, 3 when
    this machine or the package index cannot do it.
    """
    wishes, stages = SimpleNamespace(**options), Stages()
    try:
        if wishes.install_only:
            engine, _ = _engine_of(wishes, installation.look(wishes.home), stages)
            print(shlex.join(engine))
            return 0
        wishes.out.mkdir(parents=True, exist_ok=True)
        results = execute(wishes, stages=stages)
    except KeyboardInterrupt:
        warn("interrupted, servers are stopped")
        return 130
    if wishes.as_json:
        print_json(as_data(results, wishes.out) | {"stages": stages.finished})
    else:
        print("\n".join(as_lines(results, wishes.out, every_claim=wishes.verbose)))
    return 0 if all(claim.met for claim in results.claims) else 1


def as_lines(results: Results, folder: Path, *, every_claim: bool) -> Iterator[str]:
    """Yield the answer as lines, with the claims that are not met, or with all."""
    yield from ("", render(results.summary), "")
    engine, label = results.machine["engine"], results.label.removeprefix("measured ")
    facts = [f"Measured   {label}, {engine}; not how fast Trainium2 is (docs/lab.md)"]
    met = sum(claim.met for claim in results.claims)
    facts.append(f"Claims     {met} of {len(results.claims)} are met")
    for claim in results.claims:
        if every_claim or not claim.met:
            facts.append(f"           {'met' if claim.met else 'NOT MET'}: {claim.text}; {claim.found}")
    yield from folded(facts)
    yield f"Report     {shown(folder / 'report.html')}"
    yield f"Next       {_next(results, folder)}"


def as_data(results: Results, folder: Path) -> dict[str, Any]:
    return {
        "schema": 1,
        "label": results.label,
        "decision": results.summary["decision"],
        "machine": dict(results.machine),
        "claims": [asdict(claim) for claim in results.claims],
        "results": shown(folder),
        "report": shown(folder / "report.html"),
        "next": _next(results, folder),
    }


def _next(results: Results, folder: Path) -> str:
    """Return the next command: the acceptance of a real pair is useful for Trainium2."""
    if results.label == TINY:
        timed = f" --timed-with {results.sweep.narrowest}" if len(results.sweep.arms) > 1 else ""
        return f"./trnspec benchmark advise {shown(folder)}{timed}"
    return f"./trnspec forecast --run {shown(folder)}"


def execute(wishes: SimpleNamespace, *, stages: Stages) -> Results:
    """Check, install, serve, measure, judge, in the order in which a value takes these steps on AWS; leaves files in `out`.
    `wishes` are the options of the command.

    Raises `Refusal`; `Outside` for what lies outside.
    """
    path, out = wishes.experiment, wishes.out
    with stages.stage(f"checking {shown(path)}, the models and this machine") as stage:
        experiment = load(path)
        _refuse_cluster(experiment, path)
        sweep = sweep_of(experiment, wishes.arms, short=wishes.short)
        names = _arms(experiment, sweep, wishes)
        folders = mounted_folders(experiment, wishes.weights)
        own_models = not wishes.weights and all(one.model.lab_only for one in experiment.weights)
        check_models()
        machine = installation.look(wishes.home)
        installation.refuse_run(machine, servers=len(names))
        stage.done = f"checked {shown(path)}, the models and this machine"
    engine, version = _engine_of(wishes, machine, stages)
    with stages.stage("rendering the manifests") as stage:
        files = rendered(path, experiment, out / "manifests")
        mounted, found = mounted_plan(files), containers(files)
        plan = mounted.model_copy(update={"arms": tuple(arm for arm in mounted.arms if arm.name in names)})
        less: Load = {"requests": wishes.requests or (SHORT_REQUESTS if wishes.short else None)}
        plan = with_starts(plan, wishes.starts)
        written, options = write_plan(plan, out), wishes.engine_options
        stage.done = "rendered the manifests, and took commands and plan from them"
    if wishes.search:
        low, high = wishes.search
        options = ("--max-num-seqs", f"{high:g}", *options)
        less = {**less, "search": f"{low:g}:{high:g}"}
    launch = LocalEngine(command=engine, folders=folders, options=options).launch
    drafting = [arm for arm in experiment.arms if arm.speculation and arm.name in names]
    with ExitStack() as fleets:
        with stages.stage(f"starting {count(len(names), 'server')}", total=len(names)) as stage:
            servers, logs = [found[name] for name in names], out / "logs"
            up = running(servers, launch, logs=logs, at_once=wishes.at_once, reach=stage.reach)
            fleet = fleets.enter_context(up)
            stage.done = f"started {count(len(names), 'server')}: {', '.join(names)}"
        asked, agreements = list(bodies(plan)), list[Agreement]()
        with stages.stage("comparing counters with streams", total=len(drafting)) as stage:
            for arm in drafting:
                url, per_step = fleet.urls[arm.name], arm.tokens_per_step
                agreements.append(agreement(arm.name, url, asked, per_step=per_step))
                stage.reach(len(agreements))
            stage.done = f"compared counters with streams on {count(len(drafting), 'arm')}"
        arms = f"{count(len(names), 'arm')} in turn"
        with stages.stage(f"sending requests to {arms}", total=requests_of(plan, less)) as stage:
            load_arms(
                written,
                fleet.urls,
                out=out,
                less=less,
                start_again=fleet.start_again,
                sense_check=not own_models,
                reach=stage.reach,
            )
            stage.done = f"sent {count(ended(out), 'request')} to {arms}"
    with stages.stage("judging") as stage:
        weights = [wishes.weights.get(one.model.name, one.model.name) for one in experiment.weights]
        label = TINY if own_models else f"measured on this machine, {' and '.join(weights)}"
        # Only a whole run on the lab's own models is judged by every claim.
        scope: Scope = "short" if wishes.short else "whole"
        if plan.search or wishes.search or not own_models:
            scope = "machinery"
        about = {
            "label": label,
            "cpu": installation.proc("cpuinfo", "model name") or platform.processor() or "unknown",
            "cores": machine.cores,
            "engine": version,
            "python": platform.python_version(),
        }
        summary, advice = labelled(out, about), None
        if len(sweep.arms) > 1:
            words = ["advise", str(out), "--json", "--timed-with", sweep.narrowest]
            advice = json.loads(benchmark(words, log=out / LOG))
        results = Results(
            summary=summary,
            advice=advice,
            sweep=sweep,
            others=tuple(arm.name for arm in drafting if arm.name not in sweep.arms.values()),
            agreements=tuple(agreements),
            claims=tuple(judge(summary, sweep, agreements, advice, scope=scope)),
            machine=about,
        )
        save(results, out)
        met = sum(claim.met for claim in results.claims)
        stage.done = f"judged: {met} of {len(results.claims)} claims are met"
    return results


def with_starts(plan: Plan, starts: int | None) -> Plan:
    """Return the plan with this number of server starts. Raises `Refusal` if the plan cannot have them."""
    try:
        return from_dict(plan.to_dict(exclude_unset=True) | {"starts": starts}) if starts else plan
    except PlanError as error:
        raise Refusal(f"--{error}") from None


def _engine_of(wishes: SimpleNamespace, machine: installation.Host, stages: Stages) -> tuple[list[str], str]:
    """Its command, installed where the user has no own, and what it says it is. Raises `Outside`."""
    with stages.stage("installing the engine", total=len(installation.STEPS)) as stage:
        if own := [*wishes.engine_command]:
            done = subprocess.run([*own, "--version"], capture_output=True, text=True, check=False)
            said = done.stdout.strip().splitlines()
            engine, version = own, f"vLLM {said[-1]}" if said else " ".join(own)
        else:
            home, python = wishes.home, wishes.python
            installed = installation.install(
                home, machine=machine, python=python, say=stages.say, reach=stage.reach
            )
            # Asking for the version takes as long as a server's imports.
            engine, version = [str(installed)], f"vLLM {installation.DISTRIBUTION}"
        stage.done = f"found the engine, {version}"
    return engine, version


def _refuse_cluster(experiment: Experiment, path: Path) -> None:
    """An engine for this machine serves no arm of a cluster. Raises `InvalidExperiment`, before anything is installed."""
    for arm in experiment.arms:
        if not arm.runtime.lab_only:
            why = f"arm {arm.name} needs Neuron devices, and the lab has this machine's processors"
            remedy = "run experiments/lab-tiny.yaml here; `./trnspec demo` emulates this one"
            raise InvalidExperiment(str(path), [Finding("runtime", arm.runtime.name, why, remedy)], {})


def sweep_of(experiment: Experiment, chosen: Sequence[str] = (), *, short: bool = False) -> Sweep:
    """The arms with the draft and the batch of the first speculating arm, by window. Raises Refusal without any."""
    known = [arm for arm in experiment.arms if arm.speculation and (not chosen or arm.name in chosen)]
    if not known or known[0].speculation is None:
        raise Refusal(f"experiment {experiment.name}: no chosen arm speculates; name one with --arms")
    draft = known[0].speculation.draft
    arms = {
        arm.speculation.num_speculative_tokens: arm.name
        for arm in known
        if arm.speculation and (arm.speculation.draft, arm.serving) == (draft, known[0].serving)
    }
    sweep = Sweep(baseline=experiment.baseline_of(known[0]).name, arms=arms)
    if not short:
        return sweep
    main = next(k for k, name in arms.items() if name == sweep.main)
    return Sweep(baseline=sweep.baseline, arms={main: sweep.main})


def _arms(experiment: Experiment, sweep: Sweep, wishes: SimpleNamespace) -> list[str]:
    """The names of the arms to start, in the order of the file, the baseline first; of each batch its own."""
    names = [arm.name for arm in experiment.arms]
    if unknown := [name for name in wishes.arms if name not in names]:
        raise Refusal(
            f"--arms: {unknown[0]!r} is not an arm of {experiment.name}; its arms are {', '.join(names)}"
        )
    if wishes.short:
        return [sweep.baseline, sweep.main]
    wanted = [arm for arm in experiment.arms if not wishes.arms or arm.name in wishes.arms]
    kept = {one.name for arm in wanted for one in (arm, experiment.baseline_of(arm))}
    return [name for name in names if name in kept]


def main(arguments: list[str] | None = None) -> int:
    return carried_out(command, arguments, prog="python -m lab.real")


if __name__ == "__main__":
    sys.exit(main())
