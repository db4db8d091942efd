"""The steps of a run on the real engine, in the order in which a value takes them on AWS."""

from __future__ import annotations

import json
import subprocess
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmark.errors import PlanError
from benchmark.plan import Plan, from_dict
from core.findings import Refusal
from core.words import count
from experiment import Experiment, Finding, InvalidExperiment, load
from lab.arguments import shown
from lab.models import shipped
from lab.programs import LOG, benchmark, ended, load_arms, replay_cut, requests_of
from lab.real import installation
from lab.real.claims import Scope, Sweep, judge
from lab.real.installation import install
from lab.real.lab_results import Results, described, label_of, labelled, own_models, save
from lab.real.probe import Agreement, agreement, bodies
from lab.real.servers import Engine, mounted_folders, running
from lab.rendered import containers, mounted_plan, rendered, write_plan
from lab.stages import Stages

SHORT_REQUESTS = 8


class Wishes(Namespace):
    """What the command line asks for."""

    experiment: Path
    out: Path
    home: Path
    python: str | None
    engine: list[str] | None
    """The user's own vLLM in place of the lab's."""
    options: Sequence[str]
    """Further options of it; the last one given counts."""
    weights: Sequence[tuple[str, str]]
    """By name of a model, folders, or names on a hub, instead of the lab's."""
    arms: list[str] | None
    """Only these, and the baseline."""
    short: bool
    requests: int | None
    search: tuple[float, float] | None
    """The loads between which the benchmark searches, instead of the file's."""
    starts: int | None
    """Of the servers, the run's equal parts, instead of the file's."""
    at_once: int
    """Servers that start at a time."""
    install_only: bool
    json: bool
    verbose: bool


def execute(wishes: Wishes, *, stages: Stages) -> Results:
    """Check, install, serve, measure, judge; leaves files in `wishes.out`.

    Raises `Refusal`; `Outside` for what lies outside.
    """
    path, out = wishes.experiment, wishes.out
    with stages.stage(f"checking {shown(path)}, the models and this machine") as stage:
        experiment = load(path)
        _refuse_cluster(experiment, path)
        given, chosen = dict(wishes.weights), wishes.arms or []
        sweep = sweep_of(experiment, chosen, short=wishes.short)
        names = _arms(experiment, sweep, chosen, short=wishes.short)
        folders = mounted_folders(experiment, given)
        shipped.check()
        machine = installation.look(wishes.home)
        installation.refuse_run(machine, servers=len(names))
        stage.done = f"checked {shown(path)}, the models and this machine"
    command, version = engine_of(wishes, machine, stages)
    with stages.stage("rendering the manifests") as stage:
        files = rendered(path, experiment, out / "manifests")
        mounted, found = mounted_plan(files), containers(files)
        plan = mounted.model_copy(update={"arms": tuple(arm for arm in mounted.arms if arm.name in names)})
        less: Mapping[str, int | str | None]
        less = {"requests": wishes.requests or (SHORT_REQUESTS if wishes.short else None)}
        plan, less = replay_cut(with_starts(plan, wishes.starts), less)
        written, servers = write_plan(plan, out), [found[name] for name in names]
        stage.done = "rendered the manifests, and took commands and plan from them"
    options = list(wishes.options)
    if wishes.search:
        low, high = wishes.search
        options = ["--max-num-seqs", f"{high:g}", *options]
        less = {**less, "search": f"{low:g}:{high:g}"}
    engine = Engine(command=command, folders=folders, options=options)
    with ExitStack() as up:
        with stages.stage(f"starting {count(len(names), 'server')}", total=len(names)) as stage:
            standing = running(
                servers, engine.launch, logs=out / "logs", at_once=wishes.at_once, reach=stage.reach
            )
            fleet = up.enter_context(standing)
            stage.done = f"started {count(len(names), 'server')}: {', '.join(names)}"
        agreements = _agreements(experiment, plan, fleet.urls, stages)
        with stages.stage(
            f"sending requests to {count(len(names), 'arm')} in turn", total=requests_of(plan, less)
        ) as stage:
            sense_check = not own_models(experiment, given)
            load_arms(
                written,
                fleet.urls,
                out=out,
                less=less,
                start_again=fleet.start_again,
                sense_check=sense_check,
                reach=stage.reach,
            )
            stage.done = f"sent {count(ended(out), 'request')} to {count(len(names), 'arm')} in turn"
    with stages.stage("judging") as stage:
        about = described(machine, version, label_of(experiment, given))
        scope = "machinery" if plan.search or wishes.search else _scope(experiment, given, short=wishes.short)
        results = _judged(experiment, sweep, names, agreements, about, out=out, scope=scope)
        save(results, out)
        met = sum(claim.met for claim in results.claims)
        stage.done = f"judged: {met} of {len(results.claims)} claims are met"
    return results


def with_starts(plan: Plan, starts: int | None) -> Plan:
    """The plan with so many starts of the servers. Raises `Refusal` where it cannot have them."""
    try:
        return from_dict(plan.to_dict(exclude_unset=True) | {"starts": starts}) if starts else plan
    except PlanError as error:
        raise Refusal(f"--{error}") from None


def engine_of(wishes: Wishes, machine: installation.Machine, stages: Stages) -> tuple[list[str], str]:
    """Its command, installed where the user has no own, and what it says it is. Raises `Outside`."""
    with stages.stage("installing the engine", total=len(installation.STEPS)) as stage:
        if wishes.engine:
            command, version = wishes.engine, _version(wishes.engine)
        else:
            home, say = wishes.home, stages.say
            command = [str(install(home, machine=machine, python=wishes.python, say=say, reach=stage.reach))]
            version = f"vLLM {installation.DISTRIBUTION}"  # asking takes as long as a server's imports
        stage.done = f"found the engine, {version}"
    return command, version


def _refuse_cluster(experiment: Experiment, path: Path) -> None:
    """An engine for this machine serves no arm of a cluster. Raises `InvalidExperiment`, before anything is installed."""
    for arm in experiment.arms:
        if not arm.runtime.lab_only:
            problem = Finding(
                "runtime",
                arm.runtime.name,
                f"arm {arm.name} needs Neuron devices, and the lab has this machine's processors",
                "run experiments/lab-tiny.yaml here; `./trnspec demo` emulates this one",
            )
            raise InvalidExperiment(str(path), [problem], {})


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


def _arms(experiment: Experiment, sweep: Sweep, chosen: Sequence[str], *, short: bool) -> list[str]:
    """The names of the arms to start, in the order of the file, the baseline first; of each batch its own."""
    names = [arm.name for arm in experiment.arms]
    if unknown := [name for name in chosen if name not in names]:
        raise Refusal(
            f"--arms: {unknown[0]!r} is not an arm of {experiment.name}; its arms are {', '.join(names)}"
        )
    if short:
        return [sweep.baseline, sweep.main]
    wanted = [arm for arm in experiment.arms if not chosen or arm.name in chosen]
    kept = {one.name for arm in wanted for one in (arm, experiment.baseline_of(arm))}
    return [name for name in names if name in kept]


def _agreements(
    experiment: Experiment, plan: Plan, urls: Mapping[str, str], stages: Stages
) -> list[Agreement]:
    asked, found = list(bodies(plan)), []
    drafting = [arm for arm in experiment.arms if arm.speculation and arm.name in urls]
    with stages.stage("comparing counters with streams", total=len(drafting)) as stage:
        for arm in drafting:
            found.append(agreement(arm.name, urls[arm.name], asked, per_step=arm.tokens_per_step))
            stage.reach(len(found))
        stage.done = f"compared counters with streams on {count(len(found), 'arm')}"
    return found


def _judged(
    experiment: Experiment,
    sweep: Sweep,
    names: Sequence[str],
    agreements: Sequence[Agreement],
    machine: Mapping[str, Any],
    *,
    out: Path,
    scope: Scope,
) -> Results:
    summary = labelled(out, machine)
    advice = None
    if len(sweep.arms) > 1:
        words = ["advise", str(out), "--json", "--timed-with", sweep.narrowest]
        advice = json.loads(benchmark(words, log=out / LOG))
    speculating = [arm.name for arm in experiment.arms if arm.speculation and arm.name in names]
    return Results(
        summary=summary,
        advice=advice,
        sweep=sweep,
        others=tuple(name for name in speculating if name not in sweep.arms.values()),
        agreements=tuple(agreements),
        claims=tuple(judge(summary, sweep, agreements, advice, scope=scope)),
        machine=machine,
    )


def _scope(experiment: Experiment, given: Mapping[str, str], *, short: bool) -> Scope:
    """Only a whole run on the lab's own models is judged by every claim."""
    if not own_models(experiment, given):
        return "machinery"
    return "short" if short else "whole"


def _version(engine: Sequence[str]) -> str:
    """What the engine says it is."""
    done = subprocess.run([*engine, "--version"], capture_output=True, text=True, check=False)
    said = done.stdout.strip().splitlines()
    return f"vLLM {said[-1]}" if said else " ".join(engine)
