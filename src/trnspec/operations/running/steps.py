"""The steps in their order, and how a run is carried from where it is to its end: it says what bills wherever it stops."""

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
from trnspec.experiment.cost import node_price
from trnspec.experiment.placement import first_rounds
from trnspec.operations.cloud import nodegroup
from trnspec.operations.cloud.clock import moment, stamp
from trnspec.operations.running import measuring, preparing, trn2_nodes
from trnspec.operations.running.context import Context, NoCapacityError, UnprovenError
from trnspec.operations.running.run_plan import LAST
from trnspec.operations.running.state import NotOursError
from trnspec.operations.running.waiting import no_nodes, release_nodes


@dataclass(frozen=True)
class Step:
    """One step; it can be carried out again after it broke off anywhere."""

    name: str
    title: str
    act: Callable[[Context], None]
    needs: tuple[str, ...] = ()
    """Steps whose effect can vanish (nodes, replicas): a run that resumes here makes sure of it again."""


_GRACE_MIN = 15.0
"""Time to look at a node after a failed proof: scarce capacity may not come again."""


def steps(experiment: Experiment) -> tuple[Step, ...]:
    """All steps of a run."""
    nodes = ("nodes",)
    found = [
        Step("weights", "fetch weights (no Trn2 node runs)", preparing.fetch_weights),
        Step("arguments", "ask the images about arguments and heads", preparing.check_arguments),
        Step("nodes", "start Trn2 nodes", preparing.start_nodes),
        Step("verify", "prove the nodes", preparing.verify_nodes, nodes),
    ]
    if len(native := native_arms(experiment)) > 1:
        title = f"compile, start and ask {native[0].name}, before another native arm is compiled"
        found.append(Step("first", title, measuring.try_first, nodes))
    found.append(Step("compile", "compile the arms", preparing.compile_arms, nodes))
    for number, (arms, new) in enumerate(
        zip(experiment.rounds, first_rounds(experiment), strict=True), start=1
    ):
        raise_ = partial(measuring.raise_arms, arms=arms)
        load = partial(measuring.measure, number=number, arms=arms)
        raised = (*nodes, f"arms-{number}")
        found.append(Step(f"arms-{number}", f"raise {_names(arms)}", raise_, nodes))
        found.append(Step(f"benchmark-{number}", f"load {_names(arms)}", load, raised))
        if experiment.benchmark.lm_eval:
            ask = partial(measuring.check_quality, number=number, arms=new)
            title = f"ask {_names(new)} the questions of gsm8k"
            found.append(Step(f"quality-{number}", title, ask, raised))
    found.append(Step("off", "set the Trn2 nodes to 0", stop_paying))
    return (*found, Step("report", "fetch results and report", measuring.fetch_results))


def _names(arms: tuple[Arm, ...]) -> str:
    return ", ".join(arm.name for arm in arms)


def remaining(all_steps: tuple[Step, ...], done: tuple[str, ...]) -> list[Step]:
    """What is left to do: everything not done, and what the first of it needs and may be gone meanwhile."""
    left = [step for step in all_steps if step.name not in done]
    needed = left[0].needs if left else ()
    return [step for step in all_steps if step.name not in done or step.name in needed]


def stop_paying(context: Context) -> None:
    """Arms to 0, nodes to 0, and the schedule that would do the same away. Also what a failed run ends with."""
    _if_possible(context, lambda: measuring.set_replicas(context))  # the nodes under them go in any case
    name = no_nodes(context)
    trn2_nodes.record_nodes(context, 0)
    nodegroup.forget_schedule(context.experiment, context.aws)
    _if_possible(context, lambda: nodegroup.publish_run_inactive(context.experiment, context.aws))
    context.say(f"    {name}: 0 nodes; nothing of this run is billed by the hour now")


def _if_possible(context: Context, act: Callable[[], None]) -> bool:
    """Whether it worked; the error is printed."""
    try:
        act()
    except Exception as error:
        context.say(f"    {refusal_of(error)}")
        return False
    return True


def run_to_end(context: Context, *, keep_nodes: bool) -> dict[str, Any]:
    """All steps that are left; returns what is printed of the run, with the address of its state, what it cost, and the nodes that
    were replaced.

    A step that fails ends the run: the nodes are set to 0 (unless `keep_nodes`; after a failed proof, 15 minutes later), the line of
    its error is passed on.
    An interruption changes nothing but the lock; what bills is printed.
    """
    try:
        address = with_nodes_off_on_failure(context, lambda: _all_steps(context), keep_nodes=keep_nodes)
    except KeyboardInterrupt:
        context.aws.shorten_timeouts()  # somebody waits at the terminal
        _release_lease(context, problem="interrupted")
        context.say(f"run {context.state.id}: interrupted at {context.state.step}; {what_is_billed(context)}")
        raise
    state = context.state
    kind = context.experiment.cluster.capacity.kind
    usd = state.node_hours / context.plan.nodes * context.plan.usd_per_hour
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


def with_nodes_off_on_failure(context: Context, act: Callable[[], str], *, keep_nodes: bool = False) -> str:
    """What `act` returns. Whatever it raises, nothing of the run bills any more (unless `keep_nodes`) and somebody else may
    go on with it; only a run that is another's by now is left alone.

    Raises `Refusal`, also for a fault of this program.
    """
    try:
        return act()
    except NotOursError:
        raise  # the nodes are the other run's by now
    except Exception as error:
        known = refusal_of(error)
        # Where the schedule of nodes that failed their proof cannot be set to the end of that time, they go off at once.
        unproven = isinstance(known, UnprovenError)
        # Nobody wants to look at nodes that do not come, or that cost more than the file allows.
        wanted = keep_nodes and not isinstance(known, NoCapacityError)
        kept = wanted or not context.state.nodes
        if not kept and not (unproven and _if_possible(context, lambda: _keep_for_inspection(context))):
            _if_possible(context, lambda: stop_paying(context))
        _release_lease(context, problem=str(known))
        context.say(f"run {context.state.id}: stopped at {context.state.step}; {what_is_billed(context)}")
        raise known from error


def _keep_for_inspection(context: Context) -> None:
    """The nodes stay for a while: their schedule ends then, so that they go off whatever becomes of this process."""
    now, state = context.clock.now(), context.state
    allowed = (moment(state.off_at) - now) / timedelta(minutes=1)
    minutes = max(1.0, min(_GRACE_MIN, allowed))
    group = nodegroup.read(context.experiment, context.aws)
    at = nodegroup.schedule_off(context.experiment, context.aws, now=now, hours=minutes / 60, group=group)
    trn2_nodes.record_nodes(context, state.nodes, off_at=stamp(at))
    usd = state.nodes * node_price(context.experiment).usd_per_hour * minutes / 60
    context.say(
        f"    the nodes stay for inspection: {minutes:.0f} minutes, ${usd:.2f}, until {stamp(at)}; run this again before that to go on "
        "with them"
    )


def _all_steps(context: Context) -> str:
    """Every step that is left; returns where the state of the finished run is."""
    everything = steps(context.experiment)
    for step in remaining(everything, context.state.done):
        if step.name in context.plan.left_out:
            continue
        context.say(f"==> {everything.index(step) + 1}/{len(everything)} {step.title}")
        context.save(step=step.name, problem="")
        try:
            step.act(context)
        except NoCapacityError as error:
            if not context.plan.wait_h or step.name == "nodes":
                raise
            return _again(context, everything, error)
        if step.name not in context.state.done and not (context.plan.left_out and step.name in LAST):
            context.save(done=(*context.state.done, step.name))
    return leave_for_later_run(context) if context.plan.left_out else finish(context)


def _again(context: Context, everything: tuple[Step, ...], error: NoCapacityError) -> str:
    """The steps that are left, on nodes that are waited for: those of before were taken away, and none came in their place."""
    context.say(f"    {error.lines[0].partition(';')[0]}; 0 nodes, and they are asked for again")
    release_nodes(context)
    left = remaining(everything, context.state.done)
    context.needs_h = min(context.needs_h, sum(context.plan.hours_of(step.name) for step in left))
    return _all_steps(context)


def leave_for_later_run(context: Context) -> str:
    """Where the state of a run is that another run goes on with, because not all of it fitted before its nodes ended."""
    context.say(f"    not done, and left to a later run: {', '.join(context.plan.left_out.values())}")
    _release_lease(context, problem="not all of it fitted")
    return context.store.address


def finish(context: Context) -> str:
    """Where the state of the finished run is. That the lock could not be removed does not spoil the answer."""
    address = context.store.record(context.held)
    if not _if_possible(context, context.store.make_room):
        _release_lease(context, problem="")
    return address


def _release_lease(context: Context, *, problem: str) -> None:
    """Leave the run to the next who goes on with it; when even that fails, the lease runs out by itself."""
    _if_possible(context, lambda: context.save(owner="", problem=problem[:1000]))


def what_is_billed(context: Context) -> str:
    """One sentence about the nodes, from EKS, or from what was last asked for when EKS does not answer."""
    experiment = context.experiment
    try:
        nodes, answers = nodegroup.read(experiment, context.aws).desired, True
    except Exception:
        nodes, answers = context.state.nodes, False
    if not nodes:
        none = "no Trn2 node bills" if answers else "this run asked for no Trn2 node"
        return f"{none}; run it again to go on"
    until = context.state.off_at or f"their schedule acts, {experiment.cluster.off_when}"
    quoted = node_price(experiment)
    price = f"at ${nodes * quoted.usd_per_hour:.2f} an hour ({quoted.quoted}) until {until}"
    if not answers:
        check = f"check with ./trnspec status {experiment.file}"
        return f"EKS does not answer: {count(nodes, 'Trn2 node')} may still run {price}; {check}"
    return (
        f"{count(nodes, 'Trn2 node')} running {price}; run it again to go on, or stop them with ./trnspec nodes {experiment.file} 0 (now "
        f"{stamp(context.clock.now())})"
    )
