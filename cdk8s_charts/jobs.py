"""What the Jobs have in common: one actor releases them, they end, and a repetition is harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts import pod
from cdk8s_charts.lift import content_suffix, kubernetes_object
from cdk8s_charts.placeholders import tags
from cdk8s_charts.priority import JOBS, priority_name
from experiment.naming import BATCH, STEP, labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiment.arms import Experiment

WRONG_CONFIGURATION = 2
"""Exit code of `store` for what no repetition fixes: a gated model without a token, a bad address."""


def suspended_job(
    experiment: Experiment,
    step: str,
    body: pod.PodSpec,
    *,
    named: Callable[[str], str],
    account: str,
    only: str,
    deadline_s: int,
    retries: int,
    non_root: bool,
    pod_labels: dict[str, str] | None = None,
    batch: str | None = None,
) -> dict[str, Any]:
    """A finite Job that waits to be released. It is kept when it has finished, as the record of its step.

    `named` makes its name of a hash of its spec; the images that a deployment fills in are added to it. `only` is the
    container whose exit code may end it at once. A retry is a new pod, so that its failure is counted and looked at.
    """
    body["serviceAccountName"] = account
    body["restartPolicy"] = "Never"
    pod.settle(body, grace_s=60, priority=priority_name(experiment, JOBS), non_root=non_root)
    own = labels(experiment, step, "job")
    hopeless = {"containerName": only, "operator": "In", "values": [WRONG_CONFIGURATION]}
    spec = {
        "backoffLimit": retries,
        "activeDeadlineSeconds": deadline_s,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": hopeless}]},
        "template": {"metadata": {"labels": {**(pod_labels or own), STEP: step}}, "spec": body},
    }
    return kubernetes_object(
        "batch/v1",
        "Job",
        f"{named(content_suffix(spec))}{tags(spec)}",
        within=experiment,
        labels={**own, STEP: step, **({BATCH: batch} if batch else {})},
        spec={"suspend": True, **spec},
    )
