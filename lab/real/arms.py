"""How the arms are started here: with the command that a pod would run, and folders of this machine for its mounts.

No Deployment is rendered, because this runtime never goes into a cluster; command and environment come from the very
functions that write them into the Deployments of the other runtimes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cdk8s_charts.command import serve_argv, serve_environment, weights_path
from experiment import Experiment
from experiment.arms import Arm
from lab.engine.argv import OFFLINE, THREADS, local_argv
from lab.engine.servers import Command
from lab.errors import LabError

CHECKPOINTS = Path(__file__).resolve().parent.parent / "models" / "checkpoints"
MANIFEST = "sha256.json"


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


def check_checkpoints(folder: Path = CHECKPOINTS) -> int:
    """Compare every shipped file with the manifest of hashes; how many there are. Raises LabError."""
    try:
        wanted: dict[str, str] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(
            f"{folder / MANIFEST}: cannot be read ({error}); restore it from the repository"
        ) from None
    for name, digest in wanted.items():
        path = folder / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "absent"
        if found != digest:
            raise LabError(
                f"{path}: sha256 is {found[:12]}, not {digest[:12]}; restore it from the repository"
            )
    return len(wanted)
