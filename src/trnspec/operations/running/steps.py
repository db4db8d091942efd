"""The steps of a run in their order. Wherever a run stops, it releases its nodes or says what is billed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from trnspec.core.command_line import refusal_of
from trnspec.core.words import count
from trnspec.experiment import Arm, Experiment
from trnspec.experiment.compilation import native_arms
from trnspec.experiment.cost import node_price, per_hour, running
from trnspec.experiment.placement import first_rounds
from trnspec.operations.cloud import experiment_resources, nodegroup
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.running import arm_servers, benchmark, preparing, results, trn2_nodes
from trnspec.operations.running.active_run import ActiveRun, NoCapacityError, UnprovenError
from trnspec.operations.running.run_plan import LAST
from trnspec.operations.running.state import NotOursError


@dataclass(frozen=True)
class Step:
    """One step. It can be repeated after it was interrupted at any point."""

    name: str
    title: str
    act: Callable[[ActiveRun], None]
    needs: tuple[str, ...] = ()
    """Steps that a resumed run repeats before this one: nodes and replicas may be gone."""


LAST_STEP = "compile"
"""Last step of `--until compile`."""
_GRACE_MIN = 15.0
"""Minutes for which nodes stay after a failed check, so that a person can look at them."""


def steps(experiment: Experiment) -> tuple[Step, ...]:
    """Return all steps of a run."""
    nodes = ("nodes",)
    found = [
        Step("weights", "fetch weights (no Trn2 node runs)", preparing.fetch_weights),
        Step("arguments", "check the server arguments in the images", preparing.check_arguments),
        Step("nodes", "start Trn2 nodes", preparing.start_nodes),
        Step("verify", "check the nodes", preparing.verify_nodes, nodes),
    ]
    if len(native := native_arms(experiment)) > 1:
        title = f"compile and start {native[0].name} first, before other native arms are compiled"
        found.append(Step("first", title, arm_servers.try_first, nodes))
    found.append(Step("compile", "compile the arms", preparing.compile_arms, nodes))
    rounds = zip(experiment.rounds, first_rounds(experiment), strict=True)
    for number, (arms, new) in enumerate(rounds, start=1):
        raise_ = partial(arm_servers.raise_arms, arms=arms)
        load = partial(benchmark.measure, number=number, arms=arms)
        raised = (*nodes, f"arms-{number}")
        found.append(Step(f"arms-{number}", f"start {_names(arms)}", raise_, nodes))
        found.append(Step(f"benchmark-{number}", f"measure {_names(arms)}", load, raised))
        if experiment.benchmark.lm_eval:
            ask = partial(benchmark.check_quality, number=number, arms=new)
            title = f"ask {_names(new)} gsm8k"
            found.append(Step(f"quality-{number}", title, ask, raised))
    found.append(Step("off", "set the Trn2 nodes to 0", stop_paying))
    return (*found, Step("report", "fetch results and report", results.fetch_results))


def _names(arms: tuple[Arm, ...]) -> str:
    return ", ".join(arm.name for arm in arms)


def steps_until_compile(experiment: Experiment) -> list[Step]:
    """Return the steps of `--until compile`."""
    found = steps(experiment)
    names = [step.name for step in found]
    return [step for step in found[: names.index(LAST_STEP) + 1] if step.name != "first"]


def all_compiled(experiment: Experiment, aws: Aws, say: Callable[[str], None]) -> bool:
    """Return whether every arm has its artifact, so that no node has to start. Artifacts that were tagged as stale are kept."""
    if experiment_resources.missing_artifacts(experiment, aws):
        return False
    for key in experiment_resources.free(experiment, aws):
        say(f"    artifact {key}: is used again by an arm: kept")
    return True


def remaining(all_steps: tuple[Step, ...], done: tuple[str, ...]) -> list[Step]:
    """Return the steps that are not done, and the steps that the first of them needs."""
    left = [step for step in all_steps if step.name not in done]
    needed = left[0].needs if left else ()
    return [step for step in all_steps if step.name not in done or step.name in needed]


def stop_paying(run: ActiveRun) -> None:
    """Set arms and nodes to 0, and remove the schedule that would do the same. Every run ends with this, also a failed one."""
    _if_possible(run, lambda: arm_servers.set_replicas(run))
    name = trn2_nodes.set_nodes_to_zero(run)
    trn2_nodes.record_nodes(run, 0)
    nodegroup.forget_schedule(run.experiment, run.aws)
    _if_possible(run, lambda: nodegroup.publish_run_inactive(run.experiment, run.aws))
    run.say(f"    {name}: 0 nodes; nothing of this run is billed by the hour")


def _if_possible(run: ActiveRun, act: Callable[[], None]) -> bool:
    """Return whether it worked; an error is printed."""
    try:
        act()
    except Exception as error:
        run.say(f"    {refusal_of(error)}")
        return False
    return True


def run_to_end(run: ActiveRun, *, keep_nodes: bool) -> dict[str, Any]:
    """Take all steps that are left; returns the address of the state, the cost, and the nodes that were replaced.

    If a step fails, the nodes are set to 0 (unless `keep_nodes`; after a failed check 15 minutes later) and the error is raised.
    An interruption releases only the lock, and what is billed is printed.
    """
    try:
        address = with_nodes_off_on_failure(run, lambda: _all_steps(run), keep_nodes=keep_nodes)
    except KeyboardInterrupt:
        run.aws.shorten_timeouts()  # somebody waits at the terminal
        _release_lease(run, problem="interrupted")
        run.say(f"run {run.state.id}: interrupted at {run.state.step}; {what_is_billed(run)}")
        raise
    state, kind = run.state, run.experiment.cluster.capacity.kind
    usd = state.node_hours / run.experiment.nodes * per_hour(running(run.experiment))
    return {
        "id": state.id,
        "state": address,
        "results": [state.results[key] for key in sorted(state.results)],
        "node_hours": round(state.node_hours, 3),
        "usd": round(usd, 2),
        "cost": f"{state.node_hours:.2f} hours of a {kind} that is paid already"
        if kind in ("capacity-block", "reservation")
        else f"${usd:.2f} at quoted prices",
        "node_changes": [change.model_dump(mode="json") for change in state.node_changes],
    }


def run_until_compile(run: ActiveRun, *, fresh: bool) -> None:
    """Fetch the weights, start and check the nodes, compile, and release the nodes.

    `fresh`: the run was begun for this, so it ends with it. Otherwise it stays unfinished, as it was before.
    Raises `Refusal`.
    """

    def compile_only() -> str:
        chosen = steps_until_compile(run.experiment)
        for number, step in enumerate(chosen, start=1):
            _take(run, step, f"{number}/{len(chosen)}")
        if run.state.nodes:
            stop_paying(run)
        if fresh:
            return finish(run)
        run.save(owner="")
        return ""

    try:
        with_nodes_off_on_failure(run, compile_only)
    except KeyboardInterrupt:
        stop_paying(run)
        raise


def _take(run: ActiveRun, step: Step, place: str) -> None:
    run.say(f"==> {place} {step.title}")
    run.save(step=step.name, problem="")
    step.act(run)


def with_nodes_off_on_failure(run: ActiveRun, act: Callable[[], str], *, keep_nodes: bool = False) -> str:
    """Return the result of `act`. After any error set the nodes to 0 (unless `keep_nodes`) and release the run. If another
    process drives the run now, leave its nodes alone.

    Raises `Refusal`, also for a fault of this program.
    """
    try:
        return act()
    except NotOursError:
        raise  # the nodes are the other run's by now
    except Exception as error:
        known = refusal_of(error)
        unproven = isinstance(known, UnprovenError)
        # Nodes that are missing or too expensive are not kept.
        wanted = keep_nodes and not isinstance(known, NoCapacityError)
        kept = wanted or not run.state.nodes
        if not kept and not (unproven and _if_possible(run, lambda: _keep_for_inspection(run))):
            _if_possible(run, lambda: stop_paying(run))
        _release_lease(run, problem=str(known))
        run.say(f"run {run.state.id}: stopped at {run.state.step}; {what_is_billed(run)}")
        raise known from error


def _keep_for_inspection(run: ActiveRun) -> None:
    """Keep the nodes for some minutes. Their schedule then sets them to 0, even if this process has ended."""
    now, state = run.clock.now(), run.state
    allowed = (moment(state.off_at) - now) / timedelta(minutes=1)
    minutes = max(1.0, min(_GRACE_MIN, allowed))
    group = nodegroup.read(run.experiment, run.aws)
    at = nodegroup.schedule_off(run.experiment, run.aws, now=now, hours=minutes / 60, group=group)
    trn2_nodes.record_nodes(run, state.nodes, off_at=stamp(at))
    usd = state.nodes * node_price(run.experiment).usd_per_hour * minutes / 60
    run.say(
        f"    the nodes stay for inspection: {minutes:.0f} minutes, ${usd:.2f}, until {stamp(at)}; run this again before that to "
        "use them"
    )


def _all_steps(run: ActiveRun) -> str:
    """Take every step that is left; returns the address of the state."""
    everything = steps(run.experiment)
    for step in remaining(everything, run.state.done):
        if step.name in run.plan.left_out:
            continue
        try:
            _take(run, step, f"{everything.index(step) + 1}/{len(everything)}")
        except NoCapacityError as error:
            if not run.plan.wait_h or step.name == "nodes":
                raise
            # The nodes were taken away and EC2 has no replacement: continue on new ones.
            run.say(f"    {error.lines[0].partition(';')[0]}; 0 nodes; new ones are asked for")
            trn2_nodes.release_nodes(run)
            left = remaining(everything, run.state.done)
            run.needs_h = min(run.needs_h, sum(run.plan.hours_of(step.name) for step in left))
            return _all_steps(run)
        if step.name not in run.state.done and not (run.plan.left_out and step.name in LAST):
            run.save(done=(*run.state.done, step.name))
    if not run.plan.left_out:
        return finish(run)
    run.say(f"    left to a later run: {', '.join(run.plan.left_out.values())}")
    _release_lease(run, problem="the block ended")
    return run.store.address


def finish(run: ActiveRun) -> str:
    """Store the state of the finished run and remove the lock; returns its address."""
    address = run.store.record(run.held)
    if not _if_possible(run, run.store.make_room):
        _release_lease(run, problem="")
    return address


def _release_lease(run: ActiveRun, *, problem: str) -> None:
    """Let the next process continue the run at once. Without this the lease expires after ten minutes."""
    _if_possible(run, lambda: run.save(owner="", problem=problem[:1000]))


def what_is_billed(run: ActiveRun) -> str:
    """Return one sentence about the nodes: what EKS says, or what the run last asked for if EKS does not answer."""
    experiment = run.experiment
    try:
        nodes, answers = nodegroup.read(experiment, run.aws).desired, True
    except Exception:
        nodes, answers = run.state.nodes, False
    if not nodes:
        none = "no Trn2 node bills" if answers else "this run asked for no Trn2 node"
        return f"{none}; run it again to go on"
    until = run.state.off_at or f"their schedule acts, {experiment.cluster.off_when}"
    quoted = node_price(experiment)
    price = f"at ${nodes * quoted.usd_per_hour:.2f} an hour ({quoted.quoted}) until {until}"
    if not answers:
        check = f"check with ./trnspec status {experiment.file}"
        return f"EKS does not answer: {count(nodes, 'Trn2 node')} may still run {price}; {check}"
    return (
        f"{count(nodes, 'Trn2 node')} running {price}; run it again to go on, or stop them with ./trnspec nodes {experiment.file} 0 (now "
        f"{stamp(run.clock.now())})"
    )
