"""What servers make of their artifacts: one that no server can use is compiled once more, and what a server compiles itself is counted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from cdk8s_charts.stores import UNUSABLE
from trnspec.core.findings import Refusal
from trnspec.core.words import count
from trnspec.experiment import Arm
from trnspec.experiment.compilation import artifact_key
from trnspec.experiment.naming import COMPILED_AT_SERVING, COMPLETE, artifact_path
from trnspec.operations.cloud import kubernetes
from trnspec.operations.running.context import Context, StepError

_REFUSALS = {"check-artifact": UNUSABLE, "copy-artifact": 1}
"""Exit codes of a server's init containers for an artifact that is marked complete and is not whole."""


class UnusableError(StepError):
    """A server cannot use its arm's artifact."""

    def __init__(self, arm: Arm, *lines: str) -> None:
        super().__init__(*lines)
        self.arm = arm


def refuse_unusable(context: Context, pods: Sequence[kubernetes.Object], arm: Arm) -> None:
    """Raise `UnusableError`, which names the artifact, where a pod of the arm ended because of it."""
    for pod in kubernetes.pods_of(pods, arm.name):
        for status in kubernetes.container_statuses(pod):
            states = (status.get("state", {}), status.get("lastState", {}))
            codes = [state["terminated"].get("exitCode") for state in states if "terminated" in state]
            if status.get("name") in _REFUSALS and _REFUSALS[status["name"]] in codes:
                last = (_log(context, pod, status["name"]) or ["its container says nothing"])[-1][:300]
                raise UnusableError(arm, f"arm {arm.name}: {_address(context, arm)} cannot be used: {last}")


def drop(context: Context, error: UnusableError) -> None:
    """Remove the marker of the artifact, so that it is compiled again. Raises the error where this run did that before."""
    key, address = artifact_key(error.arm), _address(context, error.arm)
    if key in context.state.compiled_again:
        raise StepError(
            f"{error}, although this run compiled it again; compare its files with FILES.json, or remove the folder (aws s3 rm --recursive "
            f"{address}), then run this again"
        ) from error
    context.say(f"    {error}; its marker is removed, and it is compiled once more")
    where = {"Bucket": context.bucket("artifacts"), "Key": f"{artifact_path(error.arm)}/{COMPLETE}"}
    context.aws.client("s3").delete_object(**where)
    context.save(compiled_again=(*context.state.compiled_again, key))


def count_compiled(context: Context, arms: Sequence[Arm]) -> None:
    """Remember how many graphs each server compiled when it started; what only a native server can say."""
    pods, found = context.cluster.list("pods"), dict(context.state.compiled_at_serving)
    for arm in (arm for arm in arms if arm.runtime.dialect == "native"):
        said = [made for pod in kubernetes.pods_of(pods, arm.name) for made in _said(context, pod)]
        if not said:
            context.say(f"    {arm.name}: its server did not say whether it compiled graphs")
        elif said[-1]:
            context.say(
                f"    {arm.name}: its server compiled {count(said[-1], 'graph')}, which {_address(context, arm)} lacks"
            )
        found |= {arm.name: said[-1]} if said else {}
    if found != context.state.compiled_at_serving:
        context.save(compiled_at_serving=found)


def _said(context: Context, pod: kubernetes.Object) -> list[int]:
    said = (
        line.get(COMPILED_AT_SERVING) for line in kubernetes.json_lines("\n".join(_log(context, pod, "vllm")))
    )
    return [made for made in said if isinstance(made, int)]


def _log(context: Context, pod: kubernetes.Object, container: str) -> list[str]:
    """The last lines that a container logged; none where the log cannot be read, which ends no run."""
    with suppress(Refusal):
        return (
            context.cluster.logs(pod["metadata"]["name"], container=container, lines=1000)
            .strip()
            .splitlines()
        )
    return []


def _address(context: Context, arm: Arm) -> str:
    return f"s3://{context.bucket('artifacts')}/{artifact_path(arm)}/"
