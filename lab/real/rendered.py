"""What the pods would run, read out of the rendered manifests, and what stands for their mounts on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdk8s_charts.command import weights_path
from cdk8s_charts.manifest_file import ManifestFile
from experiment import Experiment
from lab.engine.argv import OFFLINE, THREADS, local_argv
from lab.engine.servers import Command
from lab.errors import LabError

CHECKPOINTS = Path(__file__).resolve().parent.parent / "models" / "checkpoints"
MANIFEST = "sha256.json"


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One arm's container."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def deployments(files: Sequence[ManifestFile]) -> dict[str, Rendered]:
    """Arm name to its container, in the order of the files."""
    return dict(_deployments(files))


def commands(
    experiment: Experiment,
    files: Sequence[ManifestFile],
    *,
    arms: Sequence[str],
    engine: Sequence[str],
    options: Sequence[str] = (),
    weights: Mapping[str, str] | None = None,
) -> list[Command]:
    """How the named arms are started here. `weights` names other folders, or models of a hub, by model name."""
    rendered = deployments(files)
    folders = mounted_folders(experiment, weights or {})

    def command(name: str) -> Command:
        pod = rendered[name]
        return Command(
            name=name,
            argv=lambda port: [*local_argv(pod.argv, engine=engine, folders=folders, port=port), *options],
            environment={**pod.environment, **THREADS, **({} if weights else OFFLINE)},
        )

    return [command(name) for name in arms]


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


def _deployments(files: Sequence[ManifestFile]) -> Iterator[tuple[str, Rendered]]:
    for file in files:
        for item in file.objects:
            if item["kind"] == "Deployment":
                container: dict[str, Any] = item["spec"]["template"]["spec"]["containers"][0]
                environment = {
                    entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry
                }
                yield (
                    item["metadata"]["name"],
                    Rendered(argv=tuple(container["command"]), environment=environment),
                )
