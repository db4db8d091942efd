"""What a real API server says to the folder of a GitOps repository, a wave at a time as Argo CD applies it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from cdk8s_charts.gitops import WAVE, folder
from cdk8s_charts.manifests import ManifestFile
from cdk8s_charts.render import render
from experiment import Experiment
from tests.apiserver.control_plane import ControlPlane
from tests.apiserver.objects import filled, without_warnings


def test_every_wave_applies_on_what_the_waves_before_made_and_starts_nothing(
    control_plane: ControlPlane,
    reference: Experiment,
    erased: Callable[[Sequence[dict[str, Any]]], None],
    tmp_path: Path,
) -> None:
    kubectl, where = control_plane.kubectl, "in-waves"
    experiment = replace(reference, name=where)
    files = [ManifestFile(file.name, tuple(filled(file.objects))) for file in render(experiment)]
    texts = folder(experiment, files, repository="https://git.example.com/team/fleet.git", path="apps/one")
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    built = kubectl.run("kustomize", str(tmp_path))
    assert built.returncode == 0, built.stderr
    waves: dict[int, list[dict[str, Any]]] = {}
    for item in yaml.safe_load_all(built.stdout):
        waves.setdefault(int(item["metadata"]["annotations"][WAVE]), []).append(item)
    erased([item for wave in waves.values() for item in wave])
    for number in sorted(waves):
        # A namespace first, as Argo CD sorts by kind within a wave.
        waves[number].sort(key=lambda item: item["kind"] != "Namespace")
        assert without_warnings(kubectl.feed(waves[number], "apply")) == [], number
    assert kubectl.items("pods", where) == []
    assert without_warnings(kubectl.feed(waves[2], "apply")) == [], "a second sync of the same commit"
