"""Steps that measure: raise a round of arms, load them, ask them questions, bring the answers home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmark.analyse.beside import ANSWERS, ENGINES
from experiment.finding import Refusal
from experiment.naming import BENCHMARK_NAME, LMEVAL_CHECK, LMEVAL_NAME, RESULTS_PREFIX, bucket
from experiment.placement import rounds
from operations.cloud.cloudformation import deploy_command
from operations.cloud.kubernetes import pods_of, replicas, trouble
from operations.running import job_control, preparing, round_plan
from operations.running.context import StepError
from store.bucket import Incomplete, inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment import Arm
    from operations.running.context import Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiment import Arm, Experiment
    from operations.running.context import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

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
    job = job_control.from_cron_job(context, BENCHMARK_NAME, name)
    round_plan.provide(context, job)
    if len(arms) < len(context.experiment.served_arms):
        round_plan.restrict(context, job, arms)
    job_control.release(context, job)
    context.wait(
        lambda: under_load(context, name, arms),
        patience_s=BENCHMARK_S,
        remedy="read its log (scripts/kubectl logs); what is recorded is kept, run this again to go on",
    )


def under_load(context: Context, name: str, arms: Sequence[Arm]) -> str | None:
    """What a Job that loads arms still does. Raises `StepError` when it failed, or an arm under it did."""
    told = job_control.progress(context, name)
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
    deployed = job_control.deployed(context)
    job_control.make_way(context, deployed, "batch")
    found = job_control.batches(deployed)
    for job in found:
        job_control.release(context, job)
    for job in found:
        context.wait(
            lambda name=str(job["metadata"]["name"]): _batch(context, name),  # type: ignore[misc] # mypy cannot see a default argument in a lambda
            patience_s=BENCHMARK_S,
            remedy="read its log (scripts/kubectl logs), then run this again",
        )


def _batch(context: Context, name: str) -> str | None:
    told = job_control.progress(context, name)
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


PREFIX = "quality-"
"""Of a round's number, under which its answers are remembered."""


def check_quality(context: Context, number: int, arms: Sequence[Arm]) -> None:
    """lm-eval against those arms of a round that no earlier round asked."""
    name = f"{LMEVAL_NAME}-{context.state.id}-{number}"
    job = job_control.from_cron_job(context, LMEVAL_NAME, name)
    restrict(context.experiment, job["spec"]["template"]["spec"], arms)
    job_control.release(context, job)
    context.wait(
        lambda: under_load(context, name, arms),
        patience_s=BENCHMARK_S,
        remedy="read its log (scripts/kubectl logs), then run this again",
    )
    prefix = f"{RESULTS_PREFIX}lmeval-{name}/"
    context.save(results={**context.state.results, f"{PREFIX}{number}": prefix})


def restrict(experiment: Experiment, pod: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Keep the containers that ask these arms: the others do not stand.

    Raises `StepError` when one of them is never asked, because the cluster has an older check.
    """
    wanted = {f"{LMEVAL_CHECK}{arm.name}" for arm in arms}
    kept = [one for one in pod.get("initContainers", ()) if one["name"] in wanted]
    if missing := wanted - {one["name"] for one in kept}:
        raise StepError(
            f"cronjob {LMEVAL_NAME}: has no container {', '.join(sorted(missing))}; run make manifests and deploy the "
            f"workloads ({deploy_command(experiment.name)})"
        )
    others = [one for one in pod["initContainers"] if not one["name"].startswith(LMEVAL_CHECK)]
    pod["initContainers"] = [*others, *kept]


def bring_home(context: Context) -> None:
    """Each round into a folder: its records, its arms' answers to gsm8k, and how their engines differ."""
    measured = dict(enumerate(rounds(context.experiment), start=1))
    for number, arms in measured.items():
        prefix = context.state.results.get(str(number))
        if prefix is None:
            raise StepError(
                f"run {context.state.id}: its state does not say where round {number} is; run a new one"
            )
        folder = context.out if len(measured) == 1 else context.out / f"round-{number}"
        count = _bring(context, prefix, folder)
        if not count:
            raise StepError(
                f"s3://{_bucket(context)}/{prefix}: is empty; read scripts/kubectl logs of the benchmark's Job"
            )
        context.say(f"    {count} files in {folder}")
        _beside(context, folder, arms)
        if context.report is not None:
            context.report(folder)


def _beside(context: Context, folder: Path, arms: Sequence[Arm]) -> None:
    """An arm is asked once; the baseline's answers are compared with in every round."""
    names = {arm.name for arm in arms}
    for number, prefix in context.state.results.items():
        if number.startswith(PREFIX):
            _bring(
                context,
                prefix,
                folder / ANSWERS,
                wanted=lambda file: "/" not in file or file.split("/")[0] in names,
            )
    for name, content in preparing.comparisons(context, arms).items():
        _write(content, folder / ENGINES / f"{name}.json")


def _bring(
    context: Context, prefix: str, folder: Path, *, wanted: Callable[[str], bool] = lambda _file: True
) -> int:
    """Files below a prefix, as many as were written."""
    name, s3, count = _bucket(context), context.aws.client("s3"), 0
    for entry in s3.every("list_objects_v2", "Contents", Bucket=name, Prefix=prefix):
        file = entry["Key"].removeprefix(prefix)
        if entry["Key"].endswith("/") or not wanted(file):
            continue  # the first is a folder, as the console of S3 makes one
        _write(
            s3.get_object(Bucket=name, Key=entry["Key"])["Body"].read(),
            _target(folder, file, f"s3://{name}/{prefix}"),
        )
        count += 1
    return count


def _target(folder: Path, file: str, where: str) -> Path:
    """Where an object goes. A pod chose its name: a file of results lies in the folder and is not a hidden one."""
    try:
        if any(step.startswith(".") for step in file.split("/")):
            raise Incomplete(f"{where}: {file!r} is not the name of a file of results; remove it there")
        return inside(folder, file, where)
    except Incomplete as error:
        raise StepError(f"{error}; then run this again") from None


def _bucket(context: Context) -> str:
    return bucket(context.experiment, "results", context.aws.account)


def _write(content: bytes, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as error:
        raise Refusal(f"{target}: cannot be written ({error.strerror}); choose another --out") from None
