"""What the rendered objects say: which servers there are, how each is started and checked, and the benchmark's plan.

Both labs start from here, the emulated one and the one with a real engine, so that what runs is what was reviewed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.plan import Plan, from_dict
from cdk8s_charts.manifests import ManifestFile, read
from core.files import write_whole
from core.findings import Misuse, Refusal
from experiment import Experiment
from experiment.naming import PLAN_FILE
from lab.programs import run_quietly


@dataclass(frozen=True, kw_only=True)
class Container:
    """The server of one arm, as its Deployment has it."""

    arm: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    """Variables whose values come from Secrets, which only a cluster has."""
    port: int
    """Where it listens in the pod."""
    health: str
    """Path that answers 200 when the server is ready."""
    startup: tuple[str, ...]
    """Command that succeeds once the server has started."""
    startup_s: int
    """How long that may take."""


def rendered(path: Path, experiment: Experiment, parent: Path) -> tuple[ManifestFile, ...]:
    """Render the experiment at `path` into `parent`, in a process of its own, so that no jsii runs in this one.

    Raises Refusal.
    """
    run_quietly(["-m", "cdk8s_charts", str(path.resolve()), "--out", str(parent.resolve())], what="rendering")
    try:
        return read(experiment, parent)
    except Misuse as error:
        raise Refusal(str(error)) from None


def containers(files: Sequence[ManifestFile]) -> dict[str, Container]:
    """The servers by arm, out of the Deployments."""
    return {item["metadata"]["name"]: _container(item) for item in _of_kind(files, "Deployment")}


def mounted_plan(files: Sequence[ManifestFile]) -> Plan:
    """The plan that the benchmark pod mounts, out of the rendered ConfigMap."""
    maps = _of_kind(files, "ConfigMap")
    (text,) = (item["data"][PLAN_FILE] for item in maps if PLAN_FILE in item.get("data", {}))
    return from_dict(json.loads(text))


def write_plan(plan: Plan, folder: Path) -> Path:
    """The file from which `benchmark run` reads it."""
    path = folder / PLAN_FILE
    write_whole(path, json.dumps(plan.to_dict(exclude_unset=True), indent=1))
    return path


def _of_kind(files: Sequence[ManifestFile], kind: str) -> Iterator[dict[str, Any]]:
    return (item for file in files for item in file.objects if item["kind"] == kind)


def _container(deployment: Mapping[str, Any]) -> Container:
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    startup = server["startupProbe"]
    return Container(
        arm=deployment["metadata"]["name"],
        command=tuple(server["command"]),
        environment={entry["name"]: entry["value"] for entry in server["env"] if "value" in entry},
        secrets=tuple(entry["name"] for entry in server["env"] if "value" not in entry),
        port=server["ports"][0]["containerPort"],
        health=server["readinessProbe"]["httpGet"]["path"],
        startup=tuple(startup["exec"]["command"]),
        startup_s=startup["failureThreshold"] * startup["periodSeconds"],
    )
