"""One render of every experiment for all tests."""

from __future__ import annotations

from typing import Any

import pytest

from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.render import render
from experiment import Experiment, load
from tests.conftest import ROOT

EXPERIMENTS = {path.stem: load(path) for path in sorted((ROOT / "experiments").glob("*.yaml"))}
"""All, the lab's among them."""


@pytest.fixture(scope="session")
def renders() -> dict[str, tuple[ManifestFile, ...]]:
    """Files of every experiment, by the name of its file."""
    return {stem: render(experiment) for stem, experiment in EXPERIMENTS.items()}


@pytest.fixture(params=EXPERIMENTS)
def case(
    request: pytest.FixtureRequest, renders: dict[str, tuple[ManifestFile, ...]]
) -> tuple[Experiment, tuple[ManifestFile, ...]]:
    """Each experiment with its files."""
    return EXPERIMENTS[request.param], renders[request.param]


@pytest.fixture(scope="session")
def files(renders: dict[str, tuple[ManifestFile, ...]]) -> tuple[ManifestFile, ...]:
    """Files of the reference experiment."""
    return renders["qwen3-32b"]


def of_kind(files: tuple[ManifestFile, ...], kind: str) -> dict[str, Any]:
    """Objects of a kind by name."""
    return {item["metadata"]["name"]: item for file in files for item in file.objects if item["kind"] == kind}


def pods(files: tuple[ManifestFile, ...]) -> dict[str, dict[str, Any]]:
    """Every pod spec by kind and name of what makes it."""
    found = {}
    for file in files:
        for item in file.objects:
            spec = item.get("spec", {})
            if item["kind"] == "CronJob":
                spec = spec["jobTemplate"]["spec"]
            if item["kind"] in ("Deployment", "Job", "CronJob"):
                found[f"{item['kind']}/{item['metadata']['name']}"] = spec["template"]["spec"]
    return found


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Containers and init containers of a pod."""
    return [*pod.get("initContainers", ()), *pod["containers"]]
