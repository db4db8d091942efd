"""One Job per artifact: compile on local NVMe with the server's own image, then copy to S3, marker last."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from cdk8s_charts import jobs, pod, sizes
from cdk8s_charts.allocation import hold_devices
from cdk8s_charts.command import (
    CHECKPOINTS_MOUNT,
    SCRATCH_MOUNT,
    artifact_files,
    compile_argv,
    compile_environment,
    compiled_path,
)
from cdk8s_charts.fetching import checkpoint_address
from cdk8s_charts.storage import claim_name
from experiment.compilation import TREATED_KEYS, artifact_inputs, artifact_key
from experiment.naming import (
    ACCOUNT_PLACEHOLDER,
    COMPILE_ACCOUNT,
    artifact_path,
    batch_of,
    bucket,
    compile_job,
)

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment

DEADLINE_S = 6 * 3600
"""No compile time of this pair is published; AWS's sample allows 4 h 45 min."""
_DONE = f"{SCRATCH_MOUNT}/already-complete"
_COMPILE = f"""\
if [ -e {_DONE} ]; then echo "compiled already"; exit 0; fi
# An attempt that was cut short leaves files that the loader would take for an artifact.
artifact=$1; shift; rm -rf "$artifact" "$artifact.work"
export HOME={SCRATCH_MOUNT}/home
mkdir -p "$artifact" "$artifact.work" "$HOME"
cd "$HOME"
"$@" || exit
# The compiler's temporary folders are its user's alone; the copy to S3 has another user, of the volume's group.
chmod -R g+rX "$artifact"
"""


def artifact_address(experiment: Experiment, arm: Arm) -> str:
    """Folder of the arm's artifact in S3."""
    return f"s3://{bucket(experiment, 'artifacts', ACCOUNT_PLACEHOLDER)}/{artifact_path(arm)}"


def job(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """The suspended Job of one artifact. It holds the same devices as the arm would, since only they can load it.

    First a look into S3, so that an artifact that is complete is not compiled again; then the compiler; then the copy.
    """
    push = pod.tool("push", _push_arguments(experiment, arm), cpu="4", memory="4Gi")
    push["env"] = [
        {"name": "ARTIFACT_INPUTS", "value": json.dumps(artifact_inputs(arm), sort_keys=True, indent=1)}
    ]
    region = ["--region", experiment.cluster.region]
    look = pod.tool(
        "look",
        ["check", artifact_address(experiment, arm), "--key", artifact_key(arm), "--note", _DONE, *region],
    )
    needed = [
        pod.tool(f"weights-{number}", ["check", checkpoint_address(experiment, weights), *region])
        for number, weights in enumerate(arm.weights)
    ]
    compiler = _compiler(experiment, arm)
    body: pod.PodSpec = {"initContainers": [look, *needed, compiler], "containers": [push]}
    hold_devices(body, compiler, experiment, arm)
    pod.add_claim_volume(body, "checkpoints", claim_name(experiment, "checkpoints"))
    pod.mount(compiler, "checkpoints", CHECKPOINTS_MOUNT)
    pod.add_scratch(body, "scratch", sizes.compile_scratch_gib(arm))
    share = sizes.compiling(experiment, arm)
    pod.share_memory(body, compiler, sizes.shared_memory_gib(share.memory_gib))
    for holder in (look, compiler):
        pod.mount(holder, "scratch", SCRATCH_MOUNT, writable=True)
    pod.mount(push, "scratch", SCRATCH_MOUNT)
    body["securityContext"] = {"fsGroup": pod.USER, "fsGroupChangePolicy": "OnRootMismatch"}
    pod.on_neuron_nodes(body)
    return jobs.suspended_job(
        experiment,
        "compile",
        body,
        named=partial(compile_job, arm),
        account=COMPILE_ACCOUNT,
        only="push",
        deadline_s=DEADLINE_S,
        retries=2,
        non_root=arm.serving.pod_security == "restricted",
        batch=batch_of(experiment, arm),
    )


def _compiler(experiment: Experiment, arm: Arm) -> pod.Container:
    share = sizes.compiling(experiment, arm)
    return pod.container(
        "compile",
        arm.runtime.image,
        ["/bin/sh", "-c", _COMPILE, "compile", compiled_path(arm), *compile_argv(arm)],
        environment=compile_environment(arm),
        resources=pod.amounts(
            cpu=str(share.cpu),
            memory=f"{share.memory_gib}Gi",
            ephemeral=f"{sizes.compile_ephemeral_gib(arm)}Gi",
        ),
        security=pod.container_security(writable_root=True, level=arm.serving.pod_security),
    )


def _push_arguments(experiment: Experiment, arm: Arm) -> list[str]:
    arguments = [
        "push",
        compiled_path(arm),
        "--to",
        artifact_address(experiment, arm),
        "--key",
        artifact_key(arm),
    ]
    arguments += ["--inputs-from", "ARTIFACT_INPUTS", "--region", experiment.cluster.region]
    for name in artifact_files(arm):
        arguments += ["--require", name]
    baseline = experiment.baseline
    if artifact_key(baseline) != artifact_key(arm):
        arguments += ["--baseline", artifact_address(experiment, baseline)]
        arguments += ["--declared", ",".join(TREATED_KEYS)]
    return arguments
