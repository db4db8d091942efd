"""A server by controller-runtime's convention: an existing cluster, the binaries of envtest, or a skip with its reason."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.control_plane import ControlPlane, started
from tests.apiserver.kubectl import Kubectl
from tests.apiserver.objects import Remember, erase
from trnspec.operations.cloud import access

HOW = "see tests/apiserver/README.md"


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The server that the tests of this folder talk to."""
    if os.environ.get("USE_EXISTING_CLUSTER", "").lower() == "true":
        config = os.environ.get("KUBECONFIG")
        if not config:
            pytest.skip(f"USE_EXISTING_CLUSTER is true but KUBECONFIG is not set; {HOW}")
        kubectl = Kubectl(str(access.kubectl()), config)
        yield ControlPlane(kubectl, controllers=True)
        return
    assets = Path(os.environ.get("KUBEBUILDER_ASSETS", ""))
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets / name).exists()]
    if not os.environ.get("KUBEBUILDER_ASSETS") or missing:
        pytest.skip(f"no API server: neither USE_EXISTING_CLUSTER nor KUBEBUILDER_ASSETS leads to one; {HOW}")
    with started(assets, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


@pytest.fixture
def erased(control_plane: ControlPlane) -> Iterator[Remember]:
    """Remembers objects; they, their namespace and everything in it are gone after the test."""
    known: list[Sequence[dict[str, Any]]] = []
    yield known.append
    for objects in known:
        (namespace,) = (item["metadata"]["name"] for item in objects if item["kind"] == "Namespace")
        if control_plane.controllers:  # a server alone never ends a namespace, and is thrown away
            erase(control_plane.kubectl, namespace, objects)
