"""Every statement holds for what is committed, and for experiments that nobody wrote: choices drawn at random, kept where the
core accepts them."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from cdk8s_charts.render import render
from experiment import Experiment, InvalidExperiment, load
from experiment.placement import place
from tests.cdk8s_charts.conftest import Case, objects_in
from tests.cdk8s_charts.objects import Object, pods_of, words
from tests.cdk8s_charts.placement import stand
from tests.cdk8s_charts.statements import STATEMENTS
from tests.conftest import REFERENCE
from tests.experiment.edits import put

CHOICES: dict[str, list[Any]] = {
    "serving.devices": [1, 4, 8, 16],
    "serving.logical_nc_config": [1, 2],
    "serving.max_num_seqs": [1, 4, [4, 16]],
    "serving.max_model_len": [1024, 4096],
    "serving.allocation": ["dra", "device-plugin"],
    "serving.artifact_source": ["mount", "scratch"],
    "serving.pod_security": ["image-defaults", "baseline", "restricted"],
    "serving.api_key_secret": [None, "vllm-key"],
    "target.model": ["Qwen/Qwen3-32B", "Qwen/Qwen3-8B"],
    "arms.1.speculation.num_speculative_tokens": [7, [3, 5, 7]],
    "benchmark.lm_eval": [None, {"limit": 100}],
    "benchmark.endpoint": ["chat", "completions"],
    "cluster.max_nodes": [1, 2, 3],
    "cluster.kubernetes": ["1.35", "1.36"],
    "serve": [None, {"arm": "qwen-sd-vllm", "replicas": 1}, {"arm": "qwen-sd-vllm", "max_replicas": 2}],
}
SMALL = {"cluster.instance": "trn2.3xlarge", "cluster.region": "ap-southeast-4"}
ZONES = {"us-east-2": ["us-east-2a", "us-east-2b"], "ap-southeast-4": ["ap-southeast-4a", "ap-southeast-4b"]}
WANTED, MOST_TRIES = 12, 400


@cache
def generated() -> tuple[tuple[Experiment, list[Object]], ...]:
    """So many experiments that the core accepts, with their objects. Every run draws the same ones."""
    chance, found = random.Random(20261122), list[Experiment]()
    reference = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    for _ in range(MOST_TRIES):
        data = copy.deepcopy(reference)
        del data["serving"]["tensor_parallel"]
        small = chance.random() < 0.3
        for path, values in CHOICES.items():
            put(path, chance.choice(values))(data)
        for path, value in SMALL.items() if small else ():
            put(path, value)(data)
        put("cluster.availability_zones", ZONES[data["cluster"]["region"]])(data)
        if small:
            put("serving.devices", 1)(data)
        if experiment := _accepted(data):
            found.append(experiment)
        if len(found) == WANTED:
            break
    return tuple((one, objects_in(render(one))) for one in found)


def _accepted(data: dict[str, Any]) -> Experiment | None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "generated.yaml")
        file.write_text(yaml.dump(data, Dumper=yaml.CSafeDumper), encoding="utf-8")
        try:
            return load(file)
        except InvalidExperiment:
            return None


def every_pod_has_a_place(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    """Arms stand where the core says, batch by batch, and no pod waits while it holds its claim: one whose init container
    waited for a Job of the same devices would wait for ever."""
    if experiment.lab_only:
        return
    together, _ = stand(experiment, objects)
    found = [
        (batch, arm, one.node, int(re.sub(r"\D", "", one.devices[0])), len(one.devices))
        for batch, places in enumerate(together)
        for arm, one in places.items()
    ]
    served = {arm.name for arm in experiment.served_arms}
    said = [
        (where.batch, where.arm, f"trn2-{where.node}", where.first_device, where.devices)
        for where in place(experiment)
        if where.arm in served
    ]
    # With several nodes the scheduler may as well spread them.
    if len(found) != len(said) or (experiment.cluster.max_nodes == 1 and found != said):
        yield f"{found} is not {said}"
    for pod in pods_of(objects):
        told = " ".join(word for one in pod.spec.get("initContainers") or () for word in words(one))
        jobs = [f" {job.name}" for job in pods_of(objects) if job.kind == "Job"]
        yield from (f"{pod}: waits with {word}" for word in (*LOOPS, *jobs) if word in told)


LOOPS = ("until ", "while ", "sleep ", "wait ")


def _broken(experiment: Experiment, objects: list[Object]) -> list[str]:
    return [
        f"{statement.__name__}: {broken}"
        for statement in (*STATEMENTS, every_pod_has_a_place)
        for broken in statement(experiment, objects)
    ]


def test_every_statement_holds_for_what_is_committed(case: Case) -> None:
    assert _broken(*case) == []


@pytest.mark.parametrize("number", range(WANTED))
def test_every_statement_holds_for_whatever_the_core_accepts(number: int) -> None:
    assert _broken(*generated()[number]) == []


def test_enough_experiments_are_drawn_and_they_differ() -> None:
    drawn = [experiment for experiment, _ in generated()]
    assert len(drawn) == WANTED
    assert {one.instance.name for one in drawn} == {"trn2.48xlarge", "trn2.3xlarge"}
    assert {one.baseline.serving.allocation for one in drawn} == {"dra", "device-plugin"}
    assert len({one.baseline.serving.devices for one in drawn}) >= 3
