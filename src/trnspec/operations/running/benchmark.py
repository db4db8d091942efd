"""Load the arms of a round with a Job, watch their servers meanwhile, and ask the questions of gsm8k."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cdk8s_charts.manifests import content_suffix
from cdk8s_charts.workloads.benchmark_pod import plan_object
from trnspec.benchmark import NODES_VARIABLE
from trnspec.benchmark.plan import from_dict
from trnspec.core.findings import Refusal
from trnspec.experiment import Arm, naming
from trnspec.experiment.compilation import artifact_key
from trnspec.experiment.placement import ASKED_AT_ONCE
from trnspec.operations.cloud import experiment_resources, kubernetes
from trnspec.operations.cloud.pod_trouble import trouble
from trnspec.operations.running import arm_servers, results, trn2_nodes
from trnspec.operations.running.active_run import ActiveRun, StepError, create, job_of_run, remove, wait_for
from trnspec.operations.running.state import QUALITY

BENCHMARK_S = 12 * 3600
_NOTICE_S = 180
"""A spot server may end before its node disappears: EC2 gives a notice of two minutes
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html)."""
_NO_ROUNDS = (f"{naming.RESULTS_PREFIX}unfinished/", f"{naming.RESULTS_PREFIX}lmeval-")
"""Folders that belong to no round: unfinished results and answers to gsm8k."""
PLAN = "plan"
"""Volume with the plan: a ConfigMap, or a folder that an init container of this name fills from S3."""


def measure(run: ActiveRun, number: int, arms: Sequence[Arm]) -> None:
    """Load a round with one Job. Its results are the folder that appears in the bucket meanwhile."""
    state, key = run.state, str(number)
    if key in state.results:
        return
    known = set(state.results.values())
    if key not in state.before:
        run.save(before={**state.before, key: sorted(stored_runs(run) - known)})
    name = results.load_job(run, number)

    def made() -> dict[str, Any]:
        job = job_of_run(run, "load", name)
        provide_plan(run, job, arms)
        set_nodes_variable(run, job, arms)
        return job

    remedy = f"read its log ({run.logs_command(name)}); what is recorded is kept, run this again to go on"
    run_load_job(run, made, arms, again=lambda: arm_servers.raise_arms(run, arms), remedy=remedy)
    new = sorted(stored_runs(run) - set(run.state.before[key]) - known)
    if not new:
        why = "its Job is complete and nothing new is in the bucket of results"
        raise Refusal(f"benchmark: {why}; read {run.logs_command(name)}")
    run.save(results={**run.state.results, key: new[-1]})


def stored_runs(run: ActiveRun) -> set[str]:
    """Return the folders of measured requests in the bucket of results."""
    where = {"Bucket": run.bucket("results"), "Prefix": naming.RESULTS_PREFIX, "Delimiter": "/"}
    found = run.aws.client("s3").paginate("list_objects_v2", "CommonPrefixes", **where)
    return {entry["Prefix"] for entry in found if not entry["Prefix"].startswith(_NO_ROUNDS)}


def provide_plan(run: ActiveRun, job: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Give the Job a plan of `arms` only, if the deployed plan has more arms.

    Raises `StepError` if no plan is deployed.
    """
    names = [arm.name for arm in arms]
    partly = len(arms) < len(run.experiment.arms)
    volumes = job["spec"]["template"]["spec"].get("volumes", ())
    mounted = [volume["configMap"] for volume in volumes if volume["name"] == PLAN and "configMap" in volume]
    containers: list[Any] = kubernetes.pod_containers(job)
    fetching = [container for container in containers if container["name"] == PLAN]
    if fetching:
        fetching[0]["args"] = _plan_in_bucket(run, fetching[0]["args"], names if partly else None)
        return
    found = run.need("configmap", mounted[0]["name"])
    if not partly:
        return
    made = f"{job['metadata']['name']}-plan"
    metadata = {"name": made, "namespace": job["metadata"]["namespace"]}
    data = {naming.PLAN_FILE: _reduced_plan(found["data"][naming.PLAN_FILE], names)}
    with suppress(kubernetes.ConflictError):  # it is the same for the same round of the same run
        run.cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    mounted[0]["name"] = made


def _reduced_plan(text: str | bytes, names: Sequence[str]) -> str:
    return json.dumps(from_dict(json.loads(text)).with_arms(names).to_dict(exclude_unset=True))


def _plan_in_bucket(run: ActiveRun, arguments: Sequence[str], names: Sequence[str] | None) -> list[str]:
    """Store the plan, reduced to arms of these names, in the bucket of results; returns the arguments that fetch it."""
    store = run.bucket("results")
    key, content = plan_object(run.experiment) or ("", b"")
    address, replaced = f"s3://{store}/{key}", dict[str, str]()
    if names is not None:
        content = _reduced_plan(content, names).encode()
        digest = hashlib.sha256(content).hexdigest()
        key = f"{key.rpartition('/')[0]}/{digest}.json"
        hashed = arguments[list(arguments).index("--sha256") + 1]
        replaced = {address: f"s3://{store}/{key}", hashed: digest}
    s3 = run.aws.client("s3")
    s3.put_object(Bucket=store, Key=key, Body=content, ContentType="application/json")
    return [replaced.get(argument, argument) for argument in arguments]


def set_nodes_variable(run: ActiveRun, job: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Tell the client which node serves each arm. It does not pool requests over a replaced node."""
    pods = run.cluster.list("pods")
    served = {arm.name: node for arm in arms if (node := kubernetes.node_of(pods, arm.name))}
    # A node has the name of its address, which another node may get later. So the instance id is used.
    ids = {
        node["metadata"]["name"]: str(node.get("spec", {}).get("providerID", "")).rpartition("/")[2]
        for node in run.cluster.list("nodes")
    }
    served = {arm: ids.get(node) or node for arm, node in served.items()}
    told = {"name": NODES_VARIABLE, "value": " ".join(f"{arm}={node}" for arm, node in served.items())}
    containers: list[Any] = [*kubernetes.pod_containers(job)]
    for container in containers if served else ():
        if container["name"] in ("run", "repeat"):
            container["env"] = [*container.get("env", ()), told]


def run_load_job(
    run: ActiveRun,
    made: Callable[[], dict[str, Any]],
    arms: Sequence[Arm],
    *,
    again: Callable[[], None],
    remedy: str,
) -> None:
    """Create a Job that loads these arms, and wait until it is complete.

    If a node is taken away, the Job is removed. `again` starts the arms on the new node, then the Job is created again.
    Raises `StepError` and removes the Job if a server ends or someone changes its replicas.
    """
    while True:
        job = made()
        name, same = str(job["metadata"]["name"]), trn2_nodes.nodes_unchanged(run)
        _make_room(run, job)
        create(run, job)
        patience_s = max(BENCHMARK_S, job["spec"].get("activeDeadlineSeconds", 0))
        look = _watch(run, name, arms, same)
        try:
            wait_for(run, name, patience_s=patience_s, remedy=remedy, still=look)
            # The servers may have ended between the last look and the end of the Job.
            run.wait(look, patience_s=2 * _NOTICE_S, remedy=remedy)
            return
        except _NodeGone:
            remove(run, name)
        again()


class _NodeGone(Exception):
    """The node of the servers was taken away."""


def _watch(
    run: ActiveRun, job: str, arms: Sequence[Arm], same: Callable[[], bool]
) -> Callable[[], str | None]:
    """Return a function that checks the servers under load; it returns None if all of them answer.

    It raises `_NodeGone` if the nodes have changed. It removes the Job and raises `StepError` if a server has ended; on spot only
    after `_NOTICE_S`, because its node may be about to end."""
    # The questions are for some arms of a round; the other arms of that round also run.
    beside = next(group for group in run.experiment.rounds if all(arm in group for arm in arms))
    dead_since: float | None = None

    def dead() -> str | None:
        nonlocal dead_since
        pods, up = run.cluster.list("pods"), arm_servers.ready(run, beside)
        troubles = {arm.name: trouble(run.experiment, pods, arm.name) for arm in arms if not up[arm.name]}
        line = next((f"arm {arm} died under load: {why}" for arm, why in troubles.items() if why), None)
        now = run.clock.ticking()
        dead_since = None if line is None else now if dead_since is None else dead_since
        spot = run.experiment.cluster.capacity.kind == "spot"
        if dead_since is not None and (not spot or now - dead_since >= _NOTICE_S):
            raise StepError(f"{line}; what was measured is kept, run this again to go on")
        return line

    def look() -> str | None:
        try:
            if not same():
                raise _NodeGone
            return dead()
        except StepError:
            run.cluster.delete("job", job)
            raise

    return look


def _make_room(run: ActiveRun, job: kubernetes.Object) -> None:
    """Remove the Job of an interrupted run if its nodes have changed. Wait until its pods have ended: they write into one folder."""
    name = str(job["metadata"]["name"])
    found = run.cluster.get("job", name)
    active = kubernetes.job_state(found) == "active"
    if found is None or (active and _nodes_variable(found) != _nodes_variable(job)):
        remove(run, name)


def _nodes_variable(job: kubernetes.Object) -> str:
    said = (item for container in kubernetes.pod_containers(job) for item in container.get("env", ()))
    return next((str(item.get("value", "")) for item in said if item["name"] == NODES_VARIABLE), "")


def check_quality(run: ActiveRun, number: int, arms: Sequence[Arm]) -> None:
    """Ask the arms of a round the questions of gsm8k, unless an earlier round or run has their answers. Make the report without
    gsm8k first, so that a user does not have to wait for it."""
    left = [arm for arm in arms if not _take_kept(run, arm)]
    if left:
        try:
            results.fetch_round(run, number, run.experiment.rounds[number - 1])
        except Refusal as error:
            run.say(f"    the report comes after the questions: {error}")
    for first in range(0, len(left), ASKED_AT_ONCE):
        _ask(run, f"{number}-{first}", left[first : first + ASKED_AT_ONCE])


def _ask(run: ActiveRun, part: str, arms: Sequence[Arm]) -> None:
    name = f"{naming.LMEVAL_NAME}-{run.state.id}-{part}"

    def made() -> dict[str, Any]:
        job = job_of_run(run, "quality", name)
        restrict(job["spec"]["template"]["spec"], arms)
        return job

    remedy = f"read its log ({run.logs_command(name)}), then run this again"
    run_load_job(run, made, arms, again=lambda: arm_servers.raise_arms(run, arms), remedy=remedy)
    prefix = f"{naming.RESULTS_PREFIX}lmeval-{name}/"
    for arm in arms:
        if not _has_answers(run, prefix, arm):
            raise StepError(
                f"job {name}: is complete and s3://{run.bucket('results')}/{prefix} has no answers of {arm.name}; remove the Job "
                f"(./trnspec kubectl {run.experiment.file} delete job {name}), then run this again"
            )
        where = {"Bucket": run.bucket("results"), "Key": _kept(run, arm)}
        run.aws.client("s3").put_object(**where, Body=json.dumps({"answers": prefix}).encode())
        run.save(results={**run.state.results, f"{QUALITY}{arm.name}": prefix})


def _take_kept(run: ActiveRun, arm: Arm) -> bool:
    """Return whether this run, or an earlier one with the same artifact, server and questions, has the answers of an arm."""
    if (key := f"{QUALITY}{arm.name}") in run.state.results:
        return True
    kept = experiment_resources.marker(run.experiment, run.aws, "results", _kept(run, arm)) or {}
    prefix = str(kept.get("answers", ""))
    if not prefix.startswith(_NO_ROUNDS) or not _has_answers(run, prefix, arm):
        return False
    run.say(f"    {arm.name}: uses the answers in {prefix}: artifact, server and questions are the same")
    run.save(results={**run.state.results, key: prefix})
    return True


def _kept(run: ActiveRun, arm: Arm) -> str:
    """Return the key of the object with the address of an arm's answers. It has the hashes of artifact, server and questions."""
    (job,) = run.jobs("quality")
    client = f"{naming.LMEVAL_CHECK}{arm.name}"
    asks = [item for item in kubernetes.pod_containers(job) if item["name"] == client]
    server = kubernetes.pod_containers(run.need("deployment", arm.name))
    return f"{naming.RESULTS_PREFIX}lmeval-kept/{artifact_key(arm)}-{content_suffix([asks, server])}.json"


def _has_answers(run: ActiveRun, prefix: str, arm: Arm) -> bool:
    where = {"Bucket": run.bucket("results"), "Prefix": f"{prefix}{arm.name}/"}
    entries = run.aws.client("s3").paginate("list_objects_v2", "Contents", **where)
    return any("/samples_" in entry["Key"] for entry in entries)


def restrict(pod: dict[str, Any], arms: Sequence[Arm]) -> None:
    """Keep only the containers that ask these arms."""
    wanted = {f"{naming.LMEVAL_CHECK}{arm.name}" for arm in arms}
    pod["containers"] = [item for item in pod["containers"] if item["name"] in wanted]
