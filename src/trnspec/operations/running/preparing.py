"""Steps before anything is measured: weights, arguments, nodes, proof of the nodes, artifacts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from cdk8s_charts.image_probe import CANNOT_SAY, REFUSED
from cdk8s_charts.workloads.probes import ARGUMENTS_DEADLINE_S
from trnspec.core.findings import Refusal, State
from trnspec.core.words import count
from trnspec.experiment import Arm, Experiment
from trnspec.experiment.compilation import artifact_key, declared_keys
from trnspec.experiment.cost import compile_deadline_s, node_price
from trnspec.experiment.naming import COMPILED_AT_SERVING, artifact_path, compile_job, fetch_job, weights_path
from trnspec.operations.cloud import experiment_resources, kubernetes, nodegroup
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.running import trn2_nodes, waiting
from trnspec.operations.running.context import (
    ENDED,
    Context,
    ImageError,
    StepError,
    UnprovenError,
    create,
    job_progress,
    to_create,
    wait_for,
)
from trnspec.operations.verification import count_text, failed
from trnspec.store.artifact import CONFIGURATION, DIFFERENCES, comparison

FETCH_S = 3 * 3600


def check_arguments(context: Context) -> None:
    """Does each image take what its arms tell it, and the heads as they were fetched? Asked of every image at once, before a
    Trn2 node is paid for.

    Raises `StepError` with the first refusal, and for an image that cannot be pulled. One that cannot be asked without a device is a
    warning: the compile Job then asks it on the node.
    """
    if context.verify is None:
        context.say("    skipped: no image is asked about the arguments")
        return
    jobs, stuck = to_create(context, "arguments").values(), dict[str, StepError]()
    for job in jobs:
        try:
            create(context, job)
        except StepError as error:
            stuck[job["metadata"]["name"]] = error
    for job in jobs:
        name, image = str(job["metadata"]["name"]), kubernetes.pod_containers(job)[0]["image"]
        try:
            if name in stuck:
                raise stuck[name]
            remedy = f"./trnspec kubectl {context.experiment.file} describe job {name}"
            wait_for(context, name, patience_s=ARGUMENTS_DEADLINE_S + 300, remedy=remedy)
            context.say(f"    {image}: takes the arguments and heads of its arms")
        except ImageError:
            raise
        except StepError as error:
            _refuse(context, name, image)
            parts = [line for line in _printed(context, name, CANNOT_SAY) if line.keys() == {"part", "why"}]
            why = "; ".join(f"{one['part']}: {one['why']}" for one in parts) or str(error)
            later = "compiling will ask it on the node"
            context.say(f"    warning: {image}: cannot be asked here ({why}); {later}")


def _refuse(context: Context, name: str, image: str) -> None:
    """`StepError` where the Job's pod printed that something is refused, and ended so."""
    refused = [line for line in _printed(context, name, REFUSED) if line.keys() == {"arm", "key", "why"}]
    if not refused:
        return
    first, more = refused[0], len(refused) - 1
    rest = f" ({more} more: {context.logs_command(name)})" if more else ""
    raise StepError(
        f"arm {first['arm']}: {image} refuses {first['key']}: {first['why']}{rest}; change it in the experiment, render the "
        f"manifests (./trnspec render {context.experiment.file}), review and deploy, or run this with --skip-verify where the image is wrong"
    )


def _printed(context: Context, name: str, code: int) -> Iterator[dict[str, Any]]:
    """JSON that the pods of a Job printed that ended with this exit code."""
    for pod in kubernetes.pods_of(context.cluster.list("pods"), name):
        ended = [status.get("state", {}).get("terminated") for status in kubernetes.container_statuses(pod)]
        if code in [state["exitCode"] for state in ended if state]:
            yield from kubernetes.json_lines(context.cluster.logs(pod["metadata"]["name"], lines=500))


def fetch_weights(context: Context) -> None:
    """Every model into the bucket of checkpoints, while no Trn2 node bills."""
    experiment, aws = context.experiment, context.aws
    jobs = to_create(context, "fetch")
    missing = [
        weights
        for weights in experiment.weights
        if not experiment_resources.has_weights(experiment, aws, weights)
    ]
    created = [create(context, jobs[fetch_job(weights)], ended=ENDED) for weights in missing]
    for name in dict.fromkeys(created):
        remedy = (
            f"read its log ({context.logs_command(name)}), then run this again: it goes on where it stopped"
        )
        wait_for(context, name, patience_s=FETCH_S, remedy=remedy)
    for weights in missing:
        if not experiment_resources.has_weights(experiment, aws, weights):
            raise StepError(
                f"weights {weights.model.name}: the Job is complete and the bucket has no marker for {weights_path(weights)}; "
                "run this again, or look into the bucket of checkpoints"
            )


def start_nodes(context: Context) -> None:
    """The nodes of the largest round; where EC2 has none they are waited for as long as `--wait` says."""
    waiting.retry_until_capacity(context, lambda: _ask_for_nodes(context))


def _ask_for_nodes(context: Context) -> None:
    """With the time at which they go away set before the first of them starts."""
    experiment, aws, wanted = context.experiment, context.aws, context.plan.nodes
    group, now = nodegroup.read(experiment, aws), context.clock.now()
    nodegroup.check_maximum(experiment, wanted)
    trn2_nodes.refuse_price(context)
    ends: dict[str, Any] = {"hours": context.plan.hours, "needs_h": context.needs_h}
    at = nodegroup.schedule_off(experiment, aws, now=now, group=group, **ends)
    # Remembered first: a kill between the two must not leave nodes that nobody knows of.
    trn2_nodes.record_nodes(context, max(wanted, group.desired), off_at=stamp(at))
    price = node_price(experiment)
    usd = f"${wanted * price.usd_per_hour:.2f} an hour ({price.quoted})"
    context.say(f"    {wanted} x {experiment.instance.name} bill {usd}, until {stamp(at)} at the latest")
    if group.desired < wanted:
        nodegroup.set_size(experiment, aws, nodes=wanted, group=group)
    trn2_nodes.wait_for_nodes(context)


def verify_nodes(context: Context) -> None:
    """What only a real node can prove, before hours of compiling rest on it."""
    if context.verify is None:
        context.say("    skipped: nothing is proved about these nodes")
        return
    how: dict[str, Any] = {
        "jobs": context.jobs("verify"),
        "tell": lambda line: context.say(f"    {line}"),
        "alive": context.renew,
    }
    while True:
        trn2_nodes.wait_for_nodes(context)
        same = trn2_nodes.nodes_unchanged(context)
        findings = context.verify(context.experiment, context.cluster, context.clock, **how)
        if same():
            break
        context.say("    a node was replaced meanwhile: they are proved again")
    for check in findings:
        if check.state is State.WARNING:
            context.say(f"    warning: {check.check}, {check.line()}")
    context.say(f"    {count_text(findings)}")
    if bad := failed(findings):
        raise UnprovenError(*(replace(check, where=f"verify {check.check}, {check.where}") for check in bad))


def compile_arms(context: Context) -> None:
    """All missing artifacts, and what the compiler set differently than in the baseline's."""
    _tags(context, experiment_resources.free, "is used again by an arm: kept")
    compile_missing(context, context.experiment.arms)
    for arm in _treated(context, context.experiment.arms):
        try:
            _compare(context, arm)
        except Refusal as error:  # no run ends because a comparison could not be written
            context.say(f"    {arm.name}: its engine is not compared with the baseline's: {error}")
    _tags(
        context, experiment_resources.mark, "is not used by any arm: the bucket's lifecycle rule deletes it"
    )


def compile_missing(context: Context, arms: Sequence[Arm]) -> None:
    """The missing artifacts of some arms, as many at once as the nodes hold with their share of CPU and memory; the next begins when
    one ends, so no Job's own deadline runs while it waits. One failure does not stop the others: what they compile is kept, and
    all failures are reported together."""
    experiment, aws, jobs = context.experiment, context.aws, to_create(context, "compile")
    missing = experiment_resources.missing_artifacts(experiment, aws, arms)
    chosen = [jobs[compile_job(arm)] for arm in missing]
    waiting = {str(job["metadata"]["name"]): job for job in chosen}
    failures, at_once = dict[str, StepError](), context.plan.compilations_at_once
    created: dict[str, int] = {}
    context.wait(
        lambda: _compiling(context, waiting, created, failures, at_once),
        patience_s=(compile_deadline_s(experiment) + 300) * -(-max(1, len(waiting)) // at_once),
        remedy=f"read the logs of its Jobs (./trnspec kubectl {context.experiment.file} logs job/NAME), then run this again: finished artifacts are kept",
    )
    if failures:
        first, kept = next(iter(failures.values())), len(waiting) - len(failures)
        more = f" ({len(failures)} failed, {kept} artifacts are kept)" if len(failures) > 1 else ""
        raise StepError(f"{first}{more}")
    for arm in experiment_resources.missing_artifacts(experiment, aws, missing):
        raise StepError(
            f"arm {arm.name}: the Job is complete and the bucket has no marker with key {artifact_key(arm)}; "
            "run this again, or look into the bucket of artifacts"
        )


def _tags(context: Context, act: Callable[[Experiment, Aws], list[str]], what: str) -> None:
    """Tidying up; a run does not end because of it."""
    try:
        for key in act(context.experiment, context.aws):
            context.say(f"    artifact {key}: {what}")
    except Refusal as error:
        context.say(f"    artifacts are not tidied up: {error}")


def _compiling(
    context: Context,
    waiting: dict[str, kubernetes.Object],
    created: dict[str, int],
    failures: dict[str, StepError],
    at_once: int,
) -> str | None:
    """What the running Jobs do, and how many wait for their turn; those whose turn it is are created. Kubernetes gives a Job another
    pod where its node goes away; one that failed of that is created again: `created` has how many nodes were replaced before."""
    if (waits := trn2_nodes.missing(context)) is not None:
        return waits
    doing: list[str] = []
    for name, job in waiting.items():
        if name in failures or (name not in created and len(doing) == at_once):
            continue
        replaced = len(context.state.node_changes)
        if name not in created:
            create(context, job, ended=ENDED)
            created[name] = replaced
        try:
            if (one := job_progress(context, name)) is not None:
                doing.append(one)
        except StepError as error:
            if created[name] == replaced:
                failures[name] = error
                continue
            create(context, job)
            created[name] = replaced
            doing.append(f"job {name}: was cut with its node, and is created again")
    left = len(waiting.keys() - created)
    return "; ".join([*doing, *([f"{left} wait for their turn"] if left else [])]) or None


def _compare(context: Context, arm: Arm) -> None:
    """Store with an artifact what the compiler set differently than in the baseline's.

    A compile Job stores the comparison itself where the baseline was compiled before it; arms compile at once, so often it
    was not, or the artifact was made for another baseline. Then it is made here, from what both compilers saved.
    """
    base = context.experiment.baseline_of(arm)
    path, baseline = artifact_path(arm), artifact_path(base)
    address = f"s3://{context.bucket('artifacts')}/{baseline}"
    stored = _saved(context, f"{path}/{DIFFERENCES}")
    if stored is not None and stored.get("compared") and stored.get("baseline") == address:
        return
    ours, theirs = (_saved(context, f"{folder}/{CONFIGURATION}") for folder in (path, baseline))
    if ours is None:
        return  # a runtime whose compiler saves none; the report says that nothing was compared
    text = comparison(address, theirs, ours, declared_keys(base, arm))
    where = {"Bucket": context.bucket("artifacts"), "Key": f"{path}/{DIFFERENCES}"}
    context.aws.client("s3").put_object(**where, Body=text.encode())
    if theirs is not None:
        beyond = count(sum(not entry["declared"] for entry in json.loads(text)["differences"]), "value")
        context.say(f"    {arm.name}: its engine differs from the baseline's in {beyond} beyond speculation")


def comparisons(context: Context, arms: Sequence[Arm]) -> dict[str, bytes]:
    """What is known of how the engines of some arms differ from the baseline's, and of graphs that a server compiled itself, by arm."""
    found, treated = {}, _treated(context, arms)
    for arm in arms:
        stored = _saved(context, f"{artifact_path(arm)}/{DIFFERENCES}") if arm in treated else None
        made = context.state.compiled_at_serving.get(arm.name, 0)
        if stored is not None or made:
            known = (stored or {"baseline": "", "compared": False}) | (
                {COMPILED_AT_SERVING: made} if made else {}
            )
            found[arm.name] = json.dumps(known, indent=1, sort_keys=True).encode() + b"\n"
    return found


def _saved(context: Context, key: str) -> dict[str, Any] | None:
    return experiment_resources.marker(context.experiment, context.aws, "artifacts", key)


def _treated(context: Context, arms: Sequence[Arm]) -> list[Arm]:
    base_of = context.experiment.baseline_of
    return [arm for arm in arms if artifact_path(arm) != artifact_path(base_of(arm))]
