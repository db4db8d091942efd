"""The servers of the arms: start them, wait until they answer, and compile an artifact again that a server cannot use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from cdk8s_charts.stores import UNUSABLE
from trnspec.core.findings import Refusal
from trnspec.core.words import count, listed
from trnspec.experiment import Arm
from trnspec.experiment.compilation import artifact_key, native_arms
from trnspec.experiment.cost import start_budget_s
from trnspec.experiment.naming import COMPILED_AT_SERVING, COMPLETE, artifact_path
from trnspec.operations.cloud import experiment_resources, kubernetes
from trnspec.operations.running import preparing, trn2_nodes
from trnspec.operations.running.active_run import ActiveRun, StepError, why_not_running

_COPY_S = 1800
"""Time for the image and the copy of the artifact, before a server starts."""
_REFUSALS = {"check-artifact": UNUSABLE, "copy-artifact": 1}
"""Exit codes of a server's init containers for an artifact with missing or damaged files."""


class UnusableError(StepError):
    """A server cannot use the artifact of its arm."""

    def __init__(self, arm: Arm, *lines: str) -> None:
        super().__init__(*lines)
        self.arm = arm


def raise_arms(run: ActiveRun, arms: Sequence[Arm]) -> None:
    """Set the arms of a round to 1 replica and all others to 0, and wait until they answer. An artifact that a server cannot use is
    compiled once more."""
    trn2_nodes.wait_for_nodes(run)
    if experiment_resources.missing_artifacts(run.experiment, run.aws, arms):
        preparing.compile_missing(run, arms)  # one that no server could use, whose marker is removed
    set_replicas(run, arms)

    def loading() -> str | None:
        if (waits := trn2_nodes.missing(run)) is not None:
            return waits
        pods, up = run.cluster.list("pods"), ready(run, arms)
        waiting = [arm for arm in arms if not up[arm.name]]
        for arm in waiting:
            refuse_unusable(run, pods, arm)
        lines = []
        for arm in waiting:
            why = why_not_running(run, line := f"arm {arm.name} starts", arm.name)
            lines.append(f"{line}: {why}" if why else line)
        return "; ".join(lines) or None

    def ending() -> str | None:
        pods = run.cluster.list("pods")
        left = [arm.name for arm in arms if kubernetes.pods_of(pods, arm.name)]
        return f"{listed(left)}: ends" if left else None

    remedy = f"read ./trnspec kubectl {run.experiment.file} logs deployment/ARM, then run this again"
    try:
        run.wait(loading, patience_s=start_budget_s(run.experiment) + _COPY_S, remedy=remedy)
    except UnusableError as error:
        set_replicas(run)
        # Their pods hold devices that a compilation needs.
        remedy = f"read ./trnspec kubectl {run.experiment.file} get pods, then run this again"
        run.wait(ending, patience_s=600, remedy=remedy)
        drop(run, error)
        raise_arms(run, arms)
        return
    count_compiled(run, arms)


def try_first(run: ActiveRun) -> None:
    """Compile and start the first native arm alone. If its server does not start, the run ends before other arms are compiled.

    A ready server has answered the question of its startup probe (`cdk8s_charts/workloads/serving.py`).
    """
    first, *others = native_arms(run.experiment)
    if not (left := experiment_resources.missing_artifacts(run.experiment, run.aws, others)):
        run.say("    skipped: every other native arm is compiled")
    else:
        run.say(f"    {count(len(left), 'native arm')} wait until {first.name} has answered")
        preparing.compile_missing(run, [first])
        raise_arms(run, [first])
        run.say(f"    {first.name}: started and answered")
    set_replicas(run)


def set_replicas(run: ActiveRun, arms: Sequence[Arm] = ()) -> None:
    for arm in run.experiment.arms:
        wanted = int(arm in arms)
        if kubernetes.replicas(run.need("deployment", arm.name))[0] != wanted:
            run.cluster.scale(arm.name, wanted)


def ready(run: ActiveRun, up: Sequence[Arm]) -> dict[str, int]:
    """Return the ready replicas by arm. Raises `StepError` if someone changed the replicas; a deployment sets them to 0."""
    deployments = run.cluster.list("deployments")
    found = {item["metadata"]["name"]: kubernetes.replicas(item) for item in deployments}
    for arm in run.experiment.arms:
        wanted, now = int(arm in up), found.get(arm.name, (0, 0))[0]
        if now != wanted:
            raise StepError(
                f"deployment {arm.name}: has {count(now, 'replica')}, and this run set {wanted}: a deployment or someone changed it; wait "
                "until that has ended, then run this again to go on"
            )
    return {name: ready for name, (_, ready) in found.items()}


def refuse_unusable(run: ActiveRun, pods: Sequence[kubernetes.Object], arm: Arm) -> None:
    """Raise `UnusableError` if a pod of the arm ended because of its artifact."""
    for pod in kubernetes.pods_of(pods, arm.name):
        for status in kubernetes.container_statuses(pod):
            states = (status.get("state", {}), status.get("lastState", {}))
            codes = [state["terminated"].get("exitCode") for state in states if "terminated" in state]
            if status.get("name") in _REFUSALS and _REFUSALS[status["name"]] in codes:
                last = (_log(run, pod, status["name"]) or ["its container says nothing"])[-1][:300]
                raise UnusableError(arm, f"arm {arm.name}: {_address(run, arm)} cannot be used: {last}")


def drop(run: ActiveRun, error: UnusableError) -> None:
    """Remove the marker of the artifact, so that it is compiled again. Raises `StepError` if this run did that before."""
    key, address = artifact_key(error.arm), _address(run, error.arm)
    if key in run.state.compiled_again:
        raise StepError(
            f"{error}, although this run compiled it again; compare its files with FILES.json, or remove the folder (aws s3 rm --recursive "
            f"{address}), then run this again"
        ) from error
    run.say(f"    {error}; its marker is removed, and it is compiled once more")
    where = {"Bucket": run.bucket("artifacts"), "Key": f"{artifact_path(error.arm)}/{COMPLETE}"}
    run.aws.client("s3").delete_object(**where)
    run.save(compiled_again=(*run.state.compiled_again, key))


def count_compiled(run: ActiveRun, arms: Sequence[Arm]) -> None:
    """Store how many graphs each native server compiled when it started."""
    pods, found = run.cluster.list("pods"), dict(run.state.compiled_at_serving)
    for arm in (arm for arm in arms if arm.runtime.dialect == "native"):
        logs = (_log(run, pod, "vllm") for pod in kubernetes.pods_of(pods, arm.name))
        lines = (line for log in logs for line in kubernetes.json_lines("\n".join(log)))
        said = [made for line in lines if isinstance(made := line.get(COMPILED_AT_SERVING), int)]
        if not said:
            run.say(f"    {arm.name}: its server did not say whether it compiled graphs")
        elif said[-1]:
            graphs = count(said[-1], "graph")
            run.say(f"    {arm.name}: its server compiled {graphs}, which {_address(run, arm)} lacks")
        found |= {arm.name: said[-1]} if said else {}
    if found != run.state.compiled_at_serving:
        run.save(compiled_at_serving=found)


def _log(run: ActiveRun, pod: kubernetes.Object, container: str) -> list[str]:
    """Return the last lines of a container's log; none if it cannot be read."""
    with suppress(Refusal):
        return run.cluster.logs(pod["metadata"]["name"], container=container, lines=1000).strip().splitlines()
    return []


def _address(run: ActiveRun, arm: Arm) -> str:
    return f"s3://{run.bucket('artifacts')}/{artifact_path(arm)}/"
