"""A server by controller-runtime's convention: an existing cluster, the binaries of envtest, or a skip with its reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.apiserver.control_plane import ControlPlane, started
from tests.apiserver.kubectl import Kubectl

if TYPE_CHECKING:
    from collections.abc import Iterator

HOW = "see docs/api-server.md"


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The server that the tests of this folder talk to."""
    if os.environ.get("USE_EXISTING_CLUSTER", "").lower() == "true":
        config = os.environ.get("KUBECONFIG")
        if not config:
            pytest.skip(f"USE_EXISTING_CLUSTER is true but KUBECONFIG is not set; {HOW}")
        yield ControlPlane(Kubectl("kubectl", config), schedules=True)
        return
    assets = Path(os.environ.get("KUBEBUILDER_ASSETS", ""))
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets / name).exists()]
    if not os.environ.get("KUBEBUILDER_ASSETS") or missing:
        pytest.skip(f"no API server: neither USE_EXISTING_CLUSTER nor KUBEBUILDER_ASSETS leads to one; {HOW}")
    with started(assets, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture(scope="session")
def scheduling(control_plane: ControlPlane) -> ControlPlane:
    """The same, where pods are scheduled."""
    if not control_plane.schedules:
        pytest.skip(f"no kube-scheduler and kube-controller-manager beside kube-apiserver; {HOW}")
    return control_plane
