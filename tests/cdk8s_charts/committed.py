"""The committed render of an experiment, which another test holds equal to a fresh one: reading it needs no jsii."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from experiment import Experiment, load
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

Object = dict[str, Any]
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def experiment_at(path: Path) -> Experiment:
    """Loaded once."""
    return load(path)


RENDERED = sorted((ROOT / "experiments").glob("*.yaml"))
"""All of them."""
EXPERIMENTS = [path for path in RENDERED if not experiment_at(path).lab_only]
"""Those that have a cluster to be applied to."""
LAB = ROOT / "experiments" / "lab-tiny.yaml"


@cache
def _read(path: Path) -> tuple[Object, ...]:
    folder = ROOT / "manifests" / experiment_at(path).name
    return tuple(
        item
        for file in sorted(folder.glob("*.yaml"))
        for item in yaml.load_all(file.read_text(encoding="utf-8"), Loader=_Loader)
    )


def objects_of(path: Path) -> list[Object]:
    """A copy that a test may break."""
    objects = copy.deepcopy(list(_read(path)))
    assert objects, f"{path.name} is not rendered; run: make manifests"
    return objects


def the(objects: list[Object], kind: str, name: str = "") -> Object:
    """The first object of a kind whose name starts with `name`."""
    return next(
        item for item in objects if item["kind"] == kind and item["metadata"]["name"].startswith(name)
    )


def pod_spec(item: Object) -> Object:
    """Specification of the pods of a Deployment, Job or CronJob."""
    spec: Object = item["spec"]
    if item["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    found: Object = spec["template"]["spec"]
    return found
