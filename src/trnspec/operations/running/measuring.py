"""Steps that measure: raise a round of arms, load them with their plan, ask them questions, fetch the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cdk8s_charts.manifests import content_suffix
from cdk8s_charts.workloads.benchmark_pod import plan_object
from trnspec.benchmark.analyse.attachments import ANSWERS, ENGINES
from trnspec.benchmark.analyse.attachments import EXPECTED as EXPECTED_FILE
from trnspec.benchmark.plan import from_dict
from trnspec.core.findings import Refusal
from trnspec.core.words import count, listed
from trnspec.experiment import Arm, naming
from trnspec.experiment.compilation import artifact_key, native_arms
from trnspec.experiment.cost import start_budget_s
from trnspec.experiment.expected import file_text
from trnspec.experiment.placement import ASKED_AT_ONCE
from trnspec.operations.cloud import experiment_resources, kubernetes
from trnspec.operations.cloud.aws import Aws
from trnspec.operations.running import artifact_use, preparing, trn2_nodes
from trnspec.operations.running.context import Context, StepError, of_run, why_not_up
from trnspec.operations.running.under_load import ready, run_load_job, tell_nodes
from trnspec.store.bucket import Incomplete, inside

_COPY_S = 1800
"""What a pod may take before its server starts: the image and a copy of the artifact."""
_NO_ROUNDS = (
    f"{naming.RESULTS_PREFIX}unfinished/",
    f"{naming.RESULTS_PREFIX}lmeval-",
)
"""Folders that belong to no round: what a Job keeps while it measures, and quality checks."""
_QUALITY = "quality-"
"""With an arm's name the key of its answers in the state."""
PLAN = "plan"
"""Volume of the Job: a ConfigMap, or an empty folder that an init container of the same name fills from S3."""


def raise_arms(context: Context, arms: Sequence[Arm]) -> None:
    """The arms of a round to one replica each, every other to none, and wait until they answer. An artifact that a server cannot use is
    compiled once more."""
    trn2_nodes.wait_for_nodes(context)
    if experiment_resources.missing_artifacts(context.experiment, context.aws, arms):
        preparing.compile_missing(context, arms)  # one that no server could use, whose marker is removed
    set_replicas(context, arms)

    def loading() -> str | None:
        if (waits := trn2_nodes.missing(context)) is not None:
            return waits
        pods, up = context.cluster.list("pods"), ready(context, arms)
        waiting = [arm for arm in arms if not up[arm.name]]
        for arm in waiting:
            artifact_use.refuse_unusable(context, pods, arm)
        loads = {f"arm {arm.name} loads": arm.name for arm in waiting}
        whys = {line: why_not_up(context, line, name) for line, name in loads.items()}
        return "; ".join(f"{line}: {why}" if why else line for line, why in whys.items()) or None

    remedy = f"read ./trnspec kubectl {context.experiment.file} logs deployment/ARM, then run this again"
    try:
        context.wait(loading, patience_s=start_budget_s(context.experiment) + _COPY_S, remedy=remedy)
    except artifact_use.UnusableError as error:
        set_replicas(context)
        _until_gone(context, arms)
        artifact_use.drop(context, error)
        raise_arms(context, arms)
        return
    artifact_use.count_compiled(context, arms)


def _until_gone(context: Context, arms: Sequence[Arm]) -> None:
    """Wait for the pods of arms that were set to 0: they hold the devices that a compilation needs, and what they say is of the past."""

    def going() -> str | None:
        pods = context.cluster.list("pods")
        left = [arm.name for arm in arms if kubernetes.pods_of(pods, arm.name)]
        return f"{listed(left)}: ends" if left else None

    context.wait(
        going,
        patience_s=600,
        remedy=f"read ./trnspec kubectl {context.experiment.file} get pods, then run this again",
    )


def try_first(context: Context) -> None:
    """The first native arm alone, until it has answered: a server that does not start ends the run before the others are compiled.

    A server that is ready has answered one question, which its startup probe asks (`cdk8s_charts/workloads/serving.py`).
    """
    first, *others = native_arms(context.experiment)
    if not (left := experiment_resources.missing_artifacts(context.experiment, context.aws, others)):
        context.say("    skipped: every other native arm is compiled")
    else:
        context.say(f"    {count(len(left), 'native arm')} wait until {first.name} has answered")
        preparing.compile_missing(context, [first])
        raise_arms(context, [first])
        context.say(f"    {first.name}: started and answered")
    set_replicas(context)


def set_replicas(context: Context, arms: Sequence[Arm] = ()) -> None:
    for arm in context.experiment.arms:
        wanted = int(arm in arms)
        if kubernetes.replicas(context.need("deployment", arm.name))[0] != wanted:
            context.cluster.scale(arm.name, wanted)


def measure(context: Context, number: int, arms: Sequence[Arm]) -> None:
    """Load a round with one Job. Its folder of results is the one that appeared with its Job."""
    state, key = context.state, str(number)
    if key in state.results:
        return
    known = set(state.results.values())
    if key not in state.before:
        context.save(before={**state.before, key: sorted(stored_runs(context) - known)})
    name = _load_job(context, number)

    def made() -> dict[str, Any]:
        job = of_run(context, "load", name)
        provide_plan(context, job, arms)
        tell_nodes(context, job, arms)
        return job

    remedy = f"read its log ({context.logs_command(name)}); what is recorded is kept, run this again to go on"
    run_load_job(context, made, arms, again=lambda: raise_arms(context, arms), remedy=remedy)
    new = sorted(stored_runs(context) - set(context.state.before[key]) - known)
    if not new:
        raise Refusal(
            f"benchmark: its Job is complete and nothing new is in the bucket of results; read {context.logs_command(name)}"
        )
    context.save(results={**context.state.results, key: new[-1]})


def _load_job(context: Context, number: int) -> str:
    return f"{naming.BENCHMARK_NAME}-{context.state.id}-{number}"


def stored_runs(context: Context) -> set[str]:
    """Folders of measured requests in the bucket of results."""
    where = {"Bucket": context.bucket("results"), "Prefix": naming.RESULTS_PREFIX, "Delimiter": "/"}
    found = context.aws.client("s3").paginate("list_objects_v2", "CommonPrefixes", **where)
    return {entry["Prefix"] for entry in found if not entry["Prefix"].startswith(_NO_ROUNDS)}


def provide_plan(context: Context, job: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Let the Job read a plan of `arms`, where that is not the plan that it mounts.

    Raises `StepError` where that is not deployed.
    """
    names = [arm.name for arm in arms]
    partly = len(arms) < len(context.experiment.arms)
    volumes = job["spec"]["template"]["spec"].get("volumes", ())
    mounted = [volume["configMap"] for volume in volumes if volume["name"] == PLAN and "configMap" in volume]
    containers: list[Any] = kubernetes.pod_containers(job)
    fetching = [container for container in containers if container["name"] == PLAN]
    if fetching:
        fetching[0]["args"] = _plan_in_bucket(context, fetching[0]["args"], names if partly else None)
        return
    found = context.need("configmap", mounted[0]["name"])
    if not partly:
        return
    made = f"{job['metadata']['name']}-plan"
    metadata = {"name": made, "namespace": job["metadata"]["namespace"]}
    data = {naming.PLAN_FILE: _reduced_plan(found["data"][naming.PLAN_FILE], names)}
    with suppress(kubernetes.ConflictError):  # it is the same for the same round of the same run
        context.cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    mounted[0]["name"] = made


def _reduced_plan(text: str | bytes, names: Sequence[str]) -> str:
    return json.dumps(from_dict(json.loads(text)).with_arms(names).to_dict(exclude_unset=True))


def _plan_in_bucket(context: Context, arguments: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """The arguments that fetch the plan, or that of some arms; it is put into the bucket of results."""
    store = context.bucket("results")
    key, content = plan_object(context.experiment) or ("", b"")
    address, replaced = f"s3://{store}/{key}", dict[str, str]()
    if names is not None:
        content = _reduced_plan(content, names).encode()
        digest = hashlib.sha256(content).hexdigest()
        key = f"{key.rpartition('/')[0]}/{digest}.json"
        hashed = arguments[list(arguments).index("--sha256") + 1]
        replaced = {address: f"s3://{store}/{key}", hashed: digest}
    s3 = context.aws.client("s3")
    s3.put_object(Bucket=store, Key=key, Body=content, ContentType="application/json")
    return [replaced.get(argument, argument) for argument in arguments]


def check_quality(context: Context, number: int, arms: Sequence[Arm]) -> None:
    """lm-eval against those arms of a round that no earlier round asked, all at the same time. Answers of an earlier run are taken where
    nothing differs that could change them. The report without gsm8k comes first: what was measured is stored by now."""
    left = [arm for arm in arms if not _take_kept(context, arm)]
    if left:
        try:
            _bring_round(context, number, context.plan.rounds[number - 1])
        except Refusal as error:
            context.say(f"    the report comes after the questions: {error}")
    for first in range(0, len(left), ASKED_AT_ONCE):
        _ask(context, f"{number}-{first}", left[first : first + ASKED_AT_ONCE])


def _ask(context: Context, part: str, arms: Sequence[Arm]) -> None:
    name = f"{naming.LMEVAL_NAME}-{context.state.id}-{part}"

    def made() -> dict[str, Any]:
        job = of_run(context, "quality", name)
        restrict(job["spec"]["template"]["spec"], arms)
        return job

    run_load_job(
        context,
        made,
        arms,
        again=lambda: raise_arms(context, arms),
        remedy=f"read its log ({context.logs_command(name)}), then run this again",
    )
    prefix = f"{naming.RESULTS_PREFIX}lmeval-{name}/"
    for arm in arms:
        if not _has_answers(context, prefix, arm):
            raise StepError(
                f"job {name}: is complete and s3://{context.bucket('results')}/{prefix} has no answers of {arm.name}; remove the Job "
                f"(./trnspec kubectl {context.experiment.file} delete job {name}), then run this again"
            )
        where = {"Bucket": context.bucket("results"), "Key": _kept(context, arm)}
        context.aws.client("s3").put_object(**where, Body=json.dumps({"answers": prefix}).encode())
        context.save(results={**context.state.results, f"{_QUALITY}{arm.name}": prefix})


def _take_kept(context: Context, arm: Arm) -> bool:
    """Whether the answers of an arm are there, of this run or of an earlier one."""
    if (key := f"{_QUALITY}{arm.name}") in context.state.results:
        return True
    kept = experiment_resources.marker(context.experiment, context.aws, "results", _kept(context, arm)) or {}
    prefix = str(kept.get("answers", ""))
    if not prefix.startswith(_NO_ROUNDS) or not _has_answers(context, prefix, arm):
        return False
    context.say(
        f"    {arm.name}: artifact, questions and settings are those of {prefix}, whose answers are taken"
    )
    context.save(results={**context.state.results, key: prefix})
    return True


def _kept(context: Context, arm: Arm) -> str:
    """Key of the object that says where an arm's answers are: by its artifact, its server, and the client with its questions and settings."""
    (job,) = context.jobs("quality")
    client = f"{naming.LMEVAL_CHECK}{arm.name}"
    asks = [item for item in kubernetes.pod_containers(job) if item["name"] == client]
    server = kubernetes.pod_containers(context.need("deployment", arm.name))
    return f"{naming.RESULTS_PREFIX}lmeval-kept/{artifact_key(arm)}-{content_suffix([asks, server])}.json"


def _has_answers(context: Context, prefix: str, arm: Arm) -> bool:
    where = {"Bucket": context.bucket("results"), "Prefix": f"{prefix}{arm.name}/"}
    entries = context.aws.client("s3").paginate("list_objects_v2", "Contents", **where)
    return any("/samples_" in entry["Key"] for entry in entries)


def restrict(pod: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Keep the containers that ask these arms: the others are not up, or were asked before."""
    wanted = {f"{naming.LMEVAL_CHECK}{arm.name}" for arm in arms}
    pod["containers"] = [item for item in pod["containers"] if item["name"] in wanted]


def fetch_results(context: Context) -> None:
    """Each round into a folder: its records, its arms' answers to gsm8k, and how their engines differ; a report of all
    rounds together, where they have the same loads."""
    measured = context.plan.rounds
    for number, arms in enumerate(measured, start=1):
        if f"benchmark-{number}" not in context.plan.left_out:
            _bring_round(context, number, arms)
    if len(measured) > 1 and not context.plan.left_out:
        _fetch_beside(context, context.out, context.experiment.arms)
        context.report(context.out)


def _bring_round(context: Context, number: int, arms: Sequence[Arm]) -> None:
    """The results of one round, as far as they are stored, and its report."""
    if (prefix := context.state.results.get(str(number))) is None:
        raise StepError(
            f"run {context.state.id}: its state does not say where round {number} is; run a new one"
        )
    several = len(context.plan.rounds) > 1
    folder = context.out / f"round-{number}" if several else context.out
    if not (files := fetch(context.aws, context.bucket("results"), prefix, folder)):
        where = f"s3://{context.bucket('results')}/{prefix}"
        raise StepError(f"{where}: is empty; read {context.logs_command(_load_job(context, number))}")
    context.say(f"    {count(files, 'file')} in {folder}")
    _fetch_beside(context, folder, arms)
    context.report(folder)


def _fetch_beside(context: Context, folder: Path, arms: Sequence[Arm]) -> None:
    """An arm is asked once; the baseline's answers are compared with in every round."""
    for arm in arms:
        if prefix := context.state.results.get(f"{_QUALITY}{arm.name}"):
            fetch(context.aws, context.bucket("results"), prefix, folder / ANSWERS, of={arm.name})
    _write(file_text(context.experiment).encode(), folder / EXPECTED_FILE)
    for name, content in preparing.comparisons(context, arms).items():
        _write(content, folder / ENGINES / f"{name}.json")


def fetch(aws: Aws, name: str, prefix: str, folder: Path, *, of: Collection[str] | None = None) -> int:
    """Files below a prefix of the bucket of results, in folders of these names where they are given.

    Returns how many were written.
    """
    s3, written = aws.client("s3"), 0
    where = f"s3://{name}/{prefix}"
    for entry in s3.paginate("list_objects_v2", "Contents", Bucket=name, Prefix=prefix):
        file = entry["Key"].removeprefix(prefix)
        above, below, _ = file.partition("/")
        if entry["Key"].endswith("/") or (of is not None and below and above not in of):
            continue  # the first is a folder, as the console of S3 makes one
        try:  # a pod chose the name: a file of results is in the folder and is not hidden
            if any(step.startswith(".") for step in file.split("/")):
                raise Incomplete(f"{where}: {file!r} is not the name of a file of results; remove it there")
            target = inside(folder, file, where)
        except Incomplete as error:
            raise StepError(f"{error}; then run this again") from None
        _write(s3.content(Bucket=name, Key=entry["Key"])[0], target)
        written += 1
    return written


def _write(content: bytes, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as error:
        raise Refusal(f"{target}: cannot be written ({error.strerror}); choose another --out") from None
