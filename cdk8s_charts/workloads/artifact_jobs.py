"""The Jobs that prepare servers: weights are fetched once and each artifact is compiled once; a run creates them."""

from __future__ import annotations

import json
from typing import Any

from cdk8s_charts import pods, stores, vllm_command
from cdk8s_charts.workloads.namespace import JOBS, priority_name
from trnspec.experiment import naming
from trnspec.experiment.arms import Arm, Experiment, Weights
from trnspec.experiment.compilation import artifact_inputs, artifact_key, declared_keys
from trnspec.experiment.cost import compile_deadline_s
from trnspec.experiment.model_config import wanted_config
from trnspec.experiment.placement import compile_share

WRONG_CONFIGURATION = 2
"""Exit code of `store` for errors that a retry does not fix: a gated model without a token, a bad address."""
DEADLINE_S = 6 * 3600
"""The limit of a Job that has no prediction."""
_WITH_ITS_NODE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
"""A pod that ends because its spot node is taken away does not count as a retry
(https://kubernetes.io/docs/tasks/job/pod-failure-policy/)."""
_SHARD_GIB = 12
"""Room for one file and its unfinished copy: shards of these models are below 5 GB."""
_DONE = f"{vllm_command.SCRATCH_MOUNT}/already-complete"
_COMPILE = f"""\
if [ -e {_DONE} ]; then echo "compiled already"; exit 0; fi
set -f; artifact=$1; files=$2; shift 2
mkdir -p "$artifact" "$artifact.work" "$HOME" {vllm_command.WORK_FOLDER}
cd {vllm_command.WORK_FOLDER}
"$@" || {{
  failed=$?
  [ -n "$(find "$artifact" "$artifact.cache" -name "*.neff" -size +0 2> /dev/null)" ] || exit "$failed"
  echo "exit $failed: once more; graphs that are compiled are found in the cache" >&2
  # A loader would take these for an artifact.
  for file in $files; do rm -f "$artifact/$file"; done
  rm -rf "$artifact.work"; mkdir "$artifact.work"
  "$@" || exit
}}
# The compiler's temporary folders are its user's alone; the copy to S3 has another user, of the volume's group.
find "$artifact" -user "$(id -u)" -exec chmod g+rX {{}} +
"""


def finite_job(
    experiment: Experiment,
    step: str,
    body: pods.PodSpec,
    *,
    name: str,
    account: str,
    deadline_s: int = DEADLINE_S,
    retries: int,
    level: str,
    pod_labels: dict[str, str] | None = None,
    batch: str | None = None,
) -> dict[str, Any]:
    """Return a Job that a run creates from its reviewed file, and keeps when it has finished, as the record of its step.

    `name` says what it makes; a hash of what is created is added to it. The exit code of its one main container may end it at once. A
    retry is a new pod, so that its failure is counted and looked at.
    """
    body["serviceAccountName"] = account
    body["restartPolicy"] = "Never"
    pods.harden(body, grace_s=60, priority=priority_name(experiment, JOBS), level=level)
    own = naming.labels(experiment, step, "job")
    (main,) = body["containers"]
    hopeless = {"containerName": main["name"], "operator": "In", "values": [WRONG_CONFIGURATION]}
    rules: list[dict[str, Any]] = [{"action": "FailJob", "onExitCodes": hopeless}]
    if experiment.cluster.capacity.kind == "spot":
        rules.append(_WITH_ITS_NODE)
    return pods.job(
        experiment,
        name,
        body,
        labels={**own, naming.STEP: step, **({naming.BATCH: batch} if batch else {})},
        pod_labels={**(pod_labels or own), naming.STEP: step},
        backoffLimit=retries,
        activeDeadlineSeconds=deadline_s,
        podFailurePolicy={"rules": rules},
    )


def _weights_address(experiment: Experiment, weights: Weights) -> str:
    return stores.address(experiment, "checkpoints", naming.weights_path(weights))


def fetching_job(experiment: Experiment, weights: Weights) -> dict[str, Any]:
    """Return the Job that fetches one model, file by file, so that a system node's disk is enough."""
    model = weights.model
    arguments = ["fetch", "--model", model.name, "--to", _weights_address(experiment, weights)]
    arguments += ["--scratch", vllm_command.SCRATCH_MOUNT, "--region", experiment.cluster.region]
    if weights.address:
        arguments += ["--from", weights.address]
    elif weights.revision:
        arguments += ["--revision", weights.revision]
    if weights.address or weights.shape_of:
        arguments += ["--expect", json.dumps(wanted_config(model), sort_keys=True)]
    if experiment.token_secret:
        arguments += ["--token-file", "/token/token"]
    fetch = pods.tool("fetch", arguments)
    fetch["env"] = [{"name": "HOME", "value": vllm_command.SCRATCH_MOUNT}]
    fetch["resources"] = pods.amounts(cpu="500m", memory="1Gi", ephemeral=f"{_SHARD_GIB + 1}Gi")
    body: pods.PodSpec = {"containers": [fetch]}
    pods.add_scratch(body, _SHARD_GIB, fetch)
    if experiment.token_secret:
        secret = {
            "secretName": experiment.token_secret,
            "items": [{"key": "token", "path": "token"}],
            "defaultMode": 0o440,
        }
        pods.add_volume(body, "token", "/token", fetch, secret=secret)
    pods.on_system_nodes(body)
    return finite_job(
        experiment,
        "fetch",
        body,
        name=naming.fetch_job(weights),
        account=naming.FETCH_ACCOUNT,
        retries=5,
        level="restricted",
    )


def compiling_job(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Return the Job of one artifact. It needs the same devices as the arm, because only they can load the artifact.

    First a look into S3, so that an artifact that is complete is not compiled again; then the compiler; then the copy. A compiler that
    fails after it compiled a graph runs once more in the same pod: some failures are races, and its caches keep what is compiled.
    """
    key, region = artifact_key(arm), ["--region", experiment.cluster.region]
    address = stores.address(experiment, "artifacts", key)
    checks = [pods.tool("look", ["check", address, "--key", key, "--note", _DONE, *region])]
    # The pod ends if a model of the arm was not fetched.
    checks += (
        pods.tool(f"weights-{number}", ["check", _weights_address(experiment, weights), *region])
        for number, weights in enumerate(arm.weights)
    )
    share = compile_share(arm)
    compiler = pods.container(
        "compile",
        arm.runtime.image,
        [
            "/bin/sh",
            "-c",
            _COMPILE,
            "compile",
            vllm_command.compiled_path(arm),
            " ".join(vllm_command.artifact_files(arm)),
            *vllm_command.compile_argv(arm),
        ],
        environment=vllm_command.compile_environment(arm),
        resources=pods.part_of_node(share, disk_gib=pods.compile_ephemeral_gib(arm)),
        security=pods.container_security(writable_root=True, level=arm.serving.pod_security),
    )
    push = _push(experiment, arm)
    body: pods.PodSpec = {"initContainers": [*checks, compiler], "containers": [push]}
    pods.hold_devices(body, compiler, experiment, arm)
    stores.mount_store(experiment, "checkpoints", body, compiler)
    pods.add_scratch(body, pods.compile_scratch_gib(arm))
    pods.add_volume(body, "shm", "/dev/shm", compiler, writable=True, emptyDir=pods.shared_memory(share))
    for holder in (checks[0], compiler):
        pods.mount(holder, "scratch", vllm_command.SCRATCH_MOUNT, writable=True)
    pods.mount_fixed_caches(arm, compiler)
    pods.mount(push, "scratch", vllm_command.SCRATCH_MOUNT)
    body["securityContext"] = pods.OWN_VOLUMES
    pods.on_neuron_nodes(body)
    return finite_job(
        experiment,
        "compile",
        body,
        name=naming.compile_job(arm),
        account=naming.COMPILE_ACCOUNT,
        deadline_s=compile_deadline_s(experiment),
        retries=1,
        level=arm.serving.pod_security,
        batch=naming.batch_of(experiment, arm),
    )


def _push(experiment: Experiment, arm: Arm) -> pods.Container:
    """Return the container that copies the artifact to S3, with what it was made from and its baseline's to compare."""
    key, baseline = artifact_key(arm), experiment.baseline_of(arm)
    arguments = [
        "push",
        vllm_command.compiled_path(arm),
        "--to",
        stores.address(experiment, "artifacts", key),
    ]
    arguments += ["--key", key, "--inputs-from", "ARTIFACT_INPUTS", "--region", experiment.cluster.region]
    for name in vllm_command.artifact_files(arm):
        arguments += ["--require", name]
    if (other := artifact_key(baseline)) != key:
        arguments += ["--baseline", stores.address(experiment, "artifacts", other)]
        arguments += ["--declared", ",".join(declared_keys(baseline, arm))]
    inputs = json.dumps(artifact_inputs(arm), sort_keys=True, indent=1)
    push = pods.tool("push", arguments, cpu="4", memory="4Gi")
    push["env"] = pods.variables({"ARTIFACT_INPUTS": inputs})
    return push
