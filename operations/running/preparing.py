"""Steps before anything is measured: weights, nodes, proof of the nodes, artifacts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from experiment.artifact import artifact_key
from experiment.finding import Refusal
from experiment.naming import weights_path
from experiment.placement import compilations_at_once, nodes_needed
from operations import nodegroup, stale, storage
from operations.clock import stamp
from operations.cluster_view import NEURON, is_ready
from operations.running import engines, jobs
from operations.running.context import StepError

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from operations.aws import Aws
    from operations.running.context import Context

FETCH_S = 3 * 3600
NODES_S = 40 * 60
COMPILE_S = 4 * 3600


def fetch_weights(context: Context) -> None:
    """Every model into the bucket of checkpoints, while no Trn2 node bills."""
    experiment, aws = context.experiment, context.aws
    deployed = jobs.deployed(context)
    jobs.make_way(context, deployed, "fetch")
    missing = [weights for weights in experiment.weights if not storage.has_weights(experiment, aws, weights)]
    names = []
    for weights in missing:
        job = jobs.fetching(deployed, weights)
        jobs.release(context, job)
        names.append(str(job["metadata"]["name"]))
    for name in dict.fromkeys(names):
        context.wait(
            lambda name=name: jobs.progress(context, name),  # type: ignore[misc] # mypy cannot see a default argument in a lambda
            patience_s=FETCH_S,
            remedy="read its log (scripts/kubectl logs), then run this again: it goes on where it stopped",
        )
    for weights in missing:
        if not storage.has_weights(experiment, aws, weights):
            raise StepError(
                f"weights {weights.model.name}: the Job is complete and the bucket has no marker for {weights_path(weights)}; "
                "run this again, or look into the bucket of checkpoints"
            )


def start_nodes(context: Context) -> None:
    """The nodes of the largest round, with the time at which they go away set before the first of them starts."""
    experiment, wanted = context.experiment, nodes_needed(context.experiment)
    group = nodegroup.read(experiment, context.aws)
    at = nodegroup.schedule_off(
        experiment, context.aws, now=context.clock.now(), hours=context.hours, group=group
    )
    # Remembered first: a kill between the two must not leave nodes that nobody knows of.
    context.asked_for(max(wanted, group.desired), off_at=stamp(at))
    context.say(
        f"    {wanted} x {experiment.instance.name} bill ${wanted * context.usd_per_hour:.2f} an hour, until "
        f"{stamp(at)} at the latest"
    )
    if group.desired < wanted:
        nodegroup.set_size(experiment, context.aws, nodes=wanted, group=group)
    context.wait(
        lambda: _nodes(context, wanted),
        patience_s=NODES_S,
        remedy="read scripts/status; most often EC2 has no capacity: try another zone, or buy a capacity block",
    )


def _nodes(context: Context, wanted: int) -> str | None:
    group = context.need_nodes()
    ready = sum(is_ready(node) for node in context.cluster.list("nodes", labels=NEURON))
    if ready >= wanted:
        return None
    context.refuse_issues(group)
    return f"{group.name}: {ready} of {wanted} nodes are ready"


def verify_nodes(context: Context) -> None:
    """What only a real node can prove, before hours of compiling rest on it."""
    if context.verify is None:
        context.say("    skipped: nothing is proved about these nodes")
        return
    context.need_nodes()
    context.verify(context)


def compile_arms(context: Context) -> None:
    """All missing artifacts, as many at once as the nodes hold with their share of CPU and memory; the next begins when one
    ends, so no Job's own deadline runs while it waits. One failure does not stop the others: what they compile is kept, and
    all failures are told together."""
    _tags(context, stale.free, "is some arm's again and stays")
    deployed = jobs.deployed(context)
    jobs.make_way(context, deployed, "compile")
    missing = [arm for arm in context.experiment.served_arms if not _has_artifact(context, arm)]
    waiting: dict[str, jobs.Object] = {}
    for arm in missing:
        job = jobs.compiling(deployed, arm)
        waiting.setdefault(str(job["metadata"]["name"]), job)
    failed: dict[str, StepError] = {}
    at_once, released = compilations_at_once(context.experiment), set[str]()
    context.wait(
        lambda: _compiling(context, waiting, released, failed, at_once),
        patience_s=COMPILE_S * -(-max(1, len(waiting)) // at_once),
        remedy="read its log (scripts/kubectl logs), then run this again: finished artifacts are kept",
    )
    if failed:
        rest = len(waiting) - len(failed)
        first = str(next(iter(failed.values())))
        raise StepError(
            first if len(failed) == 1 else f"{first} ({len(failed)} failed, {rest} artifacts are kept)"
        )
    for arm in missing:
        if not _has_artifact(context, arm):
            raise StepError(
                f"arm {arm.name}: the Job is complete and the bucket has no marker with key {artifact_key(arm)}; "
                "run this again, or look into the bucket of artifacts"
            )
    engines.compare(context)
    _tags(context, stale.mark, "is no arm's any more and goes by the bucket's lifecycle rule")


def _tags(context: Context, act: Callable[[Experiment, Aws], list[str]], what: str) -> None:
    """Tidying up; a run does not end because of it."""
    try:
        for key in act(context.experiment, context.aws):
            context.say(f"    artifact {key}: {what}")
    except Refusal as error:
        context.say(f"    artifacts are not tidied up: {error}")


def _compiling(
    context: Context,
    waiting: dict[str, jobs.Object],
    released: set[str],
    failed: dict[str, StepError],
    at_once: int,
) -> str | None:
    """What the running Jobs do, and how many wait for their turn; those whose turn it is are released."""
    context.need_nodes()
    told: list[str] = []
    for name, job in waiting.items():
        if name in failed:
            continue
        if name not in released:
            if len(told) == at_once:
                continue
            jobs.release(context, job)
            released.add(name)
        try:
            if (one := jobs.progress(context, name)) is not None:
                told.append(one)
        except StepError as error:
            failed[name] = error
    left = len(waiting.keys() - released)
    return "; ".join([*told, *([f"{left} wait for their turn"] if left else [])]) or None


def _has_artifact(context: Context, arm: Arm) -> bool:
    return storage.has_artifact(context.experiment, context.aws, arm)
