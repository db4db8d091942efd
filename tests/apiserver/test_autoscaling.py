"""The rendered ScaledObject against KEDA's own definition, where a file of it is given (docs/api-server.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdk8s_charts.render import render
from experiment import Experiment
from tests.apiserver.control_plane import ControlPlane
from tests.apiserver.kubectl import Kubectl, wait_until
from tests.apiserver.objects import filled, make_namespace
from tests.cdk8s_charts.objects import the
from tests.cdk8s_charts.test_promoted import SERVE, promoted_from

_CRD = "scaledobjects.keda.sh"


@pytest.fixture(scope="module")
def kubectl(control_plane: ControlPlane) -> Iterator[Kubectl]:
    """A server that knows ScaledObjects."""
    given = os.environ.get("KEDA_CRDS")
    if not given:
        pytest.skip("KEDA_CRDS names no file of KEDA's definitions; see docs/api-server.md")
    definitions = [
        item
        for item in yaml.safe_load_all(Path(given).read_text(encoding="utf-8"))
        if item and item["metadata"]["name"] == _CRD
    ]
    kubectl = control_plane.kubectl
    assert kubectl.apply(definitions) == []
    wait_until(lambda: kubectl.run("get", _CRD).returncode == 0, "the server knows ScaledObjects")
    yield kubectl
    kubectl.run("delete", "crd", _CRD, "--wait=false")


def test_keda_takes_the_rendered_object(
    kubectl: Kubectl, reference: Experiment, erased: Callable[[Sequence[dict[str, Any]]], None]
) -> None:
    experiment = replace(promoted_from(reference, SERVE), name="autoscaled")
    objects = filled(item for file in render(experiment) for item in file.objects)
    erased(objects)
    make_namespace(kubectl, objects)
    assert kubectl.apply([the(objects, "ScaledObject")], dry_run=True) == []
