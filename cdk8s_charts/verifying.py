"""The proof as pods: one suspended CronJob for each distinct demand of the arms, from which `scripts/verify` makes Jobs.

A proof pod is what the arm's pod will be as far as the node can tell: the same image, claim, security context, service
account, mounts and scratch; only the program is another one, and no variable tells it what it must find out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts import pod, sizes
from cdk8s_charts.allocation import hold_devices
from cdk8s_charts.command import ARTIFACTS_MOUNT, CHECKPOINTS_MOUNT, SCRATCH_MOUNT
from cdk8s_charts.lift import config_map, content_suffix, kubernetes_object
from cdk8s_charts.measuring import UNUSED_SCHEDULE
from cdk8s_charts.priority import JOBS, priority_name
from cdk8s_charts.storage import claim_name
from experiment.naming import SERVING_ACCOUNT, labels

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment

CONTAINER = "proof"
PROGRAM = "on_node.py"
SECONDS = 900
"""The proof takes two minutes; pulling an image of tens of GiB onto a new node comes before it."""
_PROOF_MOUNT = "/proof"
_TEXT = (Path(__file__).parent / "proof" / PROGRAM).read_text(encoding="utf-8")
_PROGRAM_NAME = f"verify-program-{content_suffix(_TEXT)}"


def proof_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """The program and its CronJobs; neither where no arm stands on devices."""
    arms = [arm for arm in experiment.served_arms if arm.serving.devices]
    proofs = {proof_name(experiment, arm): arm for arm in arms}
    jobs = [_cron_job(experiment, arm, name) for name, arm in proofs.items()]
    return [config_map(experiment, _PROGRAM_NAME, {PROGRAM: _TEXT}), *jobs] if jobs else []


def proof_name(experiment: Experiment, arm: Arm) -> str:
    """The CronJob that proves what `arm` needs; arms that need alike share it."""
    serving = arm.serving
    shape = f"{serving.devices}-lnc{serving.logical_nc_config}"
    return f"verify-{shape}-{content_suffix(_pod_spec(experiment, arm))}"


def _cron_job(experiment: Experiment, arm: Arm, name: str) -> dict[str, Any]:
    marks = labels(experiment, name, "job")
    job = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": SECONDS,
        "ttlSecondsAfterFinished": 86_400,
        "template": {"metadata": {"labels": marks}, "spec": _pod_spec(experiment, arm)},
    }
    spec = {
        "schedule": UNUSED_SCHEDULE,
        "suspend": True,
        "concurrencyPolicy": "Forbid",
        "jobTemplate": {"metadata": {"labels": marks}, "spec": job},
    }
    return kubernetes_object("batch/v1", "CronJob", name, within=experiment, labels=marks, spec=spec)


def _pod_spec(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    program = f"{_PROOF_MOUNT}/{PROGRAM}"
    container = pod.container(
        CONTAINER,
        arm.runtime.image,
        ["python3", program, json.dumps(expected(experiment, arm), sort_keys=True)],
        resources=pod.amounts(cpu="2", memory="4Gi", ephemeral="20Gi"),
        security=pod.container_security(writable_root=True, level=arm.serving.pod_security),
    )
    source = {"name": _PROGRAM_NAME, "defaultMode": 0o444}
    spec: pod.PodSpec = {
        "restartPolicy": "Never",
        "serviceAccountName": SERVING_ACCOUNT,
        "containers": [container],
        "volumes": [{"name": CONTAINER, "configMap": source}],
    }
    pod.mount(container, CONTAINER, _PROOF_MOUNT)
    pod.add_scratch(spec, "scratch", 10)
    pod.mount(container, "scratch", SCRATCH_MOUNT, writable=True)
    for purpose, path in (("checkpoints", CHECKPOINTS_MOUNT), ("artifacts", ARTIFACTS_MOUNT)):
        pod.add_claim_volume(spec, purpose, claim_name(experiment, purpose))
        pod.mount(container, purpose, path)
    pod.on_neuron_nodes(spec)
    hold_devices(spec, container, experiment, arm)
    pod.settle(
        spec,
        grace_s=30,
        priority=priority_name(experiment, JOBS),
        non_root=arm.serving.pod_security == "restricted",
    )
    return spec


def expected(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """What the program is told to find; the keys are those of its `Expected`."""
    serving, drivers = arm.serving, arm.runtime.drivers
    return {
        "devices": serving.devices,
        "logical_cores": experiment.instance.logical_cores(
            devices=serving.devices, logical_nc_config=serving.logical_nc_config
        ),
        "scratch_gib": max(sizes.compile_scratch_gib(other) for other in experiment.served_arms),
        "mounts": [CHECKPOINTS_MOUNT, ARTIFACTS_MOUNT],
        "pod_security": serving.pod_security,
        "driver_at_least": drivers.oldest if drivers else "",
        "driver_at_most": (drivers and drivers.newest) or "",
    }
