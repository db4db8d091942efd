"""How the arms are started here: with the command that a pod would run, and folders of this machine for its mounts.

No Deployment is rendered, because this runtime never goes into a cluster; command and environment come from the very
functions that write them into the Deployments of the other runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdk8s_charts.command import serve_argv, serve_environment, weights_path
from experiment import Experiment
from experiment.arms import Arm
from lab.engine.argv import OFFLINE, THREADS, local_argv
from lab.engine.servers import Command
from lab.models.manifest import CHECKPOINTS


def commands(
    experiment: Experiment,
    *,
    arms: Sequence[str],
    engine: Sequence[str],
    options: Sequence[str] = (),
    weights: Mapping[str, str] | None = None,
) -> list[Command]:
    """How the named arms are started. `weights` names other folders, or models of a hub, by model name."""
    folders = mounted_folders(experiment, weights or {})
    own = {**THREADS, **({} if weights else OFFLINE)}

    def command(arm: Arm) -> Command:
        return Command(
            name=arm.name,
            argv=lambda port: [
                *local_argv(serve_argv(arm), engine=engine, folders=folders, port=port),
                *options,
            ],
            environment={**serve_environment(arm), **own} if not weights else own,
        )

    by_name = {arm.name: arm for arm in experiment.arms}
    return [command(by_name[name]) for name in arms]


def mounted_folders(experiment: Experiment, given: Mapping[str, str]) -> dict[str, str]:
    """Where each model lies that a pod would find mounted."""
    return {
        weights_path(weights): given.get(weights.model.name)
        or str(CHECKPOINTS / weights.model.name.rpartition("/")[2])
        for weights in experiment.weights
    }
