"""What is proved before an arm stands: the image takes its arguments, the node is as assumed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts.engine.command import compile_argv, compile_environment, serve_argv
from cdk8s_charts.engine.dialect import ARTIFACTS_MOUNT, CHECKPOINTS_MOUNT, SCRATCH_MOUNT
from cdk8s_charts.plain_objects import config_map, content_suffix, kubernetes_object
from cdk8s_charts.pods import pod, sizes
from cdk8s_charts.pods.devices import hold_devices
from cdk8s_charts.pods.volumes import claim_name
from cdk8s_charts.workloads import artifact_jobs
from cdk8s_charts.workloads.benchmark_pod import UNUSED_SCHEDULE
from cdk8s_charts.workloads.namespace import JOBS, priority_name
from experiment.compilation import compile_config
from experiment.naming import SERVING_ACCOUNT, arguments_job, labels

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment
    from experiment.catalogue.runtimes import Runtime

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment


ARGUMENTS_CONTAINER = "arguments"
ARGUMENTS_PROGRAM = "in_image.py"
ARGUMENTS_DEADLINE_S = 30 * 60
"""Pulling and unpacking tens of GiB onto a small node; the program itself takes a minute, most of it imports."""
_ASKED = "asked.json"
_ARMS_A_MAP = 40
_ASKED_MOUNT = "/asked"
_ARGUMENTS_TEXT = (Path(__file__).parents[1] / ARGUMENTS_PROGRAM).read_text(encoding="utf-8")
_WITHOUT_DEVICE = {"HOME": "/tmp", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}
"""NxD Inference asks for the platform while it builds a configuration; torch_neuronx reads this before it asks the machine."""


def arguments_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """What each image is asked, and its Job; nothing where no arm is served from devices."""
    found = [
        manifest
        for runtime in runtimes(experiment)
        for manifest in (*_questions(experiment, runtime), arguments_job_of(experiment, runtime))
    ]
    return [*found, _arguments_program(experiment)] if found else []


def runtimes(experiment: Experiment) -> tuple[Runtime, ...]:
    """Those of the arms that are served from devices, each once."""
    return tuple({arm.runtime.name: arm.runtime for arm in _arms(experiment)}.values())


def arguments_job_of(experiment: Experiment, runtime: Runtime) -> dict[str, Any]:
    """The suspended Job of one image. It is not tried again: what it says is about the image, not about the day."""
    (arm, *_) = [arm for arm in _arms(experiment) if arm.runtime.name == runtime.name]
    container = pod.container(
        ARGUMENTS_CONTAINER,
        runtime.image,
        ["python3", f"{_ASKED_MOUNT}/program/{ARGUMENTS_PROGRAM}"],
        environment=compile_environment(arm) | _WITHOUT_DEVICE,
        resources=pod.amounts(
            cpu="1",
            memory=f"{sizes.ARGUMENTS_MEMORY_GIB}Gi",
            ephemeral=f"{sizes.NEURON_IMAGE_GIB}Gi",
        ),
        security=pod.container_security(writable_root=True),
    )
    body: pod.PodSpec = {"containers": [container], "volumes": []}
    _mount(body, "program", _arguments_program(experiment))
    for number, questions in enumerate(_questions(experiment, runtime)):
        _mount(body, f"arms-{number}", questions)
        container["command"].append(f"{_ASKED_MOUNT}/arms-{number}/{_ASKED}")
    pod.on_system_nodes(body)
    return artifact_jobs.suspended_job(
        experiment,
        ARGUMENTS_CONTAINER,
        body,
        named=partial(arguments_job, runtime),
        account=SERVING_ACCOUNT,
        only=ARGUMENTS_CONTAINER,
        deadline_s=ARGUMENTS_DEADLINE_S,
        retries=0,
        non_root=arm.serving.pod_security == "restricted",
        pod_labels=labels(experiment, ARGUMENTS_CONTAINER, "offline"),
    )


def asked(experiment: Experiment, runtime: Runtime) -> list[dict[str, Any]]:
    """What the program is told of each arm of a runtime; the keys are those that it reads."""
    return [
        {
            "name": arm.name,
            "dialect": runtime.dialect,
            "serve": serve_argv(arm),
            "engine": json.loads(compile_argv(arm)[-1]),
            "config": compile_config(arm),
        }
        for arm in _arms(experiment)
        if arm.runtime.name == runtime.name
    ]


def _questions(experiment: Experiment, runtime: Runtime) -> list[dict[str, Any]]:
    """A few dozen arms a ConfigMap: a sweep of hundreds would be more than one may travel with (`plan.py`)."""
    arms = asked(experiment, runtime)
    return [
        _config_map(
            experiment, {_ASKED: json.dumps(arms[first : first + _ARMS_A_MAP], sort_keys=True, indent=1)}
        )
        for first in range(0, len(arms), _ARMS_A_MAP)
    ]


def _arguments_program(experiment: Experiment) -> dict[str, Any]:
    return _config_map(experiment, {ARGUMENTS_PROGRAM: _ARGUMENTS_TEXT})


def _mount(body: pod.PodSpec, name: str, config_map: dict[str, Any]) -> None:
    source = {"name": config_map["metadata"]["name"], "defaultMode": 0o444}
    body["volumes"].append({"name": name, "configMap": source})
    pod.mount(body["containers"][0], name, f"{_ASKED_MOUNT}/{name}")


def _config_map(experiment: Experiment, data: dict[str, str]) -> dict[str, Any]:
    name = f"{ARGUMENTS_CONTAINER}-{content_suffix(data)}"
    return config_map(experiment, name, data, labels(experiment, ARGUMENTS_CONTAINER, "offline"))


def _arms(experiment: Experiment) -> list[Arm]:
    """A batch arm has no server, and its script's options are another parser's."""
    return [arm for arm in experiment.served_arms if arm.serving.devices]


CONTAINER = "proof"
PROGRAM = "on_node.py"
SECONDS = 900
"""The proof takes two minutes; pulling an image of tens of GiB onto a new node comes before it."""
_PROOF_MOUNT = "/proof"
_TEXT = (Path(__file__).parents[1] / PROGRAM).read_text(encoding="utf-8")
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
