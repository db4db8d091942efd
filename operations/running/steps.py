"""The steps in their order, and what a step may rely on after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from experiment.finding import Refusal
from experiment.placement import rounds
from operations import nodegroup, run_active
from operations.errors import as_line
from operations.running import arguments, measuring, preparing, quality, results
from operations.running.context import POLL_S

if TYPE_CHECKING:
    from experiment import Arm, Experiment
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
