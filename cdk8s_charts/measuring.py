"""What the benchmark and the quality check share: a suspended CronJob on system nodes, one run at a time, finite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts import pod
from cdk8s_charts.lift import kubernetes_object
from cdk8s_charts.priority import MEASURING, priority_name
from experiment.naming import BENCHMARK_ACCOUNT, labels

if TYPE_CHECKING:
    from experiment.arms import Experiment

RESULTS = "/results"
JOB_UID: dict[str, Any] = {
    "name": "JOB_UID",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}},
}
"""The same for every pod of a Job, so that the next one finds what the last one left."""
UNUSED_SCHEDULE = "0 0 1 1 *"
"""A CronJob must have one; suspended, it never comes."""
_KEPT_S = 7 * 24 * 3600


def cron_job(experiment: Experiment, name: str, body: pod.PodSpec, *, deadline_s: int) -> dict[str, Any]:
    """A CronJob that never starts by itself; its Jobs are made by people and scripts."""
    body["serviceAccountName"] = BENCHMARK_ACCOUNT
    body["restartPolicy"] = "OnFailure"  # in place, so that what was measured is still on the disk
    pod.on_system_nodes(body)
    pod.settle(body, grace_s=60, priority=priority_name(experiment, MEASURING), non_root=True)
    own = labels(experiment, name, "client")
    job = {
        "backoffLimit": 3,
        "activeDeadlineSeconds": deadline_s,
        "ttlSecondsAfterFinished": _KEPT_S,
        "template": {"metadata": {"labels": own}, "spec": body},
    }
    spec = {
        "suspend": True,
        "schedule": UNUSED_SCHEDULE,
        "concurrencyPolicy": "Forbid",
        "jobTemplate": {"spec": job},
    }
    return kubernetes_object("batch/v1", "CronJob", name, within=experiment, labels=own, spec=spec)
