"""Steps before anything is measured: arguments, weights, nodes, proof of the nodes, artifacts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cdk8s_charts.in_image import CANNOT_SAY, REFUSED
from cdk8s_charts.workloads.proofs import ARGUMENTS_DEADLINE_S
from experiment.compilation import artifact_key, declared_keys
from experiment.finding import Refusal
from experiment.naming import artifact_path, bucket, weights_path
from experiment.placement import compilations_at_once, nodes_needed
from operations.cloud import markers, nodegroup
from operations.cloud.clock import stamp
from operations.cloud.kubernetes import NEURON, is_ready, pods_of
from operations.running import job_control
from operations.running.context import StepError
from store.artifact import CONFIGURATION, DIFFERENCES, comparison

if TYPE_CHECKING:
    from operations.running.context import Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment import Arm
    from operations.running.context import Context

if TYPE_CHECKING:
    from experiment import Arm, Experiment
    from operations.cloud.aws import Aws
    from operations.running.context import Context


PATIENCE_S = ARGUMENTS_DEADLINE_S + 300
_REFUSAL = {"arm", "key", "why"}
_SILENCE = {"part", "why"}


def check_arguments(context: Context) -> None:
    """Every image at once. Raises `StepError` with the first refusal, none for an image that cannot say."""
    if context.verify is None:
        context.say("    skipped: no image is asked about the arguments")
        return
    found = job_control.deployed(context)
    job_control.make_way(context, found, "arguments")
    asking = {str(job["metadata"]["name"]): job for job in job_control.asking(found)}
    silent: dict[str, StepError] = {}
    for name, job in asking.items():
        try:
            job_control.release(context, job)
        except StepError as error:
            silent[name] = error
    for name, job in asking.items():
        image = job_control.containers(job["spec"])[0]["image"]
        try:
            if name in silent:
                raise silent[name]
            context.wait(
                lambda name=name: job_control.progress(context, name),  # type: ignore[misc] # mypy cannot see a default argument in a lambda
                patience_s=PATIENCE_S,
                remedy=f"scripts/kubectl describe job {name}",
            )
            context.say(f"    {image}: takes the arguments of its arms")
        except StepError as error:
            _refuse(context, name, image)
            why = _silence(context, name) or str(error)
            context.say(
                f"    warning: {image}: cannot be asked here ({why}); compiling will ask it on the node"
            )


def _refuse(context: Context, name: str, image: str) -> None:
    """`StepError` where the Job's pod said that something is refused, and ended so."""
    refused = [line for line in _said(context, name, code=REFUSED) if line.keys() == _REFUSAL]
    if not refused:
        return
    first, more = refused[0], len(refused) - 1
    rest = f" ({more} more: scripts/kubectl logs job/{name})" if more else ""
    raise StepError(
        f"arm {first['arm']}: {image} refuses {first['key']}: {first['why']}{rest}; change it in the experiment, render the "
        "manifests (make manifests), review and deploy, or run this with --skip-verify where the image is wrong"
    )


def _silence(context: Context, name: str) -> str:
    """Why the image's code could not be asked, in its own words."""
    said = [line for line in _said(context, name, code=CANNOT_SAY) if line.keys() == _SILENCE]
    return "; ".join(f"{line['part']}: {line['why']}" for line in said)


def _said(context: Context, name: str, *, code: int) -> Iterator[dict[str, Any]]:
    """What the pods of a Job printed that ended with this exit code."""
    for pod in pods_of(context.cluster.list("pods"), name):
        if code not in _exit_codes(pod):
            continue
        for line in context.cluster.logs(pod["metadata"]["name"], lines=500).splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict):
                yield said


def _exit_codes(pod: Mapping[str, Any]) -> set[int]:
    statuses = pod.get("status", {}).get("containerStatuses") or []
    ended = [status.get("state", {}).get("terminated") for status in statuses]
    return {one["exitCode"] for one in ended if one}


def compare(context: Context) -> None:
    """Write the comparisons that are missing. A run does not end because one could not be written."""
    for arm in _treated(context, context.experiment.served_arms):
        try:
            _compare(context, arm)
        except Refusal as error:
            context.say(f"    {arm.name}: its engine is not compared with the baseline's: {error}")


def _compare(context: Context, arm: Arm) -> None:
    name, path = bucket(context.experiment, "artifacts", context.aws.account), artifact_path(arm)
    baseline = artifact_path(context.experiment.baseline)
    address = f"s3://{name}/{baseline}"
    stored = markers.marker(context.aws, name, f"{path}/{DIFFERENCES}")
    if stored is not None and stored.get("compared") and stored.get("baseline") == address:
        return
    ours, theirs = (
        markers.marker(context.aws, name, f"{folder}/{CONFIGURATION}") for folder in (path, baseline)
    )
    if ours is None:
        return  # a runtime whose compiler saves none; the report says that nothing was compared
    text = comparison(address, theirs, ours, declared_keys(context.experiment.baseline, arm))
    context.aws.client("s3").put_object(Bucket=name, Key=f"{path}/{DIFFERENCES}", Body=text.encode())
    if theirs is not None:
        beyond = sum(not entry["declared"] for entry in json.loads(text)["differences"])
        context.say(
            f"    {arm.name}: its engine differs from the baseline's in {beyond} values beyond speculation"
        )


def comparisons(context: Context, arms: Sequence[Arm]) -> dict[str, bytes]:
    """What is stored of some arms, by arm."""
    name, found = bucket(context.experiment, "artifacts", context.aws.account), {}
    for arm in _treated(context, arms):
        if (stored := markers.marker(context.aws, name, f"{artifact_path(arm)}/{DIFFERENCES}")) is not None:
            found[arm.name] = json.dumps(stored, indent=1, sort_keys=True).encode() + b"\n"
    return found


def _treated(context: Context, arms: Sequence[Arm]) -> list[Arm]:
    baseline = artifact_path(context.experiment.baseline)
    return [arm for arm in arms if artifact_path(arm) != baseline]


FETCH_S = 3 * 3600
NODES_S = 40 * 60
COMPILE_S = 4 * 3600


def fetch_weights(context: Context) -> None:
    """Every model into the bucket of checkpoints, while no Trn2 node bills."""
    experiment, aws = context.experiment, context.aws
    deployed = job_control.deployed(context)
    job_control.make_way(context, deployed, "fetch")
    missing = [weights for weights in experiment.weights if not markers.has_weights(experiment, aws, weights)]
    names = []
    for weights in missing:
        job = job_control.fetching(deployed, weights)
        job_control.release(context, job)
        names.append(str(job["metadata"]["name"]))
    for name in dict.fromkeys(names):
        context.wait(
            lambda name=name: job_control.progress(context, name),  # type: ignore[misc] # mypy cannot see a default argument in a lambda
            patience_s=FETCH_S,
            remedy="read its log (scripts/kubectl logs), then run this again: it goes on where it stopped",
        )
    for weights in missing:
        if not markers.has_weights(experiment, aws, weights):
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
    _tags(context, markers.free, "is some arm's again and stays")
    deployed = job_control.deployed(context)
    job_control.make_way(context, deployed, "compile")
    missing = [arm for arm in context.experiment.served_arms if not _has_artifact(context, arm)]
    waiting: dict[str, job_control.Object] = {}
    for arm in missing:
        job = job_control.compiling(deployed, arm)
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
    compare(context)
    _tags(context, markers.mark, "is no arm's any more and goes by the bucket's lifecycle rule")


def _tags(context: Context, act: Callable[[Experiment, Aws], list[str]], what: str) -> None:
    """Tidying up; a run does not end because of it."""
    try:
        for key in act(context.experiment, context.aws):
            context.say(f"    artifact {key}: {what}")
    except Refusal as error:
        context.say(f"    artifacts are not tidied up: {error}")


def _compiling(
    context: Context,
    waiting: dict[str, job_control.Object],
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
            job_control.release(context, job)
            released.add(name)
        try:
            if (one := job_control.progress(context, name)) is not None:
                told.append(one)
        except StepError as error:
            failed[name] = error
    left = len(waiting.keys() - released)
    return "; ".join([*told, *([f"{left} wait for their turn"] if left else [])]) or None


def _has_artifact(context: Context, arm: Arm) -> bool:
    return markers.has_artifact(context.experiment, context.aws, arm)
