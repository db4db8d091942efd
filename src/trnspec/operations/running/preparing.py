"""The steps before a measurement: weights, arguments, nodes, checks of the nodes, artifacts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from cdk8s_charts.image_probe import CANNOT_SAY, REFUSED
from cdk8s_charts.workloads.check_jobs import ARGUMENTS_DEADLINE_S
from trnspec.core.findings import Refusal, State
from trnspec.core.words import count
from trnspec.experiment import Arm, Experiment
from trnspec.experiment.compilation import artifact_key, declared_keys
from trnspec.experiment.cost import compile_deadline_s, node_price
from trnspec.experiment.naming import artifact_path, compile_job, fetch_job, weights_path
from trnspec.experiment.placement import compilations_at_once
from trnspec.operations.cloud import experiment_resources, kubernetes, nodegroup
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.cloud.clock import stamp
from trnspec.operations.running import trn2_nodes
from trnspec.operations.running.active_run import (
    ENDED,
    ActiveRun,
    ImageError,
    StepError,
    UnprovenError,
    create,
    job_progress,
    jobs_to_create,
    wait_for,
)
from trnspec.operations.verify import count_text, failed
from trnspec.store.artifact import CONFIGURATION, DIFFERENCES, comparison

FETCH_S = 3 * 3600


def check_arguments(run: ActiveRun) -> None:
    """Ask every image whether it accepts the arguments and draft heads of its arms, before a Trn2 node is paid for.

    Raises `StepError` with the first refusal, and for an image that cannot be pulled. If an image cannot be asked without a device,
    that is a warning: the compile Job asks it on the node.
    """
    if run.verify is None:
        run.say("    skipped: no image is asked about arguments")
        return
    jobs = jobs_to_create(run, "arguments").values()
    for job in jobs:
        create(run, job)
    for job in jobs:
        name, image = str(job["metadata"]["name"]), kubernetes.pod_containers(job)[0]["image"]
        try:
            remedy = f"./trnspec kubectl {run.experiment.file} describe job {name}"
            wait_for(run, name, patience_s=ARGUMENTS_DEADLINE_S + 300, remedy=remedy)
            run.say(f"    {image}: accepts the server arguments and draft heads of its arms")
        except ImageError:
            raise
        except StepError as error:
            _refuse(run, name, image)
            parts = [line for line in _printed(run, name, CANNOT_SAY) if line.keys() == {"part", "why"}]
            why = "; ".join(f"{one['part']}: {one['why']}" for one in parts) or str(error)
            later = "compiling will ask it on the node"
            run.say(f"    warning: {image}: cannot be asked here ({why}); {later}")


def _refuse(run: ActiveRun, name: str, image: str) -> None:
    """Raise `StepError` if the pod of the Job printed that an argument is refused."""
    refused = [line for line in _printed(run, name, REFUSED) if line.keys() == {"arm", "key", "why"}]
    if not refused:
        return
    first, more = refused[0], len(refused) - 1
    rest = f" ({more} more: {run.logs_command(name)})" if more else ""
    raise StepError(
        f"arm {first['arm']}: {image} refuses {first['key']}: {first['why']}{rest}; change it in the experiment, render the "
        f"manifests (./trnspec render {run.experiment.file}), review and deploy, or run this with --skip-verify where the image is wrong"
    )


def _printed(run: ActiveRun, name: str, code: int) -> Iterator[dict[str, Any]]:
    """Yield the JSON that the pods of a Job printed, if they ended with this exit code."""
    for pod in kubernetes.pods_of(run.cluster.list("pods"), name):
        ended = [status.get("state", {}).get("terminated") for status in kubernetes.container_statuses(pod)]
        if code in [state["exitCode"] for state in ended if state]:
            yield from kubernetes.json_lines(run.cluster.logs(pod["metadata"]["name"], lines=500))


def fetch_weights(run: ActiveRun) -> None:
    """Fetch every model into the bucket of checkpoints, before a Trn2 node starts."""
    experiment, jobs = run.experiment, jobs_to_create(run, "fetch")
    missing = [
        one for one in experiment.weights if not experiment_resources.has_weights(experiment, run.aws, one)
    ]
    created = [create(run, jobs[fetch_job(weights)], ended=ENDED) for weights in missing]
    for name in dict.fromkeys(created):
        remedy = f"read its log ({run.logs_command(name)}), then run this again: it goes on where it stopped"
        wait_for(run, name, patience_s=FETCH_S, remedy=remedy)
    for weights in missing:
        if not experiment_resources.has_weights(experiment, run.aws, weights):
            raise StepError(
                f"weights {weights.model.name}: the Job is complete and the bucket has no marker for {weights_path(weights)}; "
                "run this again, or look into the bucket of checkpoints"
            )


def start_nodes(run: ActiveRun) -> None:
    """Start the nodes of the largest round, and wait for them as long as `--wait` says."""
    trn2_nodes.retry_until_capacity(run, lambda: _ask_for_nodes(run))


def _ask_for_nodes(run: ActiveRun) -> None:
    """Set the schedule that ends the nodes, then start them."""
    experiment, aws, wanted = run.experiment, run.aws, run.experiment.nodes
    group, now = nodegroup.read(experiment, aws), run.clock.now()
    nodegroup.check_maximum(experiment, wanted)
    trn2_nodes.refuse_price(run)
    ends: dict[str, Any] = {"hours": run.plan.hours, "needs_h": run.needs_h}
    at = nodegroup.schedule_off(experiment, aws, now=now, group=group, **ends)
    # Stored first, so that a later run knows of the nodes even if this process is killed.
    trn2_nodes.record_nodes(run, max(wanted, group.desired), off_at=stamp(at))
    price = node_price(experiment)
    usd = f"${wanted * price.usd_per_hour:.2f} an hour ({price.quoted})"
    run.say(f"    {wanted} x {experiment.instance.name} for {usd}, until {stamp(at)} at the latest")
    if group.desired < wanted:
        nodegroup.set_size(experiment, aws, nodes=wanted, group=group)
    trn2_nodes.wait_for_nodes(run)


def verify_nodes(run: ActiveRun) -> None:
    """Check the nodes before hours of compilation depend on them."""
    if run.verify is None:
        run.say("    skipped: the nodes are not checked")
        return
    how: dict[str, Any] = {"jobs": run.jobs("verify"), "alive": run.renew}
    how["tell"] = lambda line: run.say(f"    {line}")
    while True:
        trn2_nodes.wait_for_nodes(run)
        same = trn2_nodes.nodes_unchanged(run)
        findings = run.verify(run.experiment, run.cluster, run.clock, **how)
        if same():
            break
        run.say("    a node was replaced meanwhile: the nodes are checked again")
    for check in findings:
        if check.state is State.WARNING:
            run.say(f"    warning: {check.check}, {check.line()}")
    run.say(f"    {count_text(findings)}")
    if bad := failed(findings):
        raise UnprovenError(*(replace(check, where=f"verify {check.check}, {check.where}") for check in bad))


def compile_arms(run: ActiveRun) -> None:
    """Compile all missing artifacts, and compare each engine with the baseline's."""
    _tags(run, experiment_resources.free, "is used again by an arm: kept")
    compile_missing(run, run.experiment.arms)
    for arm in treated(run, run.experiment.arms):
        try:
            _compare(run, arm)
        except Refusal as error:  # a run does not end because of a comparison
            run.say(f"    {arm.name}: its engine is not compared with the baseline's: {error}")
    _tags(run, experiment_resources.mark, "is not used by any arm: the bucket's lifecycle rule deletes it")


def compile_missing(run: ActiveRun, arms: Sequence[Arm]) -> None:
    """Compile the missing artifacts of some arms, as many at once as fit on the nodes. A Job is created when its turn comes, so its
    deadline does not run while it waits. After a failure the other compilations continue."""
    experiment, aws, jobs = run.experiment, run.aws, jobs_to_create(run, "compile")
    missing = experiment_resources.missing_artifacts(experiment, aws, arms)
    chosen = [jobs[compile_job(arm)] for arm in missing]
    waiting = {str(job["metadata"]["name"]): job for job in chosen}
    failures, created = dict[str, StepError](), dict[str, int]()
    turns = -(-max(1, len(waiting)) // compilations_at_once(experiment))
    run.wait(
        lambda: _compiling(run, waiting, created, failures),
        patience_s=(compile_deadline_s(experiment) + 300) * turns,
        remedy=f"read the logs of its Jobs (./trnspec kubectl {run.experiment.file} logs job/NAME), then run this again: finished artifacts are kept",
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


def _tags(run: ActiveRun, act: Callable[[Experiment, Aws], list[str]], what: str) -> None:
    """Tag or untag artifacts. A run does not end if that fails."""
    try:
        for key in act(run.experiment, run.aws):
            run.say(f"    artifact {key}: {what}")
    except Refusal as error:
        run.say(f"    artifacts are not tidied up: {error}")


def _compiling(
    run: ActiveRun,
    waiting: dict[str, kubernetes.Object],
    created: dict[str, int],
    failures: dict[str, StepError],
) -> str | None:
    """Create the Jobs whose turn it is; returns what all of them do. A Job that failed after a node was replaced is created again:
    `created` has the number of replaced nodes at its creation."""
    at_once = compilations_at_once(run.experiment)
    if (waits := trn2_nodes.missing(run)) is not None:
        return waits
    doing: list[str] = []
    for name, job in waiting.items():
        if name in failures or (name not in created and len(doing) == at_once):
            continue
        replaced = len(run.state.node_changes)
        if name not in created:
            create(run, job, ended=ENDED)
            created[name] = replaced
        try:
            if (one := job_progress(run, name)) is not None:
                doing.append(one)
        except StepError as error:
            if created[name] == replaced:
                failures[name] = error
                continue
            create(run, job)
            created[name] = replaced
            doing.append(f"job {name}: lost its node and is created again")
    left = len(waiting.keys() - created)
    return "; ".join([*doing, *([f"{left} wait for their turn"] if left else [])]) or None


def _compare(run: ActiveRun, arm: Arm) -> None:
    """Store with an artifact the differences between its engine and the baseline's.

    A compile Job stores them itself only if the baseline was compiled before, so they are often made here.
    """
    base = run.experiment.baseline_of(arm)
    path, baseline = artifact_path(arm), artifact_path(base)
    address = f"s3://{run.bucket('artifacts')}/{baseline}"
    stored = saved(run, f"{path}/{DIFFERENCES}")
    if stored is not None and stored.get("compared") and stored.get("baseline") == address:
        return
    ours, theirs = (saved(run, f"{folder}/{CONFIGURATION}") for folder in (path, baseline))
    if ours is None:
        return  # a runtime whose compiler saves none; the report says that nothing was compared
    text = comparison(address, theirs, ours, declared_keys(base, arm))
    where = {"Bucket": run.bucket("artifacts"), "Key": f"{path}/{DIFFERENCES}"}
    run.aws.client("s3").put_object(**where, Body=text.encode())
    if theirs is not None:
        beyond = count(sum(not entry["declared"] for entry in json.loads(text)["differences"]), "value")
        differs = f"differs from the baseline's in {beyond} besides speculation (see the report)"
        run.say(f"    {arm.name}: its engine {differs}")


def saved(run: ActiveRun, key: str) -> dict[str, Any] | None:
    return experiment_resources.marker(run.experiment, run.aws, "artifacts", key)


def treated(run: ActiveRun, arms: Sequence[Arm]) -> list[Arm]:
    base_of = run.experiment.baseline_of
    return [arm for arm in arms if artifact_path(arm) != artifact_path(base_of(arm))]
