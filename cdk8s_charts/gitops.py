"""The manifests of one deployment as a folder of a GitOps repository: a kustomization, and an Application with sync waves
for Argo CD. Pure.

What Argo CD does is stated from its sources at v3.5.1, https://github.com/argoproj/argo-cd/tree/v3.5.1. *Not run on AWS.*
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdk8s_charts.manifests import ManifestFile
from experiment.naming import namespace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from experiment.arms import Experiment

KUSTOMIZATION, APPLICATION = "kustomization.yaml", "application.yaml"
WAVE = "argocd.argoproj.io/sync-wave"
_FIRST_OF_WAVE = ("", "10", "22")
"""With what the name of a wave's first file begins: namespace, accounts and policies; claims and storage; fetch, compile, arms
and all else.

Argo CD applies a wave once every object of the one before is healthy; only behind the last it does not wait
(gitops-engine/pkg/sync/sync_context.go, `Sync`). A suspended Job counts as `Suspended`, which is not healthy
(gitops-engine/pkg/health/health_job.go), and `run` releases a Job only where its artifact is missing: in any wave but the last,
Jobs would keep the arms from ever being applied. Unsuspended, a compile Job would wait for devices that an arm holds while that
arm waits for it. So order among fetch, compile and arms is kept by what starts them: `run` releases one after the other, arms
stand at 0, and a promoted one is written only once its artifact is complete (`operations/rendering.py`)."""


def folder(
    experiment: Experiment, files: Iterable[ManifestFile], *, repository: str, path: str
) -> dict[str, str]:
    """Texts by name of file; `files` have no placeholder left, `path` is where the folder lies in `repository`.

    The Application is beside the kustomization, not in it: it is applied once, where Argo CD lives.
    """
    made = [
        ManifestFile(file.name, tuple(_in_wave(file.name, item) for item in file.objects)) for file in files
    ]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [file.name for file in made],
    }
    made += [
        ManifestFile(KUSTOMIZATION, (kustomization,)),
        ManifestFile(APPLICATION, (application(experiment, repository=repository, path=path),)),
    ]
    return {file.name: file.yaml() for file in made}


def _in_wave(file: str, item: dict[str, Any]) -> dict[str, Any]:
    number = sum(file >= first for first in _FIRST_OF_WAVE) - 1
    metadata = item["metadata"]
    return {
        **item,
        "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), WAVE: str(number)}},
    }


def application(experiment: Experiment, *, repository: str, path: str) -> dict[str, Any]:
    """Syncs each commit once and takes back nothing that is done in the cluster: `run` releases Jobs and raises arms.

    A sync applies what stands in Git also to fields whose difference is ignored, unless it is told to respect that; and it
    prunes nothing by default (docs/user-guide/sync-options.md, auto_sync.md), as a deployment deletes no Job. The names of Jobs
    carry a hash of their content, so none has to be replaced by force. The finalizer makes deleting the Application delete its
    objects, the last wave first (docs/user-guide/app_deletion.md). With its path (pkg/apis/application/v1alpha1/
    application_defaults.go) it means what it means without; the API server warns of a finalizer that has none.
    """
    spec = {
        "project": "default",
        "source": {"repoURL": repository, "path": path, "targetRevision": "HEAD"},
        "destination": {"server": "https://kubernetes.default.svc", "namespace": namespace(experiment)},
        "syncPolicy": {
            "automated": {"prune": False, "selfHeal": False},
            "syncOptions": ["RespectIgnoreDifferences=true"],
        },
        "ignoreDifferences": [
            {"group": "batch", "kind": "Job", "jsonPointers": ["/spec/suspend"]},
            {"group": "apps", "kind": "Deployment", "jsonPointers": ["/spec/replicas"]},
        ],
    }
    finalizers = ["resources-finalizer.argocd.argoproj.io/foreground"]
    metadata = {"name": experiment.name, "namespace": "argocd", "finalizers": finalizers}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": metadata, "spec": spec}
