"""What a real API server says to every rendered object, and to version 2 over version 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cdk8s_charts.checking.immutable import changed_in_place
from cdk8s_charts.render import render
from experiment import load
from tests.apiserver.objects import filled, make_namespace
from tests.cdk8s_charts.checking.test_immutable import REFUSED
from tests.cdk8s_charts.committed import EXPERIMENTS, objects_of, the
from tests.conftest import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.apiserver.control_plane import ControlPlane


def _errors(complaints: list[str]) -> list[str]:
    """Pod Security warns of `restricted`, which is known and written down (docs/api-server.md)."""
    return [line for line in complaints if not line.startswith("Warning: would violate PodSecurity")]


@pytest.fixture
def cleanup(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Namespaces to delete when the test has ended, with their volumes."""
    names: list[str] = []
    yield names
    for name in names:
        control_plane.kubectl.run("delete", "namespace", name, "--wait=false")
        volumes = control_plane.kubectl.get("persistentvolumes")["items"]
        for volume in volumes:
            if (volume["spec"].get("claimRef") or {}).get("namespace") == name:
                control_plane.kubectl.run(
                    "delete", "persistentvolume", volume["metadata"]["name"], "--wait=false"
                )


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_object_passes_strict_validation_on_the_server(
    control_plane: ControlPlane, cleanup: list[str], path: Path
) -> None:
    objects = filled(objects_of(path))
    cleanup.append(make_namespace(control_plane.kubectl, objects))
    assert _errors(control_plane.kubectl.apply(objects, dry_run=True)) == []


def _version(variation: Callable[..., Path], k: int) -> list[dict[str, Any]]:
    def edit(data: dict[str, Any]) -> None:
        data["name"] = "api-server-test"
        data["arms"][1]["speculation"]["num_speculative_tokens"] = k
        data["serving"]["max_num_seqs"] = 2 if k == 5 else 4

    objects = [item for file in render(load(variation(edit))) for item in file.objects]
    return filled(objects)


def test_version_2_applies_over_version_1(
    control_plane: ControlPlane, cleanup: list[str], variation: Callable[..., Path]
) -> None:
    first, second = _version(variation, 7), _version(variation, 5)
    assert changed_in_place(first, second) == []
    cleanup.append(make_namespace(control_plane.kubectl, first))
    assert _errors(control_plane.kubectl.apply(first)) == []
    assert _errors(control_plane.kubectl.apply(second)) == []


@pytest.mark.parametrize(
    "what", ["a Deployment's selector", "the count of a claim template", "the bucket of a volume"]
)
def test_the_server_refuses_what_the_comparison_of_renders_finds(
    control_plane: ControlPlane, cleanup: list[str], what: str
) -> None:
    before, after = filled(objects_of(REFERENCE)), filled(objects_of(REFERENCE))
    REFUSED[what][1](after)
    cleanup.append(make_namespace(control_plane.kubectl, before))
    assert _errors(control_plane.kubectl.apply(before)) == []
    (found,) = changed_in_place(before, after)
    kind, _, name = found.object.partition("/")
    complaints = " ".join(control_plane.kubectl.apply([the(after, kind, name)]))
    assert "immutable" in complaints or "Forbidden" in complaints or "cannot be changed" in complaints
