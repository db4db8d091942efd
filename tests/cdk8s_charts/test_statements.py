"""Every statement holds for what is committed, and for experiments that nobody wrote: choices drawn at random, kept where the
core accepts them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.cdk8s_charts.objects import Case, Object, experiment_at, objects_of, pod_spec, pods_of, the, words
from tests.cdk8s_charts.placement import misplaced
from tests.cdk8s_charts.statements import STATEMENTS, Statement
from tests.cdk8s_charts.variations import rendered
from tests.conftest import REFERENCE
from tests.experiment.edits import put
from trnspec.experiment import Experiment, InvalidExperiment, load

CHOICES: dict[str, list[Any]] = {
    "serving.devices": [1, 4, 8, 16],
    "serving.logical_nc_config": [1, 2],
    "serving.max_num_seqs": [1, 4, [4, 16]],
    "serving.max_model_len": [1024, 4096],
    "serving.allocation": ["dra", "device-plugin"],
    "serving.advanced.pod_security": ["ipc-lock", "image-defaults", "baseline", "restricted"],
    "serving.api_key_secret": [None, "vllm-key"],
    "target.model": ["Qwen/Qwen3-32B", "Qwen/Qwen3-8B"],
    "arms.1.speculation.num_speculative_tokens": [7, [3, 5, 7]],
    "benchmark.lm_eval": [None, 100],
    "benchmark.endpoint": ["chat", "completions"],
    "cluster.max_nodes": [1, 2, 3],
    "cluster.kubernetes": ["1.35", "1.36"],
    "serve": [
        None,
        {"arm": "qwen-sd-vllm", "replicas": 1},
        {"arm": "qwen-vllm", "replicas": 2},
    ],
}
SMALL = {"cluster.instance": "trn2.3xlarge", "cluster.region": "ap-southeast-4"}
ZONES = {"us-east-2": ["us-east-2a", "us-east-2b"], "ap-southeast-4": ["ap-southeast-4c", "ap-southeast-4a"]}
WANTED, MOST_TRIES = 12, 400


@cache
def generated() -> tuple[tuple[Experiment, list[Object]], ...]:
    """So many experiments that the core accepts, with their objects. Every run draws the same ones."""
    chance, found = random.Random(20261122), list[Experiment]()
    reference = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    for _ in range(MOST_TRIES):
        data = copy.deepcopy(reference)
        del data["expect"]  # of the reference's own chips and window
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
    return tuple((one, rendered(one)) for one in found)


def _accepted(data: dict[str, Any]) -> Experiment | None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "generated.yaml")
        file.write_text(yaml.dump(data, Dumper=yaml.CSafeDumper), encoding="utf-8")
        try:
            return load(file)
        except InvalidExperiment:
            return None


def every_pod_has_a_place(experiment: Experiment, objects: list[Object]) -> Iterator[str]:
    """And no pod waits while it holds its claim: one whose init container waited for a Job of the same devices would wait for
    ever."""
    yield from misplaced(experiment, objects)
    jobs = [f" {job.name}" for job in pods_of(objects) if job.kind == "Job"]
    for pod in pods_of(objects):
        told = " ".join(word for one in pod.spec.get("initContainers") or () for word in words(one))
        yield from (f"{pod}: waits with {word}" for word in (*LOOPS, *jobs) if word in told)


LOOPS = ("until ", "while ", "sleep ", "wait ")
ALL = (*STATEMENTS, every_pod_has_a_place)


def _broken(experiment: Experiment, objects: list[Object]) -> dict[str, list[str]]:
    found = {statement.__name__: [*statement(experiment, objects)] for statement in ALL}
    return {name: broken for name, broken in found.items() if broken}


def test_every_statement_holds_for_what_is_committed(case: Case) -> None:
    assert _broken(*case) == {}


@pytest.mark.parametrize("number", range(WANTED))
def test_every_statement_holds_for_whatever_the_core_accepts(number: int) -> None:
    assert _broken(*generated()[number]) == {}


def _server(objects: list[Object]) -> Object:
    server: Object = pod_spec(the(objects, "Deployment"))["containers"][0]
    return server


BREAKS: dict[str, Callable[[list[Object]], object]] = {
    "names_are_legal_and_stand_once": lambda o: o.append(the(o, "Deployment")),
    "no_list_is_empty": lambda o: the(o, "NetworkPolicy")["spec"].update(ingress=[]),
    "what_is_named_exists": lambda o: o.remove(the(o, "PriorityClass")),
    "volumes_and_claims_are_pairs": lambda o: the(o, "PersistentVolume")["spec"]["mountOptions"].clear(),
    "a_service_meets_one_workload_and_an_open_port": lambda o: _server(o)["ports"].clear(),
    "policies_and_budgets_meet_pods": lambda o: the(o, "NetworkPolicy", "jobs")["spec"].update(
        podSelector={"matchLabels": {"x": "y"}}
    ),
    "claims_are_declared_and_used": lambda o: _server(o)["resources"]["claims"].clear(),
    "volumes_fit_what_their_pod_may_use": lambda o: _server(o)["resources"]["limits"].update(memory="1Gi"),
    "pods_give_up_what_they_do_not_need": lambda o: pod_spec(the(o, "Job")).update(hostNetwork=True),
    "jobs_end_and_belong_to_a_step": lambda o: the(o, "Job")["metadata"]["labels"].clear(),
    "jobs_are_what_the_policy_allows": lambda o: the(o, "ConfigMap", "reviewed-jobs")["data"].clear(),
    "servers_wait_at_0_and_are_asked_when_they_are_ready": lambda o: the(o, "Deployment")["spec"].update(
        replicas=1
    ),
    "an_arm_serves_its_own_artifact": lambda o: _server(o)["env"].append(
        {"name": "X", "value": "0123456789abcdef"}
    ),
    "arms_differ_as_declared": lambda o: _server(o).update(image="another:1"),
    "every_pod_has_a_place": lambda o: pod_spec(the(o, "Deployment"))["initContainers"][0]["command"].append(
        "sleep "
    ),
}


@pytest.mark.parametrize("statement", ALL, ids=lambda statement: statement.__name__)
def test_every_statement_finds_what_breaks_it(statement: Statement) -> None:
    objects = objects_of(REFERENCE)
    BREAKS[statement.__name__](objects)
    assert [*statement(experiment_at(REFERENCE), objects)]


def test_enough_experiments_are_drawn_and_they_differ() -> None:
    drawn = [experiment for experiment, _ in generated()]
    assert len(drawn) == WANTED
    assert {one.instance.name for one in drawn} == {"trn2.48xlarge", "trn2.3xlarge"}
    assert {one.baseline.serving.allocation for one in drawn} == {"dra", "device-plugin"}
    assert len({one.baseline.serving.devices for one in drawn}) >= 3
