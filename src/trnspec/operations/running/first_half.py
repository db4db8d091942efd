"""`run --until compile`: the first half of a run, after which every artifact is there and no Trn2 node runs."""

from __future__ import annotations

from collections.abc import Callable

from trnspec.experiment import Experiment
from trnspec.operations.cloud import experiment_resources
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.running.context import Context
from trnspec.operations.running.steps import Step, finish, steps, stop_paying, with_nodes_off_on_failure

LAST_STEP = "compile"


def first_half(experiment: Experiment) -> list[Step]:
    """The steps up to the compilation."""
    found = steps(experiment)
    names = [step.name for step in found]
    return [step for step in found[: names.index(LAST_STEP) + 1] if step.name != "first"]


def nothing_to_compile(experiment: Experiment, aws: Aws, say: Callable[[str], None]) -> bool:
    """Whether every arm has its artifact, so that no node has to start for one; those that were marked stale stay."""
    if experiment_resources.missing_artifacts(experiment, aws):
        return False
    for key in experiment_resources.free(experiment, aws):
        say(f"    artifact {key}: is used again by an arm: kept")
    return True


def compile_artifacts(context: Context, *, fresh: bool) -> None:
    """Fetch, start nodes, prove them, compile; then let the nodes go.

    `fresh`: the run was begun for this, so it ends with it; otherwise it goes back to the one who left it unfinished.
    Every step makes sure by itself of what is there already. Raises `Refusal`.
    """

    def prepare() -> str:
        chosen = first_half(context.experiment)
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

    try:
        with_nodes_off_on_failure(context, prepare)
    except KeyboardInterrupt:
        stop_paying(context)
        raise
