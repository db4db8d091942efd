"""The folder for a GitOps tool: valid, complete for kustomize, and in waves that cannot wait for a Job for ever."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from cdk8s_charts.manifests import (
    APPLICATION,
    KUSTOMIZATION,
    PLACEHOLDERS,
    WAVE,
    ManifestFile,
    application,
    fill,
    gitops_folder,
    read,
)
from experiment import Experiment, load
from operations.cloud import access
from tests.cdk8s_charts.objects import Object
from tests.conftest import ROOT

ADDRESS = {"repository": "https://git.example.com/team/fleet.git", "path": "apps/one"}


def _key(item: Object) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


@pytest.mark.parametrize("name", ["qwen3-32b", "qwen3-32b-today", "vicuna-7b"])
def test_kustomize_builds_every_object_as_it_was_reviewed_but_for_its_wave(name: str, tmp_path: Path) -> None:
    """By the bundled kubectl, the Application lying in the folder too. Argo CD goes on behind a wave only when all of it is
    healthy, which a suspended Job is not."""
    experiment, values = load(ROOT / "experiments" / f"{name}.yaml"), dict.fromkeys(PLACEHOLDERS, "x1")
    reviewed = read(experiment, ROOT / "manifests")
    files = [ManifestFile(file.name, tuple(fill(file.objects, values))) for file in reviewed]
    for file, text in gitops_folder(experiment, files, **ADDRESS).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    assert APPLICATION not in yaml.safe_load((tmp_path / KUSTOMIZATION).read_text())["resources"]
    done = subprocess.run(
        [str(access.kubectl()), "kustomize", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    built = list(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))
    waves: dict[str, set[str]] = {}
    for item in built:
        annotations = item["metadata"]["annotations"]
        waves.setdefault(annotations.pop(WAVE), set()).add(item["kind"])
        if not annotations:
            del item["metadata"]["annotations"]
    wanted = {_key(item): item for file in files for item in file.objects}
    assert {_key(item): item for item in built} == wanted
    assert len(built) == len(wanted)
    assert waves.keys() == {"0", "1", "2"}
    assert {"Namespace", "ServiceAccount", "PriorityClass", "NetworkPolicy"} <= waves["0"]
    stores = {"PersistentVolume", "PersistentVolumeClaim"}
    assert stores <= waves["1"] <= stores | {"ResourceClaimTemplate"}
    making_pods = {"Job", "CronJob", "Deployment"}
    assert making_pods <= waves["2"]
    assert making_pods.isdisjoint(waves["0"])


def test_the_application_takes_nothing_back_that_a_run_does(reference: Experiment) -> None:
    """Deleting it deletes its objects, by a finalizer with a path, without which an API server warns."""
    made = application(reference, **ADDRESS)
    assert made["metadata"]["finalizers"] == ["resources-finalizer.argocd.argoproj.io/foreground"]
    spec = made["spec"]
    assert spec["syncPolicy"]["automated"] == {"prune": False, "selfHeal": False}
    assert "RespectIgnoreDifferences=true" in spec["syncPolicy"]["syncOptions"]
    assert {(one["kind"], *one["jsonPointers"]) for one in spec["ignoreDifferences"]} == {
        ("Job", "/spec/suspend"),
        ("Deployment", "/spec/replicas"),
    }
