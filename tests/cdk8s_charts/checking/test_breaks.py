"""Each way to break a render is caught by the check that is named for it; an unbroken one by none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdk8s_charts.checking import CHECKS, findings
from cdk8s_charts.checking.run import refuse_findings
from cdk8s_charts.errors import ChartError
from cdk8s_charts.manifest_file import ManifestFile
from tests.cdk8s_charts.checking.breaks import BREAKS
from tests.cdk8s_charts.committed import LAB, RENDERED, experiment_at, objects_of
from tests.conftest import REFERENCE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_the_render_of_every_experiment_has_no_finding(path: Path) -> None:
    assert [found.line() for found in findings(experiment_at(path), objects_of(path))] == []


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_render_is_caught_by_the_check_of_that_name(name: str) -> None:
    check, damage = BREAKS[name]
    objects = objects_of(REFERENCE)
    damage(objects)
    found = [entry for entry in findings(experiment_at(REFERENCE), objects) if entry.check == check]
    assert found, f"{check} does not see: {name}"
    for entry in found:
        assert entry.object.count("/") == 1
        assert entry.why
        assert entry.remedy
        assert "\n" not in entry.line()


def test_an_object_of_the_lab_without_its_mark_is_caught() -> None:
    objects = objects_of(LAB)
    for item in objects:
        if item["kind"] == "Service" and item["metadata"]["name"] == "tiny":
            del item["metadata"]["annotations"]
    (found,) = findings(experiment_at(LAB), objects)
    assert (found.check, found.object) == ("unmarked-lab-object", "Service/tiny")


def test_every_check_has_a_render_that_it_catches() -> None:
    assert {check for check, _ in BREAKS.values()} == CHECKS.keys()


def test_the_breaks_that_anybody_would_try_are_among_them() -> None:
    """Two more need a second render or an order of pods: test_immutable.py and scheduling/test_order.py."""
    wanted = {
        "misspelt matchAttribute": "unpublished-attribute",
        "attribute that no device has": "failing-selector",
        "claim used but not declared": "undeclared-claim",
        "check of another artifact": "stale-artifact-key",
        "annotation of another artifact": "stale-artifact-key",
        "no startup probe": "missing-probe",
        "tag latest": "unpinned-image",
        "an arm with more CPU": "undeclared-difference",
    }
    assert {name: BREAKS[name][0] for name in wanted} == wanted
    assert len(BREAKS) >= 25


def test_every_check_says_why_it_exists() -> None:
    assert all((check.__doc__ or "").strip() for check in CHECKS.values())


def test_a_render_with_findings_is_refused_a_line_each() -> None:
    objects = objects_of(REFERENCE)
    for name in ("tag latest", "no startup probe", "target port of no container"):
        BREAKS[name][1](objects)
    with pytest.raises(ChartError) as refused:
        refuse_findings(experiment_at(REFERENCE), (ManifestFile("all.yaml", tuple(objects)),))
    lines = str(refused.value).splitlines()
    assert {line.split(":")[0] for line in lines} >= {
        "unpinned-image",
        "missing-probe",
        "target-port-of-nobody",
    }
    assert (
        "Service/qwen-sd-vllm spec.ports[http].targetPort: no container of its pods opens 'web'; use 8000, http"
        in str(refused.value)
    )
