"""What the images say to the arms' arguments, before a Trn2 node is started: one suspended Job for each image.

The Job runs on a system node, in the arms' own image and security context, without devices, network or mounts. Its program
(`proof/in_image.py`) asks vLLM's parser and the class of the Neuron configuration; `run` releases it and goes on with a warning
where the image cannot be asked without a device. *Not run on AWS*: the images were never pulled here.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdk8s_charts import jobs, pod, sizes
from cdk8s_charts.command import compile_argv, compile_environment, serve_argv
from cdk8s_charts.lift import config_map, content_suffix
from experiment.compilation import compile_config
from experiment.naming import SERVING_ACCOUNT, arguments_job, labels

if TYPE_CHECKING:
    from experiment.arms import Arm, Experiment
    from experiment.catalogue.runtimes import Runtime

CONTAINER = "arguments"
PROGRAM = "in_image.py"
DEADLINE_S = 30 * 60
"""Pulling and unpacking tens of GiB onto a small node; the program itself takes a minute, most of it imports."""
_ASKED = "asked.json"
_ARMS_A_MAP = 40
_MOUNT = "/asked"
_TEXT = (Path(__file__).parent / "proof" / PROGRAM).read_text(encoding="utf-8")
_WITHOUT_DEVICE = {"HOME": "/tmp", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}
"""NxD Inference asks for the platform while it builds a configuration; torch_neuronx reads this before it asks the machine."""


def arguments_objects(experiment: Experiment) -> list[dict[str, Any]]:
    """What each image is asked, and its Job; nothing where no arm is served from devices."""
    found = [
        manifest
        for runtime in runtimes(experiment)
        for manifest in (*_questions(experiment, runtime), job(experiment, runtime))
    ]
    return [*found, _program(experiment)] if found else []


def runtimes(experiment: Experiment) -> tuple[Runtime, ...]:
    """Those of the arms that are served from devices, each once."""
    return tuple({arm.runtime.name: arm.runtime for arm in _arms(experiment)}.values())


def job(experiment: Experiment, runtime: Runtime) -> dict[str, Any]:
    """The suspended Job of one image. It is not tried again: what it says is about the image, not about the day."""
    (arm, *_) = [arm for arm in _arms(experiment) if arm.runtime.name == runtime.name]
    container = pod.container(
        CONTAINER,
        runtime.image,
        ["python3", f"{_MOUNT}/program/{PROGRAM}"],
        environment=compile_environment(arm) | _WITHOUT_DEVICE,
        resources=pod.amounts(
            cpu="1",
            memory=f"{sizes.ARGUMENTS_MEMORY_GIB}Gi",
            ephemeral=f"{sizes.NEURON_IMAGE_GIB}Gi",
        ),
        security=pod.container_security(writable_root=True),
    )
    body: pod.PodSpec = {"containers": [container], "volumes": []}
    _mount(body, "program", _program(experiment))
    for number, questions in enumerate(_questions(experiment, runtime)):
        _mount(body, f"arms-{number}", questions)
        container["command"].append(f"{_MOUNT}/arms-{number}/{_ASKED}")
    pod.on_system_nodes(body)
    return jobs.suspended_job(
        experiment,
        CONTAINER,
        body,
        named=partial(arguments_job, runtime),
        account=SERVING_ACCOUNT,
        only=CONTAINER,
        deadline_s=DEADLINE_S,
        retries=0,
        non_root=arm.serving.pod_security == "restricted",
        pod_labels=labels(experiment, CONTAINER, "offline"),
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


def _program(experiment: Experiment) -> dict[str, Any]:
    return _config_map(experiment, {PROGRAM: _TEXT})


def _mount(body: pod.PodSpec, name: str, config_map: dict[str, Any]) -> None:
    source = {"name": config_map["metadata"]["name"], "defaultMode": 0o444}
    body["volumes"].append({"name": name, "configMap": source})
    pod.mount(body["containers"][0], name, f"{_MOUNT}/{name}")


def _config_map(experiment: Experiment, data: dict[str, str]) -> dict[str, Any]:
    name = f"{CONTAINER}-{content_suffix(data)}"
    return config_map(experiment, name, data, labels(experiment, CONTAINER, "offline"))


def _arms(experiment: Experiment) -> list[Arm]:
    """A batch arm has no server, and its script's options are another parser's."""
    return [arm for arm in experiment.served_arms if arm.serving.devices]
