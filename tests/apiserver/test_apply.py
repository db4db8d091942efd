"""What a real API server says to every rendered object, and to version 2 over version 1."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdk8s_charts.render import render
from tests.apiserver.control_plane import ControlPlane
from tests.apiserver.objects import (
    Objects,
    Remember,
    deployed,
    erase,
    filled,
    make_namespace,
    renamed,
    without_warnings,
)
from tests.cdk8s_charts.immutable import REFUSED, changed_in_place
from tests.cdk8s_charts.objects import RENDERED, objects_of, the
from tests.cdk8s_charts.test_promoted import SERVE
from tests.cdk8s_charts.test_second_deploy import CHANGES
from tests.cdk8s_charts.variations import with_serving
from trnspec.experiment import Experiment

OTHERWISE: dict[str, Callable[[Experiment], Experiment]] = {
    "device-plugin": lambda e: with_serving(e, allocation="device-plugin"),
    "restricted": lambda e: with_serving(e, pod_security="restricted"),
    "promoted": lambda e: replace(e, serve=SERVE),
}
"""Choices of the file that no committed experiment makes."""


def _errors(complaints: list[str]) -> list[str]:
    """Pod Security warns of `restricted`, which is known and written down (tests/apiserver/README.md)."""
    return [line for line in complaints if not line.startswith("Warning: would violate PodSecurity")]


@pytest.mark.parametrize(
    "which", [*RENDERED, *OTHERWISE], ids=lambda which: which.stem if isinstance(which, Path) else which
)
def test_every_object_passes_strict_validation_and_stands_as_it_was_applied(
    control_plane: ControlPlane, erased: Remember, reference: Experiment, which: Path | str
) -> None:
    if isinstance(which, Path):
        rendered = filled(objects_of(which))
    else:
        rendered = renamed(OTHERWISE[which](reference), f"chosen-{which}")
    objects = deployed(rendered)
    erased(objects)
    make_namespace(control_plane.kubectl, objects)
    assert _errors(control_plane.kubectl.apply(objects, dry_run=True)) == []
    assert _errors(control_plane.kubectl.feed(objects, "apply")) == []
    assert control_plane.kubectl.diff(objects) == ""
    jobs = [item for item in rendered if item["kind"] == "Job"]
    assert _errors(control_plane.kubectl.feed(jobs, "create", "--validate=strict", "--dry-run=server")) == []


@pytest.fixture(scope="module")
def first(control_plane: ControlPlane, reference: Experiment) -> Iterator[Objects]:
    """Version 1 in the cluster, applied as the workloads stack does it: `kubectl apply` on the client's side."""
    objects = deployed(renamed(reference, "versions"))
    make_namespace(control_plane.kubectl, objects)
    assert _errors(control_plane.kubectl.feed(objects, "apply")) == []
    yield objects
    if control_plane.controllers:
        erase(control_plane.kubectl, "versions", objects)


@pytest.mark.parametrize("change", CHANGES)
def test_version_2_applies_over_version_1(
    control_plane: ControlPlane, reference: Experiment, first: Objects, change: str
) -> None:
    second = deployed(renamed(CHANGES[change](reference), "versions"))
    assert changed_in_place(first, second) == []
    changed = [item for item in second if item not in first]
    assert _errors(control_plane.kubectl.feed(changed, "apply", "--dry-run=server")) == []
    assert _errors(control_plane.kubectl.apply(changed, dry_run=True)) == []


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_the_server_refuses_what_the_comparison_of_renders_finds(
    control_plane: ControlPlane, first: Objects, what: str
) -> None:
    after = copy.deepcopy(first)
    REFUSED[what][1](after)
    (found,) = changed_in_place(first, after)
    kind, _, name = found[0].partition("/")
    complaints = " ".join(
        without_warnings(control_plane.kubectl.apply([the(after, kind, name)], dry_run=True))
    )
    assert "immutable" in complaints or "Forbidden" in complaints or "cannot be changed" in complaints


def test_every_file_applies_on_what_the_files_before_made_and_starts_nothing(
    control_plane: ControlPlane, reference: Experiment, erased: Remember
) -> None:
    kubectl, where = control_plane.kubectl, "in-order"
    files = [deployed(filled(file.objects)) for file in render(replace(reference, name=where))]
    files = [objects for objects in files if objects]
    erased([item for objects in files for item in objects])
    for objects in files:
        assert without_warnings(kubectl.feed(objects, "apply")) == []
    assert kubectl.items("pods", where) == []
    assert without_warnings(kubectl.feed(files[-1], "apply")) == [], "the same again"
