"""Carries a run from where it stands to its end, and says what bills wherever it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiment.finding import Refusal
from operations import nodegroup
from operations.clock import stamp
from operations.errors import as_line, fault
from operations.running.state import NotOursError
from operations.running.steps import remaining, steps, stop_paying

if TYPE_CHECKING:
    from operations.running.context import Context


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
