"""What the Jobs have in common: one actor releases them, they end, and a repetition is harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts import pod
from cdk8s_charts.labels import STEP, labels
from cdk8s_charts.placeholders import tags
from cdk8s_charts.priority import JOBS, priority_name
from experiment.naming import namespace

if TYPE_CHECKING:
    from experiment.arms import Experiment

WRONG_CONFIGURATION = 2
"""Exit code of `store` for what no repetition fixes: a gated model without a token, a bad address."""


def job_spec(
    body: pod.PodSpec, pod_labels: dict[str, str], *, deadline_s: int, retries: int, only: str
) -> dict[str, Any]:
    """The spec of a finite Job. `only` is the container whose exit code may end it at once."""
    return {
        "backoffLimit": retries,
        "activeDeadlineSeconds": deadline_s,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": only, "operator": "In", "values": [WRONG_CONFIGURATION]},
                }
            ]
        },
        "template": {"metadata": {"labels": pod_labels}, "spec": body},
    }


def suspended_job(
    experiment: Experiment, name: str, step: str, spec: dict[str, Any], **more: str
) -> dict[str, Any]:
    """A Job that waits to be released. It is kept when it has finished, as the record of its step.

    `name` carries a hash of `spec`; the images that a deployment fills in are added to it.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{name}{tags(spec)}",
            "namespace": namespace(experiment),
            "labels": {**labels(experiment, step, "job"), STEP: step, **more},
        },
        "spec": {"suspend": True, **spec},
    }


def settle(experiment: Experiment, body: pod.PodSpec, account: str, *, non_root: bool) -> None:
    """What the pods of Jobs share. `Never`: a retry is a new pod, so that its failure is counted and looked at."""
    body["serviceAccountName"] = account
    body["restartPolicy"] = "Never"
    pod.settle(body, grace_s=60, priority=priority_name(experiment, JOBS), non_root=non_root)
