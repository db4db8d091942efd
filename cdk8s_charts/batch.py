"""Arms that no server can run (vanilla unfused, Medusa): one batch Job around NxD Inference's own script each.

They answer no requests and are not compared; the Job's log says what the script measured. An example for whoever wants
to see those modes, as `experiment` marks them (`batch_only`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cdk8s

from cdk8s_charts import jobs, pod, sizes
from cdk8s_charts.allocation import hold_devices
from cdk8s_charts.command import CHECKPOINTS_MOUNT, batch_argv, batch_environment
from cdk8s_charts.compiling import DEADLINE_S
from cdk8s_charts.fetching import checkpoint_address
from cdk8s_charts.labels import BATCH, STEP, batch_of, labels
from cdk8s_charts.lift import content_suffix, place
from cdk8s_charts.storage import claim_name
from experiment.naming import COMPILE_ACCOUNT, namespace

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment


def batch_chart(scope: cdk8s.App, experiment: Experiment) -> cdk8s.Chart:
    """The Jobs of every such arm."""
    chart = cdk8s.Chart(scope, "35-batch", namespace=namespace(experiment), disable_resource_name_hashes=True)
    for arm in experiment.batch_arms:
        place(chart, job(experiment, arm))
    return chart


def job(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """The suspended Job: compile on local disk, generate, print, end. Nothing is kept but the log."""
    memory, cpu = sizes.serving_memory_gib(experiment, arm), sizes.serving_cpu(experiment, arm)
    demo: pod.Container = {
        "name": "inference-demo",
        "image": arm.runtime.image,
        "imagePullPolicy": "IfNotPresent",
        "command": batch_argv(arm),
        "env": [{"name": name, "value": value} for name, value in batch_environment(arm).items()],
        "workingDir": "/scratch",
        "resources": pod.amounts(
            cpu=str(cpu), memory=f"{memory}Gi", ephemeral=f"{sizes.compile_ephemeral_gib(arm)}Gi"
        ),
        "securityContext": pod.container_security(writable_root=True),
    }
    region = ["--region", experiment.cluster.region]
    needed = [
        pod.tool(f"weights-{number}", ["check", checkpoint_address(experiment, weights), *region])
        for number, weights in enumerate(arm.weights)
    ]
    body: pod.PodSpec = {"initContainers": needed, "containers": [demo]}
    hold_devices(body, demo["name"], experiment, arm)
    pod.add_claim_volume(body, "checkpoints", claim_name(experiment, "checkpoints"))
    pod.mount(demo, "checkpoints", CHECKPOINTS_MOUNT)
    pod.add_scratch(body, "scratch", sizes.compile_scratch_gib(arm))
    pod.mount(demo, "scratch", "/scratch", writable=True)
    body["volumes"].append(
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{sizes.shared_memory_gib(experiment, arm)}Gi"},
        }
    )
    pod.mount(demo, "shm", "/dev/shm", writable=True)
    pod.on_neuron_nodes(body)
    jobs.settle(experiment, body, COMPILE_ACCOUNT, non_root=arm.serving.pod_security == "restricted")
    pod_labels = {**labels(experiment, arm.name, "job"), STEP: "batch"}
    spec = jobs.job_spec(body, pod_labels, deadline_s=DEADLINE_S, retries=1, only="weights-0")
    batch = {BATCH: batch_of(experiment, arm)}
    return jobs.suspended_job(experiment, f"{arm.name}-{content_suffix(spec)}", "batch", spec, **batch)
