"""The part of a run that makes artifacts, and nodes at 0 afterwards whatever happens: nobody watches a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.finding import Refusal, State
from operations.cloud import markers
from operations.running.steps import finish, or_stop_paying, steps, stop_paying
from operations.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiment import Experiment
    from operations.cloud.aws import Aws
    from operations.running.context import Context

PREPARING = ("arguments", "weights", "nodes", "verify", "compile")


def nothing_to_compile(experiment: Experiment, aws: Aws, say: Callable[[str], None]) -> bool:
    """Whether every arm has its artifact, so that no node has to start for one; those that were marked stale stay."""
    if not all(markers.has_artifact(experiment, aws, arm) for arm in experiment.served_arms):
        return False
    for key in markers.free(experiment, aws):
        say(f"    artifact {key}: is some arm's again and stays")
    return True


def compile_artifacts(context: Context, *, fresh: bool) -> None:
    """Fetch, start nodes, prove them, compile; then let the nodes go.

    `fresh`: the run was begun for this, so it ends with it; otherwise it goes back to whoever left it unfinished.
    Every step makes sure by itself of what is there already. Raises `Refusal`.
    """
    try:
        or_stop_paying(context, lambda: _prepare(context, fresh=fresh))
    except KeyboardInterrupt:
        stop_paying(context)
        raise


def _prepare(context: Context, *, fresh: bool) -> str:
    chosen = [step for step in steps(context.experiment) if step.name in PREPARING]
    for number, step in enumerate(chosen, start=1):
        context.say(f"==> {number}/{len(chosen)} {step.title}")
        context.save(step=step.name, problem="")
        step.act(context)
    if context.state.nodes:
        stop_paying(context)
    if fresh:
        return finish(context)
    context.save(owner="")
    return ""


def prove(context: Context) -> None:
    """What `scripts/verify` checks. Raises `Refusal` with all that failed, in one line."""
    found = verify(
        context.experiment, context.cluster, context.clock, tell=lambda line: context.say(f"    {line}")
    )
    bad = [one for one in found if one.state is not State.FINE]
    context.say(f"    {len(found) - len(bad)} checks passed, {len(bad)} failed")
    if bad:
        raise Refusal("; ".join(f"{one.check}, {one.where}: {one.why}; {one.remedy}" for one in bad))
