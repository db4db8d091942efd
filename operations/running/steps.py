"""The steps in their order, and how a run is carried from where it stands to its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from experiment.finding import Refusal
from experiment.placement import rounds
from operations.cloud import nodegroup
from operations.cloud import nodegroup as run_active
from operations.cloud.clock import stamp
from operations.console import as_line, fault
from operations.running import measuring, preparing
from operations.running import measuring as quality
from operations.running import measuring as results
from operations.running import preparing as arguments
from operations.running.context import POLL_S
from operations.running.state import NotOursError

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from operations.running.context import Context

if TYPE_CHECKING:
    from operations.running.context import Context


_BUSY = timedelta(minutes=10)
_TRIES = 4


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step; it can be carried out again after it broke off anywhere."""

    name: str
    title: str
    act: Callable[[Context], None]
    standing: bool = False
    """Whether its effect can vanish (nodes, replicas): then a resumed run makes sure of it again while it is needed."""


def steps(experiment: Experiment) -> tuple[Step, ...]:
    """All steps of a run."""
    found = [
        Step(name="arguments", title="ask the images about the arguments", act=arguments.check_arguments),
        Step(name="weights", title="fetch weights (no Trn2 node runs)", act=preparing.fetch_weights),
        Step(name="nodes", title="start Trn2 nodes", act=preparing.start_nodes, standing=True),
        Step(name="verify", title="prove the nodes", act=preparing.verify_nodes),
        Step(name="compile", title="compile the arms", act=preparing.compile_arms),
    ]
    asked: set[str] = set()
    for number, arms in enumerate(rounds(experiment), start=1):
        found += _round(number, arms)
        if experiment.benchmark.lm_eval:
            found.append(_quality(number, tuple(arm for arm in arms if arm.name not in asked)))
            asked |= {arm.name for arm in arms}
    if experiment.batch_arms:
        names = ", ".join(arm.name for arm in experiment.batch_arms)
        found.append(Step(name="batch", title=f"run {names} without a server", act=measuring.run_batches))
    return (
        *found,
        Step(name="off", title="set the Trn2 nodes to 0", act=stop_paying),
        Step(name="report", title="fetch results and report", act=results.bring_home),
    )


def _round(number: int, arms: tuple[Arm, ...]) -> list[Step]:
    names = ", ".join(arm.name for arm in arms)
    return [
        Step(
            name=f"arms-{number}",
            title=f"raise {names}",
            act=lambda context: measuring.raise_arms(context, arms),
            standing=True,
        ),
        Step(
            name=f"benchmark-{number}",
            title=f"load {names}",
            act=lambda context: _measured(context, number, arms),
        ),
    ]


def _quality(number: int, arms: tuple[Arm, ...]) -> Step:
    return Step(
        name=f"quality-{number}",
        title=f"ask {', '.join(arm.name for arm in arms)} the questions of gsm8k",
        act=lambda context: quality.check_quality(context, number, arms),
    )


def _measured(context: Context, number: int, arms: tuple[Arm, ...]) -> None:
    """Which folder of results is this round's: the one that came into being with its Job."""
    key = str(number)
    if key in context.state.results:
        return
    before = measuring.stored(context) - set(context.state.results.values())
    if key not in context.state.before:
        context.save(before={**context.state.before, key: sorted(before)})
    measuring.load_arms(context, number, arms)
    new = sorted(
        measuring.stored(context) - set(context.state.before[key]) - set(context.state.results.values())
    )
    if not new:
        raise Refusal(
            "benchmark: its Job is complete and nothing new is in the bucket of results; read scripts/kubectl logs of its Job"
        )
    context.save(results={**context.state.results, key: new[-1]})


def remaining(all_steps: tuple[Step, ...], done: tuple[str, ...]) -> list[Step]:
    """What is left to do: everything not done, and what stands below it and may have fallen meanwhile."""
    left = [step for step in all_steps if step.name not in done]
    if not left:
        return []
    first = all_steps.index(left[0])
    if left[0].name in ("off", "report", "arguments", "weights", "nodes"):
        return left
    again = [step for step in all_steps[:first] if step.standing and _needed(step, left[0])]
    return again + left


def _needed(standing: Step, by: Step) -> bool:
    """Nodes by everything until they are let go; arms by their own benchmark and the questions after it."""
    if standing.name == "nodes":
        return True
    number = standing.name.removeprefix("arms-")
    return by.name in (f"benchmark-{number}", f"quality-{number}")


def stop_paying(context: Context) -> None:
    """Arms to 0, nodes to 0, and the schedule that would do the same away. Also what a failed run ends with."""
    _if_possible(context, lambda: measuring.lower_arms(context))  # the nodes under them go in any case
    name = _no_nodes(context)
    context.asked_for(0)
    nodegroup.forget_schedule(context.experiment, context.aws)
    _if_possible(context, lambda: run_active.say_over(context.experiment, context.aws))
    context.say(f"    {name}: 0 nodes; nothing of this run bills by the hour any more")


def _no_nodes(context: Context) -> str:
    """Ask EKS for 0 nodes until it says yes; returns the group's name.

    A group that is being changed takes no other change for a minute or two, so a run that fails while its nodes start waits
    for that. Any other refusal is tried again a few times: a node bills $36 an hour.
    """
    until, tries = context.clock.now() + _BUSY, 0
    while True:
        try:
            group = nodegroup.read_or_assume(context.experiment, context.aws)
            if group.desired or group.status != "ACTIVE":
                nodegroup.set_size(context.experiment, context.aws, nodes=0, group=group)
            return group.name
        except Exception as error:
            tries += not isinstance(error, nodegroup.BusyError)
            if tries >= _TRIES or context.clock.now() >= until:
                raise
            context.say(f"    {as_line(error)}; it is asked again in {POLL_S} seconds")
            context.clock.sleep(POLL_S)


def _if_possible(context: Context, act: Callable[[], None]) -> None:
    try:
        act()
    except Exception as error:
        context.say(f"    {as_line(error)}")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a finished run leaves."""

    id: str
    state: str
    """Address of its state in S3."""
    results: tuple[str, ...]
    node_hours: float
    usd: float
    """Of the Trn2 nodes, at list price."""


def carry_out(context: Context, *, keep_nodes: bool) -> Answer:
    """All steps that are left.

    A step that fails ends the run: the nodes are set to 0 (unless `keep_nodes`), the line of its error is passed on.
    An interruption changes nothing but the lock; what bills is said.
    """
    try:
        address = or_stop_paying(context, lambda: _all_steps(context), keep_nodes=keep_nodes)
    except KeyboardInterrupt:
        context.aws.hurry()  # somebody waits at the terminal
        _let_go(context, problem="interrupted")
        context.say(f"run {context.state.id}: interrupted at {context.state.step}; {what_bills(context)}")
        raise
    state = context.state
    return Answer(
        id=state.id,
        state=address,
        results=tuple(state.results[key] for key in sorted(state.results)),
        node_hours=round(state.node_hours, 3),
        usd=round(state.node_hours * context.usd_per_hour, 2),
    )


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
        known = error if isinstance(error, Refusal) else fault(error)
        _after_failure(context, known, keep_nodes=keep_nodes)
        raise known from error


def _all_steps(context: Context) -> str:
    """Every step that is left; returns where the state of the finished run is."""
    everything = steps(context.experiment)
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
    try:
        context.store.make_room()
    except Exception as error:
        context.say(f"    {as_line(error)}")
        _let_go(context, problem="")
    return address


def _after_failure(context: Context, error: Refusal, *, keep_nodes: bool) -> None:
    if context.state.nodes and not keep_nodes:
        try:
            stop_paying(context)
        except Exception as second:
            context.say(f"    {as_line(second)}")
    _let_go(context, problem=str(error))
    context.say(f"run {context.state.id}: stopped at {context.state.step}; {what_bills(context)}")


def _let_go(context: Context, *, problem: str) -> None:
    """Leave the run to whoever goes on with it; when not even that works, the lease runs out by itself."""
    try:
        context.save(owner="", problem=problem[:1000])
    except Exception as error:
        context.say(f"    {as_line(error)}")


def what_bills(context: Context) -> str:
    """One sentence about the nodes, from EKS, or from what was last asked for when EKS does not answer."""
    experiment, path = context.experiment, f"--experiment experiments/{context.experiment.name}.yaml"
    try:
        nodes = nodegroup.read(experiment, context.aws).desired
    except Exception:
        nodes = context.state.nodes
        if not nodes:
            return "this run asked for no Trn2 node; run it again to go on"
        return (
            f"EKS does not answer: {nodes} Trn2 nodes may bill ${nodes * context.usd_per_hour:.2f} an hour until "
            f"{context.state.off_at or 'the daily hour'}; check with scripts/status {path}"
        )
    if not nodes:
        return "no Trn2 node bills; run it again to go on"
    until = (
        f"until {context.state.off_at}"
        if context.state.off_at
        else f"until {experiment.cluster.off_at_utc} UTC"
    )
    return (
        f"{nodes} Trn2 nodes bill ${nodes * context.usd_per_hour:.2f} an hour {until}; run it again to go on, or stop them "
        f"with scripts/scale 0 {path} (now {stamp(context.clock.now())})"
    )
