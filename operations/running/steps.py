"""The steps in their order, and how a run is carried from where it stands to its end: it says what bills wherever it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from core.command_line import refusal_of
from core.findings import Refusal
from core.words import count
from experiment import Arm, Experiment
from experiment.cost import budget_text, run_price
from experiment.placement import nodes_needed, rounds
from operations.cloud import nodegroup
from operations.cloud.clock import moment, stamp
from operations.running import arm_profiles, measuring, preparing
from operations.running.context import POLL_S, Context, UnprovenError
from operations.running.state import NotOursError

_BUSY_S = 600
_TRIES = 4


@dataclass(frozen=True)
class Step:
    """One step; it can be carried out again after it broke off anywhere."""

    name: str
    title: str
    act: Callable[[Context], None]
    needs: tuple[str, ...] = ()
    """Steps whose effect can vanish (nodes, replicas): a run that resumes here makes sure of it again."""


def steps(experiment: Experiment, *, profile: bool = False) -> tuple[Step, ...]:
    """All steps of a run, with profiles of the arms or without."""
    found = [
        Step("weights", "fetch weights (no Trn2 node runs)", preparing.fetch_weights),
        Step("arguments", "ask the images about arguments and heads", preparing.check_arguments),
        Step("nodes", "start Trn2 nodes", preparing.start_nodes),
        Step("verify", "prove the nodes", preparing.verify_nodes, ("nodes",)),
        Step("compile", "compile the arms", preparing.compile_arms, ("nodes",)),
    ]
    asked: set[str] = set()
    for number, arms in enumerate(rounds(experiment), start=1):
        raised, stands = f"arms-{number}", ("nodes", f"arms-{number}")
        raise_ = partial(measuring.raise_arms, arms=arms)
        load = partial(measuring.measure, number=number, arms=arms)
        found.append(Step(raised, f"raise {_names(arms)}", raise_, ("nodes",)))
        chosen = experiment.benchmark.load or experiment.benchmark.duration
        how = f": {budget_text(experiment)}" if chosen else ""
        found.append(Step(f"benchmark-{number}", f"load {_names(arms)}{how}", load, stands))
        if experiment.benchmark.lm_eval:
            new = tuple(arm for arm in arms if arm.name not in asked)
            ask = partial(measuring.check_quality, number=number, arms=new)
            title = f"ask {_names(new)} the questions of gsm8k"
            found.append(Step(f"quality-{number}", title, ask, stands))
            asked |= {arm.name for arm in arms}
    if batch := experiment.batch_arms:
        found.append(
            Step("batch", f"run {_names(batch)} without a server", measuring.run_batches, ("nodes",))
        )
    if profile:
        found.append(Step("profile", "profile each arm", arm_profiles.profile_arms, ("nodes",)))
    return (
        *found,
        Step("off", "set the Trn2 nodes to 0", stop_paying),
        Step("report", "fetch results and report", _bring_home),
    )


def _bring_home(context: Context) -> None:
    measuring.bring_home(context)
    arm_profiles.bring_profiles(context)


def _names(arms: tuple[Arm, ...]) -> str:
    return ", ".join(arm.name for arm in arms)


def remaining(all_steps: tuple[Step, ...], done: tuple[str, ...]) -> list[Step]:
    """What is left to do: everything not done, and what the first of it needs and may have fallen meanwhile."""
    left = [step for step in all_steps if step.name not in done]
    needed = left[0].needs if left else ()
    return [step for step in all_steps if step.name not in done or step.name in needed]


def stop_paying(context: Context) -> None:
    """Arms to 0, nodes to 0, and the schedule that would do the same away. Also what a failed run ends with."""
    _if_possible(context, lambda: measuring.stand(context))  # the nodes under them go in any case
    try:
        name = _no_nodes(context)
    except (
        nodegroup.InUseError
    ) as error:  # what this run had has gone, and another experiment has started its own
        context.asked_for(0)
        context.say(f"    {error}")
        return
    context.asked_for(0)
    nodegroup.forget_schedule(context.experiment, context.aws)
    _if_possible(context, lambda: nodegroup.say_over(context.experiment, context.aws))
    context.say(f"    {name}: 0 nodes; nothing of this run is billed by the hour now")


def _no_nodes(context: Context) -> str:
    """Ask EKS for 0 nodes until it says yes; returns the group's name.

    A group that is being changed takes no other change for a minute or two, so a run that fails while its nodes start waits
    for that. Any other refusal is tried again a few times: a node bills $36 an hour.
    """
    begun, tries = context.clock.ticking(), 0
    while True:
        try:
            group = nodegroup.read_or_assume(context.experiment, context.aws)
            nodegroup.refuse_taking(context.experiment, context.aws, group)
            if group.desired or group.status != "ACTIVE":
                nodegroup.set_size(context.experiment, context.aws, nodes=0, group=group)
            return group.name
        except nodegroup.InUseError:
            raise
        except Exception as error:
            tries += not isinstance(error, nodegroup.BusyError)
            if tries >= _TRIES or context.clock.ticking() - begun >= _BUSY_S:
                raise
            context.say(f"    {refusal_of(error)}; it is asked again in {POLL_S} seconds")
            context.clock.sleep(POLL_S)


def _if_possible(context: Context, act: Callable[[], None]) -> bool:
    """Whether it was; why not is said."""
    try:
        act()
    except Exception as error:
        context.say(f"    {refusal_of(error)}")
        return False
    return True


def carry_out(context: Context, *, keep_nodes: bool) -> dict[str, Any]:
    """All steps that are left; returns what is printed of the run, with the address of its state and the list price of its
    Trn2 nodes.

    A step that fails ends the run: the nodes are set to 0 (unless `keep_nodes`; after a failed proof, when the time of grace is
    over), the line of its error is passed on.
    An interruption changes nothing but the lock; what bills is said.
    """
    try:
        address = or_stop_paying(context, lambda: _all_steps(context), keep_nodes=keep_nodes)
    except KeyboardInterrupt:
        context.aws.hurry()  # somebody waits at the terminal
        _let_go(context, problem="interrupted")
        context.say(f"run {context.state.id}: interrupted at {context.state.step}; {what_bills(context)}")
        raise
    state, experiment = context.state, context.experiment
    hours = state.node_hours / nodes_needed(experiment)
    return {
        "id": state.id,
        "state": address,
        "results": [state.results[key] for key in sorted(state.results)],
        "node_hours": round(state.node_hours, 3),
        "usd": round(run_price(experiment, hours=hours).usd, 2),
    }


def or_stop_paying(context: Context, act: Callable[[], str], *, keep_nodes: bool = False) -> str:
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
        if context.state.nodes and not keep_nodes and not _kept_for_a_look(context, known):
            _if_possible(context, lambda: stop_paying(context))
        _let_go(context, problem=str(known))
        context.say(f"run {context.state.id}: stopped at {context.state.step}; {what_bills(context)}")
        raise known from error


def _kept_for_a_look(context: Context, error: Refusal) -> bool:
    """Whether the nodes stay on for the time of grace, because they failed their proof: their schedule ends then, so that they
    go off whatever becomes of this process. Where it cannot be set they go off at once."""
    if not isinstance(error, UnprovenError) or context.grace_min <= 0:
        return False
    return _if_possible(context, lambda: _keep_for_a_look(context))


def _keep_for_a_look(context: Context) -> None:
    now, minutes = context.clock.now(), context.grace_min
    allowed = (moment(context.state.off_at) - now) / timedelta(minutes=1)
    minutes = max(1.0, min(minutes, allowed))
    group = nodegroup.read(context.experiment, context.aws)
    at = nodegroup.schedule_off(context.experiment, context.aws, now=now, hours=minutes / 60, group=group)
    context.asked_for(context.state.nodes, off_at=stamp(at))
    usd = context.state.nodes * context.usd_per_hour * minutes / 60
    context.say(
        f"    the nodes stay for inspection: {minutes:.0f} minutes, ${usd:.2f}, until {stamp(at)}; run this again before that to go on "
        "with them (--grace changes the time)"
    )


def _all_steps(context: Context) -> str:
    """Every step that is left; returns where the state of the finished run is."""
    everything = steps(context.experiment, profile=context.profile)
    for step in remaining(everything, context.state.done):
        number = everything.index(step) + 1
        context.say(f"==> {number}/{len(everything)} {step.title}")
        context.save(step=step.name, problem="")
        step.act(context)
        if step.name not in context.state.done:
            context.save(done=(*context.state.done, step.name))
    return finish(context)


def finish(context: Context) -> str:
    """Where the state of the finished run is. That the lock could not be taken away does not spoil the answer."""
    address = context.store.record(context.held)
    if not _if_possible(context, context.store.make_room):
        _let_go(context, problem="")
    return address


def _let_go(context: Context, *, problem: str) -> None:
    """Leave the run to the next who goes on with it; when even that fails, the lease runs out by itself."""
    _if_possible(context, lambda: context.save(owner="", problem=problem[:1000]))


def what_bills(context: Context) -> str:
    """One sentence about the nodes, from EKS, or from what was last asked for when EKS does not answer."""
    experiment, off_at = context.experiment, context.state.off_at
    file = f"experiments/{experiment.name}.yaml"
    try:
        nodes, answers = nodegroup.read(experiment, context.aws).desired, True
    except Exception:
        nodes, answers = context.state.nodes, False
    if not nodes:
        told = "no Trn2 node bills" if answers else "this run asked for no Trn2 node"
        return f"{told}; run it again to go on"
    usd = f"${nodes * context.usd_per_hour:.2f} an hour"
    until = off_at or f"their schedule acts, {experiment.cluster.off_when}"
    if not answers:
        return f"EKS does not answer: {count(nodes, 'Trn2 node')} may still run at {usd} until {until}; check with ./trnspec status {file}"
    return (
        f"{count(nodes, 'Trn2 node')} running at {usd} until {until}; run it again to go on, or stop them with ./trnspec scale {file} 0 (now "
        f"{stamp(context.clock.now())})"
    )
