"""A profile of each arm: why a decode step takes what it takes. `./trnspec run --profile` makes a Job of each CronJob here.

The pod is the arm's own as far as its engine can tell: image, command, claim, mounts, variables. Around the server runs
`profile_arm.py`; what it leaves goes to the bucket of results. Two ways, by the documentation of each:

- the native plugin: vLLM's endpoints `/start_profile` and `/stop_profile`, which `--profiler-config` turns on, with
  `neuron_profiler` in its additional configuration
  (https://github.com/aws-neuron/aws-neuron-sdk, vllm-neuron/docs/guides/how-to-profile-workloads.md, 2026-06-09);
- elsewhere: the runtime's variables `NEURON_RT_INSPECT_*`, which AWS names for containers on EKS (Neuron Profiler 2.0 user
  guide, and environment variables of Neuron Explorer, 2026-06-25). From SDK 2.31 on the device's trace is of all that a core
  does (`session`, in that page at tag v2.31.0); before, of the first execution of each graph on each core.

One core is enough: the shards of an arm do the same. *Not run on AWS.*
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts import pods
from cdk8s_charts.plain_objects import config_map, content_suffix, kubernetes_object
from cdk8s_charts.pods import add_sources, hold_devices
from cdk8s_charts.vllm_command import serve_argv, serve_environment
from cdk8s_charts.workloads.benchmark_pod import JOB_UID, UNUSED_SCHEDULE
from cdk8s_charts.workloads.namespace import JOBS, priority_name
from cdk8s_charts.workloads.serving import API_KEY_VARIABLE, LOAD_BUDGET_S, api_key
from experiment.catalogue.runtimes import version
from experiment.naming import (
    ACCOUNT_PLACEHOLDER,
    COMPILE_ACCOUNT,
    RESULTS_PREFIX,
    bucket,
    labels,
    profile_cron_job,
)
from experiment.placement import pod_share

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment

_PROGRAM = Path(__file__).parents[1] / "profile_arm.py"
_PROGRAM_MOUNT = "/program"
OUT = "/profile"
_OUT_GIB = 20
"""The output of one core: a device's trace and at most a million events of the system. An estimate."""
_DEADLINE_S = LOAD_BUDGET_S + 3600
_BY_ENVIRONMENT = {
    "NEURON_RT_INSPECT_ENABLE": "1",
    "NEURON_RT_INSPECT_OUTPUT_DIR": OUT,
    "NEURON_RT_INSPECT_SYSTEM_PROFILE": "1",
    "NEURON_RT_INSPECT_EVENT_FILTER_NC": "0",
}
_SESSIONS_SINCE = (2, 31)
"""The first SDK whose page of these variables has `session`."""

_TEXT = _PROGRAM.read_text(encoding="utf-8")
_FILES = f"profile-program-{content_suffix(_TEXT)}"


def program_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """The program; nothing where no arm is served from devices."""
    needed = any(arm.serving.devices for arm in experiment.served_arms)
    return [config_map(experiment, _FILES, {_PROGRAM.name: _TEXT})] if needed else []


def profiled_argv(arm: Arm) -> list[str]:
    """The arm's server; the native plugin's with its profiler."""
    command = serve_argv(arm)
    if arm.runtime.dialect != "native":
        return command
    at = command.index("--additional-config") + 1
    profiler = {
        "activities": ["device_profile", "system_profile"],
        "neuron_cores": [0],
        "output_dir": OUT,
    }
    config = {**json.loads(command[at]), "neuron_profiler": profiler}
    command[at] = json.dumps(config, sort_keys=True)
    return [*command, "--profiler-config", json.dumps({"profiler": "cuda"})]


def profile_objects(experiment: Experiment, arm: Arm) -> list[dict[str, Any]]:
    """The CronJob of an arm that is served from devices."""
    if not arm.serving.devices:
        return []
    name = profile_cron_job(arm)
    marks = labels(experiment, name, "job")
    job = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": _DEADLINE_S,
        "ttlSecondsAfterFinished": 7 * 86_400,
        "template": {"metadata": {"labels": marks}, "spec": _pod(experiment, arm)},
    }
    spec = {
        "schedule": UNUSED_SCHEDULE,
        "suspend": True,
        "concurrencyPolicy": "Forbid",
        "jobTemplate": {"metadata": {"labels": marks}, "spec": job},
    }
    return [kubernetes_object("batch/v1", "CronJob", name, within=experiment, labels=marks, spec=spec)]


def _pod(experiment: Experiment, arm: Arm) -> pods.PodSpec:
    share = pod_share(arm)
    device = "session" if version(arm.runtime.neuron_sdk) >= _SESSIONS_SINCE else "1"
    by_environment = _BY_ENVIRONMENT | {"NEURON_RT_INSPECT_DEVICE_PROFILE": device}
    if arm.runtime.dialect == "native":
        by_environment = {}
    server = pods.container(
        "profile",
        arm.runtime.image,
        ["python3", f"{_PROGRAM_MOUNT}/{_PROGRAM.name}", OUT, arm.target.model.name, *profiled_argv(arm)],
        environment={"HOME": "/tmp", **serve_environment(arm), **by_environment},
        resources=pods.part_of_node(share, disk_gib=pods.serving_ephemeral_gib(experiment) + _OUT_GIB),
        security=pods.container_security(writable_root=True, level=arm.serving.pod_security),
    )
    server["env"] += api_key(experiment, API_KEY_VARIABLE)
    address = f"s3://{bucket(experiment, 'results', ACCOUNT_PLACEHOLDER)}/{RESULTS_PREFIX}profile-$(JOB_UID)"
    keep = pods.tool("keep", ["keep", OUT, "--once", "--to", address, "--region", experiment.cluster.region])
    keep["env"] = [JOB_UID]
    body: pods.PodSpec = {
        "restartPolicy": "Never",
        "serviceAccountName": COMPILE_ACCOUNT,
        "containers": [keep],
    }
    add_sources(experiment, body, server, arm)
    body["initContainers"].append(server)
    pods.add_volume(body, "out", OUT, server, writable=True, emptyDir={"sizeLimit": f"{_OUT_GIB}Gi"})
    pods.mount(keep, "out", OUT)
    pods.add_volume(body, "program", _PROGRAM_MOUNT, server, configMap={"name": _FILES, "defaultMode": 0o444})
    pods.share_memory(body, server, share)
    hold_devices(body, server, experiment, arm)
    body.setdefault("securityContext", {}).update(pods.OWN_VOLUMES)
    pods.on_neuron_nodes(experiment, body)
    priority, level = priority_name(experiment, JOBS), arm.serving.pod_security
    pods.settle(body, grace_s=60, priority=priority, level=level)
    return body
