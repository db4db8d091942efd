"""Pods that check before an arm is started: its image accepts its arguments, a node has what its pod needs.

The images are asked before a Trn2 node is started and after the weights are fetched, by one Job for each: on a
system node, in the arms' own image, without devices or network, with the checkpoints mounted read-only. The program
(`image_probe.py`) asks vLLM's parser, the class of the Neuron configuration and the engine's own configuration, and looks at the
heads; `one_layer.py` then compiles a copy of each NxD Inference arm with one layer. `run` creates the Job and goes on with a warning
where the image cannot be asked without a device. It needs no right that the Pod Security Standard `restricted` refuses.
Not verified on AWS: the images were never pulled here.

A node is asked (`node_probe.py`) by Jobs that `./trnspec verify` makes from one reviewed Job for each distinct demand of
the arms. Its pod is what the arm's pod will be as far as the node can tell: the same image, claim, security context, service
account, mounts and scratch; only the program is another one, and no variable tells it what it must find out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cdk8s_charts import one_layer, pods, stores
from cdk8s_charts.image_probe import VISIBLE_CORES
from cdk8s_charts.manifests import config_map, content_suffix
from cdk8s_charts.vllm_command import compile_argv, compile_environment, serve_argv, serve_environment
from cdk8s_charts.workloads.artifact_jobs import finite_job
from cdk8s_charts.workloads.namespace import JOBS, priority_name
from cdk8s_charts.workloads.serving import mount_chat_template
from trnspec.experiment import naming
from trnspec.experiment.arms import Arm, Experiment, logical_cores
from trnspec.experiment.catalogue.runtimes import Runtime
from trnspec.experiment.compilation import compile_config

ARGUMENTS_DEADLINE_S = 60 * 60
"""Pulling and unpacking tens of GiB onto a small node, a minute of imports, and `one_layer.SECONDS`."""
_ARGUMENTS = "arguments"
_PROGRAMS = [
    Path(__file__).parents[1] / f"{name}.py"
    for name in ("one_layer", "image_probe", "draft_heads", "image_code")
]
"""The first one is started, and runs the second."""
_ASKED = "asked.json"
_ASKED_MOUNT = "/asked"
_PACKAGE = Path(__file__).parents[1].name
"""The programs import each other by this name here and in the pod, whose working directory holds it as a folder."""
_WITHOUT_DEVICE = {
    **{"HOME": "/tmp", "USER": "arguments", "VLLM_CACHE_ROOT": "/tmp/vllm"},
    "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
}
"""NxD Inference asks for the platform while it builds a configuration; torch_neuronx reads this before it asks the machine.
torch asks for the user's name, which one that the image does not know has here alone."""
_NATIVE = {"VLLM_NEURON_CPU_COMPILE": "1"}
"""The plugin's way to do without a device (cpu_compilation.md of its design documents): it loads no weight and opens nothing."""

_VERIFY = "verify"
CONTAINER = "proof"
SECONDS = 900
"""The proof takes two minutes; pulling an image of tens of GiB onto a new node comes before it."""
_NODE_PROBE = Path(__file__).parents[1] / "node_probe.py"
_NODE_PROBE_TEXT = _NODE_PROBE.read_text(encoding="utf-8")
_NODE_PROBE_NAME = f"verify-program-{content_suffix(_NODE_PROBE_TEXT)}"
_PROOF_MOUNT = "/proof"


def arguments_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the questions for each image, and its Job."""
    program = _files(experiment, {path.name: path.read_text(encoding="utf-8") for path in _PROGRAMS})
    found = []
    for runtime in experiment.runtimes:
        questions = {_ASKED: json.dumps(asked(experiment, runtime), sort_keys=True, indent=1)}
        files = _files(experiment, questions)
        found += [files, _arguments_job(experiment, runtime, program, files)]
    return [*found, program]


def asked(experiment: Experiment, runtime: Runtime) -> list[dict[str, Any]]:
    """Return the program's input about each arm of a runtime; the keys are those that it reads."""
    return [
        {
            "name": arm.name,
            "dialect": arm.runtime.dialect,
            "mode": arm.speculation.mode if arm.speculation else "",
            "serve": serve_argv(arm),
            "engine": json.loads(compile_argv(arm)[-1]),
            "config": compile_config(arm),
            "environment": serve_environment(arm),
        }
        for arm in experiment.arms
        if arm.runtime.name == runtime.name
    ]


def _arguments_job(
    experiment: Experiment, runtime: Runtime, program: dict[str, Any], questions: dict[str, Any]
) -> dict[str, Any]:
    """Return the Job of one image. It is not retried, because its answer depends only on the image."""
    arm = next(arm for arm in experiment.arms if arm.runtime.name == runtime.name)
    compiles = runtime.dialect in one_layer.LOADERS
    container = pods.container(
        _ARGUMENTS,
        runtime.image,
        ["python3", "-m", f"{_PACKAGE}.{_PROGRAMS[0].stem}", f"{_ASKED_MOUNT}/arms-0/{_ASKED}"],
        environment=compile_environment(arm)
        | _WITHOUT_DEVICE
        | (_NATIVE if runtime.dialect == "native" else {}),
        resources=pods.amounts(
            cpu="1",
            memory=f"{pods.COPY_MEMORY_GIB if compiles else pods.ARGUMENTS_MEMORY_GIB}Gi",
            ephemeral=f"{pods.NEURON_IMAGE_GIB}Gi",
        ),
        security=pods.container_security(writable_root=True),
    )
    container["workingDir"] = _ASKED_MOUNT
    body: pods.PodSpec = {"containers": [container]}
    for name, folder, files in (("program", _PACKAGE, program), ("arms-0", "arms-0", questions)):
        pods.add_files(body, name, files["metadata"]["name"], f"{_ASKED_MOUNT}/{folder}", container)
    stores.mount_store(experiment, "checkpoints", body, container)
    mount_chat_template(experiment, body, container)
    pods.on_system_nodes(body)
    return finite_job(
        experiment,
        _ARGUMENTS,
        body,
        name=naming.arguments_job(runtime),
        account=naming.SERVING_ACCOUNT,
        deadline_s=ARGUMENTS_DEADLINE_S,
        retries=0,
        level="restricted",
        pod_labels=naming.labels(experiment, _ARGUMENTS, "offline"),
    )


def _files(experiment: Experiment, data: dict[str, str]) -> dict[str, Any]:
    name = f"{_ARGUMENTS}-{content_suffix(data)}"
    return config_map(experiment, name, data, naming.labels(experiment, _ARGUMENTS, "offline"))


def node_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the program and its Jobs, of which each verification makes its own. They are not retried."""
    jobs = {job["metadata"]["name"]: job for job in (_node_job(experiment, arm) for arm in experiment.arms)}
    return [config_map(experiment, _NODE_PROBE_NAME, {_NODE_PROBE.name: _NODE_PROBE_TEXT}), *jobs.values()]


def proof_name(experiment: Experiment, arm: Arm) -> str:
    """Return the name of the Job that checks a node for `arm`; arms with the same needs share it."""
    return str(_node_job(experiment, arm)["metadata"]["name"])


def _node_job(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    marks, body = naming.labels(experiment, _VERIFY, "job"), _node_pod(experiment, arm)
    shape = f"{arm.serving.devices}-lnc{arm.serving.logical_nc_config}"
    return pods.job(
        experiment,
        f"verify-{shape}-{content_suffix(body)}",
        body,
        labels={**marks, naming.STEP: _VERIFY},
        pod_labels=marks,
        backoffLimit=0,
        activeDeadlineSeconds=SECONDS,
        ttlSecondsAfterFinished=86_400,
    )


def _node_pod(experiment: Experiment, arm: Arm) -> pods.PodSpec:
    words = [f"{_PROOF_MOUNT}/{_NODE_PROBE.name}", json.dumps(expected(experiment, arm), sort_keys=True)]
    container = pods.container(
        CONTAINER,
        arm.runtime.image,
        ["python3", *words],
        resources=pods.amounts(cpu="2", memory="4Gi", ephemeral="20Gi"),
        security=pods.container_security(writable_root=True, level=arm.serving.pod_security),
    )
    spec: pods.PodSpec = {
        "restartPolicy": "Never",
        "serviceAccountName": naming.SERVING_ACCOUNT,
        "containers": [container],
    }
    pods.add_files(spec, CONTAINER, _NODE_PROBE_NAME, _PROOF_MOUNT, container)
    pods.add_scratch(spec, 10, container)
    for purpose in stores.STORES:
        stores.mount_store(experiment, purpose, spec, container)
    pods.on_neuron_nodes(spec)
    pods.hold_devices(spec, container, experiment, arm)
    priority, level = priority_name(experiment, JOBS), arm.serving.pod_security
    pods.harden(spec, grace_s=30, priority=priority, level=level)
    return spec


def expected(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Return the values that the program checks; the keys are those of its `Expected`."""
    serving, drivers = arm.serving, arm.runtime.drivers
    return {
        "devices": serving.devices,
        "logical_cores": logical_cores(serving, arm.instance),
        "scratch_gib": max(pods.compile_scratch_gib(other) for other in experiment.arms),
        "mounts": list(stores.STORES.values()),
        "pod_security": serving.pod_security,
        "driver_at_least": drivers.oldest,
        "driver_at_most": drivers.newest or "",
        "tested_driver": arm.runtime.tested_driver or "",
        "without": [VISIBLE_CORES] if arm.runtime.dialect == "native" else [],
    }
