"""Steps that measure: raise a round of arms, load them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiment.naming import BENCHMARK_NAME, RESULTS_PREFIX, bucket
from operations.cluster_view import pods_of, replicas, trouble
from operations.deploying import deploy_command
from operations.running import jobs, plans
from operations.running.context import StepError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment import Arm
    from operations.running.context import Context

LOAD_S = 3600
BENCHMARK_S = 12 * 3600
_BESIDE = (f"{RESULTS_PREFIX}unfinished/", f"{RESULTS_PREFIX}lmeval-")
"""Folders that belong to no round: what a Job keeps while it measures, and quality checks."""


def raise_arms(context: Context, arms: Sequence[Arm]) -> None:
    """The arms of a round to one replica each, every other to none, and wait until they answer."""
    context.need_nodes()
    wanted = {arm.name for arm in arms}
    for arm in context.experiment.served_arms:
        _set(context, arm.name, 1 if arm.name in wanted else 0)
    context.wait(
        lambda: _loading(context, arms),
        patience_s=LOAD_S,
        remedy="read scripts/kubectl logs deployment/<arm>, then run this again",
    )


def lower_arms(context: Context) -> None:
    """Every arm to 0 replicas."""
    for arm in context.experiment.served_arms:
        _set(context, arm.name, 0)


def _set(context: Context, name: str, count: int) -> None:
    found = context.cluster.get("deployment", name)
    if found is None:
        raise StepError(
            f"deployment {name}: none in the cluster; deploy the workloads "
            f"({deploy_command(context.experiment.name)})"
        )
    if replicas(found)[0] != count:
        context.cluster.scale(name, count)


def _loading(context: Context, arms: Sequence[Arm]) -> str | None:
    context.need_nodes()
    pods = context.cluster.list("pods")
    for arm in arms:
        _, ready = replicas(context.cluster.get("deployment", arm.name))
        if not ready:
            troubles = [told for pod in pods_of(pods, arm.name) if (told := trouble(pod))]
            return f"arm {arm.name} loads" + (f": {troubles[0]}" if troubles else "")
    return None


def load_arms(context: Context, number: int, arms: Sequence[Arm]) -> None:
    """One Job from the suspended CronJob; what it measures is in S3 when it is complete."""
    name = f"{BENCHMARK_NAME}-{context.state.id}-{number}"
    job = jobs.from_cron_job(context, BENCHMARK_NAME, name)
    plans.provide(context, job)
    if len(arms) < len(context.experiment.served_arms):
        plans.restrict(context, job, arms)
    jobs.release(context, job)
    context.wait(
        lambda: under_load(context, name, arms),
        patience_s=BENCHMARK_S,
        remedy="read its log (scripts/kubectl logs); what is recorded is kept, run this again to go on",
    )


def under_load(context: Context, name: str, arms: Sequence[Arm]) -> str | None:
    """What a Job that loads arms still does. Raises `StepError` when it failed, or an arm under it did."""
    told = jobs.progress(context, name)
    if told is None:
        return None
    context.need_nodes()
    pods = context.cluster.list("pods")
    for arm in arms:
        if replicas(context.cluster.get("deployment", arm.name))[1]:
            continue
        died = [why for pod in pods_of(pods, arm.name) if (why := trouble(pod))]
        if died:
            context.cluster.delete("job", name)  # it would go on asking a server that is not there
            raise StepError(
                f"arm {arm.name} died under load: {died[0]}; what was measured is kept, run this again to go on"
            )
    return told


def run_batches(context: Context) -> None:
    """The arms that no server can run, one Job each, on the devices that the served arms held."""
    lower_arms(context)
    deployed = jobs.deployed(context)
    jobs.make_way(context, deployed, "batch")
    found = jobs.batches(deployed)
    for job in found:
        jobs.release(context, job)
    for job in found:
        context.wait(
            lambda name=str(job["metadata"]["name"]): _batch(context, name),  # type: ignore[misc] # mypy cannot see a default argument in a lambda
            patience_s=BENCHMARK_S,
            remedy="read its log (scripts/kubectl logs), then run this again",
        )


def _batch(context: Context, name: str) -> str | None:
    told = jobs.progress(context, name)
    if told is not None:
        context.need_nodes()
    return told


def stored(context: Context) -> set[str]:
    """Folders of results in the bucket."""
    found = context.aws.client("s3").every(
        "list_objects_v2",
        "CommonPrefixes",
        Bucket=bucket(context.experiment, "results", context.aws.account),
        Prefix=RESULTS_PREFIX,
        Delimiter="/",
    )
    return {entry["Prefix"] for entry in found if not entry["Prefix"].startswith(_BESIDE)}
