"""Rendered objects as tests read them: the committed ones, which a test holds equal to a fresh render, without jsii."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT
from trnspec.experiment import Experiment, load

Object = dict[str, Any]
Case = tuple[Experiment, list[Object]]
"""An experiment and its objects."""
_FACTORS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9} | {
    f"{unit}i": 1024.0**power for power, unit in enumerate("KMGT", 1)
}
NEURON_RESOURCE = "aws.amazon.com/neuron"


@cache
def experiment_at(path: Path) -> Experiment:
    return load(path)


RENDERED = sorted((ROOT / "experiments").glob("*.yaml"))


@cache
def committed(path: Path) -> tuple[Object, ...]:
    """Read once, for tests that change nothing in them."""
    folder = ROOT / "manifests" / experiment_at(path).name
    objects = tuple(
        item
        for file in sorted(folder.glob("*.yaml"))
        for item in yaml.load_all(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    )
    assert objects, f"{path.name} is not rendered; run: make manifests"
    return objects


def objects_of(path: Path) -> list[Object]:
    """A copy that a test may break."""
    return copy.deepcopy(list(committed(path)))


def named(objects: Iterable[Object], kind: str) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def the(objects: Iterable[Object], kind: str, name: str = "") -> Object:
    """The first object of a kind whose name starts with `name`."""
    return next(
        item for item in objects if item["kind"] == kind and item["metadata"]["name"].startswith(name)
    )


@dataclass(frozen=True, eq=False)
class Pod:
    """An object that makes pods: a Deployment or Job."""

    owner: Object

    @property
    def kind(self) -> str:
        return str(self.owner["kind"])

    @property
    def name(self) -> str:
        return str(self.owner["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    @cached_property
    def job(self) -> Object:
        spec: Object = self.owner["spec"]
        return spec

    @cached_property
    def spec(self) -> Object:
        found: Object = self.job["template"]["spec"]
        return found

    @cached_property
    def metadata(self) -> Object:
        return self.job["template"].get("metadata") or {}

    @property
    def containers(self) -> list[Object]:
        """Init containers first."""
        return [*(self.spec.get("initContainers") or ()), *self.spec["containers"]]

    def container(self, name: str) -> Object:
        return next(one for one in self.containers if one["name"] == name)

    @property
    def volumes(self) -> dict[str, Object]:
        return {volume["name"]: volume for volume in self.spec.get("volumes") or ()}


def pods_of(objects: Iterable[Object]) -> list[Pod]:
    return [Pod(item) for item in objects if item["kind"] in ("Deployment", "Job")]


def pod_spec(item: Object) -> Object:
    return Pod(item).spec


def words(container: Object) -> Iterator[str]:
    yield from map(str, (*(container.get("command") or ()), *(container.get("args") or ())))
    yield from (str(entry.get("value", "")) for entry in container.get("env") or ())


def mounts(container: Object) -> list[Object]:
    return container.get("volumeMounts") or []


def quantity(value: Any) -> float:
    """`100m`, `1.5Gi` or a plain number."""
    text = str(value)
    number = text.rstrip("mkMGTKi")
    return float(number) * _FACTORS[text[len(number) :]]
