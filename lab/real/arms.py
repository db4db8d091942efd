"""How the arms are started here: what their rendered Deployments say, with folders of this machine for the mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cdk8s_charts.command import weights_path
from experiment import Experiment
from experiment.catalogue.models import Model
from experiment.finding import Refusal
from lab.engine.argv import OFFLINE, THREADS, local_argv, local_probe
from lab.engine.servers import Command
from lab.models.manifest import CHECKPOINTS
from lab.rendered import Container


def commands(
    containers: Sequence[Container],
    *,
    folders: Mapping[str, str],
    engine: Sequence[str],
    options: Sequence[str] = (),
) -> list[Command]:
    """How these containers are started by `engine`, with further `options` of it.

    `folders` says what stands for each mounted one: a folder, or a model of a hub, which is then asked for it. Raises
    Refusal for a container that needs a Secret.
    """
    online = any(not Path(place).is_dir() for place in folders.values())
    return [_command(container, folders, engine, options, online=online) for container in containers]


def mounted_folders(experiment: Experiment, given: Mapping[str, str]) -> dict[str, str]:
    """Where each model is that a pod would find mounted: the lab's own here, any other on its hub; `given` names other
    places by model name. Raises Refusal for a name that is no model of the experiment.
    """
    models = {weights_path(weights): weights.model for weights in experiment.weights}
    known = [model.name for model in models.values()]
    if unknown := [name for name in given if name not in known]:
        raise Refusal(
            f"--weights: {unknown[0]!r} is no model of {experiment.name}; those are {', '.join(known)}"
        )
    return {path: given.get(model.name) or _place(model) for path, model in models.items()}


def _place(model: Model) -> str:
    return str(CHECKPOINTS / model.name.rpartition("/")[2]) if model.lab_only else model.name


def _command(
    container: Container,
    folders: Mapping[str, str],
    engine: Sequence[str],
    options: Sequence[str],
    *,
    online: bool,
) -> Command:
    if container.secrets:
        raise Refusal(
            f"arm {container.arm}: {container.secrets[0]} comes from a Secret, and there is no cluster here; "
            "leave serving.api_key_secret out"
        )
    environment = {**container.environment, **OFFLINE, **THREADS}
    if online:
        del environment["HF_HUB_OFFLINE"]
    argv, probe, rendered_port = container.command, container.startup, container.port
    return Command(
        name=container.arm,
        argv=lambda port: [*local_argv(argv, engine=engine, folders=folders, port=port), *options],
        environment=environment,
        health=container.health,
        startup=lambda port: local_probe(probe, rendered_port=rendered_port, port=port),
        startup_s=container.startup_s,
    )
